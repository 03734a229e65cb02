// bfloat16 to fp32 and back, in plain C++. Everything is static: each translation unit compiles its own copy for its
// own instruction set, and the linker can never pick the AVX-512 one for a host without it.
#pragma once

#include <cstdint>
#include <cstring>

namespace cpu_int4 {

static inline float to_float(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
static inline uint16_t to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(f != f ? 0x7fc0u : rounded);
}

}  // namespace cpu_int4
