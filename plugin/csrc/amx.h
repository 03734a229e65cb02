// AMX tile state around a call into a library that may configure tiles. Built everywhere, run only where AMX is.
#pragma once

#include <vector>

namespace cpu_int4 {

bool has_amx();

// Remembers the tile configuration of every OpenMP thread and puts it back when it goes out of scope. Tile contents are
// not kept: the System V ABI lets any call destroy them. Without this, code that configured tiles before the call and
// uses them after it dies of SIGILL. Untested: no host with AMX was at hand; `pytest tests/test_native_amx.py` tests it.
class TileConfigurations {
 public:
  TileConfigurations();
  ~TileConfigurations();
  TileConfigurations(const TileConfigurations&) = delete;
  TileConfigurations& operator=(const TileConfigurations&) = delete;

 private:
  struct alignas(64) Configuration {
    unsigned char bytes[64];
  };
  std::vector<Configuration> of_thread_;
};

}  // namespace cpu_int4
