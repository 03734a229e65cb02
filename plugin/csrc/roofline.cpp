#pragma GCC target("avx512f,avx512bw,avx512bf16")
#include "roofline.h"

#include <immintrin.h>
#include <omp.h>

namespace cpu_int4 {
namespace {

uint64_t read_share(const uint8_t* from, const uint8_t* to) {
  __m512i sums[8];
  for (auto& s : sums) s = _mm512_setzero_si512();
  for (; from < to; from += 512)
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) + 64 * i + 8192), 0, 3);
      sums[i] = _mm512_xor_si512(sums[i], _mm512_loadu_si512(from + 64 * i));
    }
  for (int i = 1; i < 8; ++i) sums[0] = _mm512_xor_si512(sums[0], sums[i]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sums[0]));
}

float products_of_thread(int64_t rounds) {
  __m512 chains[16];
  for (auto& c : chains) c = _mm512_setzero_ps();
  const __m512bh one = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) chains[j] = _mm512_dpbf16_ps(chains[j], one, one);
    asm volatile("" ::"v"(chains[0]));  // one round is one round: the loop may not be folded
  }
  for (int i = 1; i < 16; ++i) chains[0] = _mm512_add_ps(chains[0], chains[i]);
  return _mm512_reduce_add_ps(chains[0]);
}

}  // namespace

uint64_t read_once(const uint8_t* data, int64_t bytes) {
  uint64_t total = 0;
#pragma omp parallel reduction(+ : total)
  {
    const int64_t pages = bytes / 4096, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    total += read_share(data + pages * thread / threads * 4096, data + pages * (thread + 1) / threads * 4096);
  }
  return total;
}

int64_t bf16_products(int64_t rounds) {
  float total = 0;
  int64_t threads = 1;
#pragma omp parallel reduction(+ : total)
  {
#pragma omp single nowait
    threads = omp_get_num_threads();
    total += products_of_thread(rounds);
  }
  return total > 0 ? threads * rounds * 16 * 64 : 0;
}

}  // namespace cpu_int4
