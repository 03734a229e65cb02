// AVX2 with FMA (edge hosts, Haswell and later, Zen 1 to 3): fp32 products.
#pragma GCC target("avx2,fma")
#include <immintrin.h>

#include "tile.inl.h"

namespace cpu_int4 {
namespace {

struct Isa {
  static constexpr int kWidth = 8, kSteps = 8, kMaxRows = 6;
  static constexpr float kOffset = 0.0f;  // decoded as q: AVX2's permutes reach 8 entries, too few for a table
  using Acc = __m256;
  using Word = __m256;
  using Row = __m256;

  // 16 registers: at most 12 accumulators, two decoded weights, one row, one constant.
  static constexpr int columns(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

  static Acc zero() { return _mm256_setzero_ps(); }
  template <int step>
  static Word decode(const uint8_t* codes) {
    constexpr int shift = code_shift(step < 4 ? 2 * step : 2 * step - 7);
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    if constexpr (shift > 0) v = _mm256_srli_epi32(v, shift);
    if constexpr (shift < 28) v = _mm256_and_si256(v, _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(v);
  }
  static Row broadcast(const uint32_t* x) { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(*x))); }
  static Acc mac(Acc acc, Word w, Row x) { return _mm256_fmadd_ps(w, x, acc); }
  static Acc load_bf16(const uint8_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static Acc load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm256_storeu_ps(p, v); }
  static Acc splat(float f) { return _mm256_set1_ps(f); }
  static Acc fma(Acc a, Acc b, Acc c) { return _mm256_fmadd_ps(a, b, c); }
  static void store_bf16(bf16* to, const float* from, int64_t count) { store_rounded(to, from, count); }
};

void pack_group(const Activations& a, const Shape& shape, int64_t first, int64_t rows, int64_t g, uint32_t* packed, float* sums) {
  pack_floats(a, shape, first, rows, g, packed);
  sum_groups(a, shape, first, rows, g, sums);
}

constexpr Variant kVariant{"avx2", Isa::kMaxRows, Isa::kSteps, pack_group, block<Isa>};

}  // namespace

const Variant* avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kVariant : nullptr; }

}  // namespace cpu_int4
