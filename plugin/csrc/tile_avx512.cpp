// AVX-512 without bf16 (Skylake-SP to Ice Lake): fp32 products. VNNI's int8 products are not used where a host has
// them: they would need the activations in 8 bits, which W4A16 promises not to do.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")
#include <immintrin.h>

#include "tile.inl.h"

namespace cpu_int4 {
namespace {

struct Isa {
  static constexpr int kWidth = 16, kSteps = 8, kMaxRows = 12;
  static constexpr float kOffset = -8.0f;  // the table below holds q - 8
  using Acc = __m512;
  using Word = __m512;
  using Row = __m512;

  static constexpr int columns(int rows) { return rows <= 6 ? 4 : 2; }  // 24 of 32 registers, as with bf16

  static Acc zero() { return _mm512_setzero_ps(); }
  template <int step>
  static Word decode(const uint8_t* codes) {
    constexpr int shift = code_shift(step < 4 ? 2 * step : 2 * step - 7);
    __m512i v = _mm512_loadu_si512(codes);
    if constexpr (shift > 0) v = _mm512_srli_epi32(v, shift);
    // vpermps looks at the low 4 bits of each lane only: a table of 16 without a mask.
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps(v, table);
  }
  static Row broadcast(const uint32_t* x) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(*x))); }
  static Acc mac(Acc acc, Word w, Row x) { return _mm512_fmadd_ps(w, x, acc); }
  static Acc load_bf16(const uint8_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static Acc load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static Acc splat(float f) { return _mm512_set1_ps(f); }
  static Acc fma(Acc a, Acc b, Acc c) { return _mm512_fmadd_ps(a, b, c); }
  static void store_bf16(bf16* to, const float* from, int64_t count) { store_rounded(to, from, count); }
};

void pack_group(const Activations& a, const Shape& shape, int64_t first, int64_t rows, int64_t g, uint32_t* packed, float* sums) {
  pack_floats(a, shape, first, rows, g, packed);
  sum_groups(a, shape, first, rows, g, sums);
}

constexpr Variant kVariant{"avx512", Isa::kMaxRows, Isa::kSteps, pack_group, block<Isa>};

}  // namespace

const Variant* avx512() {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq");
  return runs ? &kVariant : nullptr;
}

}  // namespace cpu_int4
