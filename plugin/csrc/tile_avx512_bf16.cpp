// AVX-512 with bf16 dot products (Cooper Lake, Sapphire Rapids, Zen 4 and later).
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")
#include <immintrin.h>

#include "tile.inl.h"

namespace cpu_int4 {
namespace {

struct Isa {
  static constexpr int kWidth = 16, kSteps = 4, kMaxRows = 12;
  // 0x4300 | q is the bf16 128 + q, exactly: the codes need no table and no subtraction, the group's sum takes 128 out.
  static constexpr float kOffset = 128.0f;
  using Acc = __m512;
  using Word = __m512i;
  using Row = __m512bh;

  // 32 registers: 24 accumulators, the rest decoded weights, one row, two constants. Two vectors by up to 12 rows
  // decode each weight once for 12 rows and load one activation for two products. Up to 6 rows, two vectors would be at
  // most 12 chains of dependent products, too few for 2 a cycle of latency 6: four vectors then (5 rows: 496 against
  // 280, 6 rows 500 against 400 of 550 GFLOP/s; 8 rows by two vectors 512, 12 rows 506; one thread, Zen 5).
  static constexpr int columns(int rows) { return rows <= 6 ? 4 : 2; }

  static Acc zero() { return _mm512_setzero_ps(); }
  template <int step>
  static Word decode(const uint8_t* codes) {
    __m512i v = _mm512_loadu_si512(codes);
    if constexpr (step > 0) v = _mm512_srli_epi16(v, 4 * step);
    // (v & 0x000f) | 0x4300 in one instruction: 0xEA is the truth table of (a & b) | c.
    return _mm512_ternarylogic_epi32(v, _mm512_set1_epi16(0x000f), _mm512_set1_epi16(0x4300), 0xEA);
  }
  static Row broadcast(const uint32_t* x) { return reinterpret_cast<Row>(_mm512_set1_epi32(static_cast<int>(*x))); }
  static Acc mac(Acc acc, Word w, Row x) { return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), x); }
  static Acc load_bf16(const uint8_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static Acc load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Acc v) { _mm512_storeu_ps(p, v); }
  static Acc splat(float f) { return _mm512_set1_ps(f); }
  static Acc fma(Acc a, Acc b, Acc c) { return _mm512_fmadd_ps(a, b, c); }
  // One instruction for 16 values where plain C++ takes a dozen: 1 % of 512 rows. It takes denormals for zero.
  static void store_bf16(bf16* to, const float* from, int64_t count) {
    for (int64_t c = 0; c < count; c += kWidth) {
      const __mmask16 mask = count - c < kWidth ? static_cast<__mmask16>((1u << (count - c)) - 1) : __mmask16{0xffff};
      _mm256_mask_storeu_epi16(to + c, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(from + c))));
    }
  }
};

// Transposes 16 rows of 16 words in registers: v[i] lane j becomes v[j] lane i.
inline void transpose(__m512i v[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Sum of x as products with 1: 32 values an instruction. In plain C++ the sums took most of the time of packing.
inline float sum_with_products(const bf16* x, int64_t count) {
  const __m512bh one = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
  __m512 sum = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + 32 <= count; k += 32) sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_loadu_si512(x + k)), one);
  if (k < count) {
    const auto rest = static_cast<__mmask32>((1u << (count - k)) - 1);
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(rest, x + k)), one);
  }
  return _mm512_reduce_add_ps(sum);
}

// Pairs (k, k+1) as 32-bit words, [K/2][rows]: a transpose of words. Sixteen pairs at a time in registers: a word-wise
// loop takes 1.6 % of the time of a 2048 x 2048 product, this takes a quarter of that.
void pack_group(const Activations& a, const Shape& shape, int64_t first, int64_t rows, int64_t g, uint32_t* packed, float* sums) {
  const int64_t pairs = shape.group / 2;
  uint32_t* to = packed + g * pairs * rows;
  int64_t p = 0;
  for (; p + 16 <= pairs; p += 16) {
    __m512i v[16];
    for (int64_t r = 0; r < 16; ++r)
      v[r] = r < rows ? _mm512_loadu_si512(a.x + (first + r) * a.stride + g * shape.group + 2 * p) : _mm512_setzero_si512();
    transpose(v);
    // A store writes 16 words of which `rows` count; the next one overwrites the others. Near the group's end, where the
    // words behind may be another thread's, only those that count are written.
    const auto count = static_cast<__mmask16>((1u << rows) - 1);
    for (int64_t i = 0; i < 16; ++i) {
      uint32_t* word = to + (p + i) * rows;
      if ((pairs - p - i) * rows >= 16)
        _mm512_storeu_si512(word, v[i]);
      else
        _mm512_mask_storeu_epi32(word, count, v[i]);
    }
  }
  for (; p < pairs; ++p)
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + p * rows + r, a.x + (first + r) * a.stride + g * shape.group + 2 * p, 4);
  for (int64_t r = 0; r < rows; ++r) sums[g * rows + r] = sum_with_products(a.x + (first + r) * a.stride + g * shape.group, shape.group);
}

constexpr Variant kVariant{"avx512_bf16", Isa::kMaxRows, Isa::kSteps, pack_group, block<Isa>};

}  // namespace

const Variant* avx512_bf16() {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bf16");
  return runs ? &kVariant : nullptr;
}

}  // namespace cpu_int4
