#include "amx.h"

#include <immintrin.h>
#include <omp.h>

namespace cpu_int4 {

bool has_amx() { return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16"); }

namespace {

// Only these two functions are compiled for AMX, so that nothing else in this file can need it.
__attribute__((target("amx-tile"))) void store_configuration(void* to) { _tile_storeconfig(to); }
__attribute__((target("amx-tile"))) void load_configuration(const void* from) { _tile_loadconfig(from); }

}  // namespace

TileConfigurations::TileConfigurations() {
  if (!has_amx()) return;
  of_thread_.resize(static_cast<size_t>(omp_get_max_threads()));
#pragma omp parallel
  store_configuration(of_thread_[static_cast<size_t>(omp_get_thread_num())].bytes);
}

TileConfigurations::~TileConfigurations() {
  if (of_thread_.empty()) return;
#pragma omp parallel num_threads(static_cast<int>(of_thread_.size()))
  load_configuration(of_thread_[static_cast<size_t>(omp_get_thread_num())].bytes);
}

}  // namespace cpu_int4
