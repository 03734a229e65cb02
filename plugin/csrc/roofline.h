// The two limits that the kernel is held against, measured with code as simple as the limits are.
#pragma once

#include <cstdint>

namespace cpu_int4 {

// Reads `bytes` (a multiple of 4096) once, every thread its own contiguous share: 64-byte loads into eight accumulators,
// each line asked for 8 KiB ahead. Returns a value that depends on all of them. Needs AVX-512.
uint64_t read_once(const uint8_t* data, int64_t bytes);

// Sixteen independent chains of vdpbf16ps a thread, `rounds` times, nothing else. Returns the floating point operations
// done by all threads: 64 an instruction (16 lanes x 2 products x multiply and add). Needs AVX-512 bf16.
int64_t bf16_products(int64_t rounds);

}  // namespace cpu_int4
