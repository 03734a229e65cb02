// No instruction set assumed: plain C++ in the same tile, for hosts without AVX2 and for debugging.
#include "tile.inl.h"

namespace cpu_int4 {
namespace {

struct Isa {
  static constexpr int kWidth = 16, kSteps = 8, kMaxRows = 4;
  static constexpr float kOffset = -8.0f;
  struct Acc {
    float lane[kWidth];
  };
  using Word = Acc;
  using Row = float;

  static constexpr int columns(int) { return 1; }

  static Acc zero() { return Acc{}; }
  template <int step>
  static Word decode(const uint8_t* codes) {
    constexpr int shift = code_shift(step < 4 ? 2 * step : 2 * step - 7);
    Word w;
    for (int i = 0; i < kWidth; ++i) {
      uint32_t lane;
      std::memcpy(&lane, codes + 4 * i, 4);
      w.lane[i] = static_cast<float>(static_cast<int>((lane >> shift) & 15u) - 8);
    }
    return w;
  }
  static Row broadcast(const uint32_t* x) {
    float f;
    std::memcpy(&f, x, 4);
    return f;
  }
  static Acc mac(Acc acc, const Word& w, Row x) {
    for (int i = 0; i < kWidth; ++i) acc.lane[i] += w.lane[i] * x;
    return acc;
  }
  static Acc load_bf16(const uint8_t* p) {
    Acc v;
    for (int i = 0; i < kWidth; ++i) {
      uint16_t half;
      std::memcpy(&half, p + 2 * i, 2);
      v.lane[i] = to_float(half);
    }
    return v;
  }
  static Acc load(const float* p) {
    Acc v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, const Acc& v) { std::memcpy(p, &v, sizeof v); }
  static float splat(float f) { return f; }
  static Acc fma(const Acc& a, const Acc& b, Acc c) {
    for (int i = 0; i < kWidth; ++i) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
  }
  static Acc fma(const Acc& a, float b, Acc c) {
    for (int i = 0; i < kWidth; ++i) c.lane[i] += a.lane[i] * b;
    return c;
  }
  static void store_bf16(bf16* to, const float* from, int64_t count) { store_rounded(to, from, count); }
};

void pack_group(const Activations& a, const Shape& shape, int64_t first, int64_t rows, int64_t g, uint32_t* packed, float* sums) {
  pack_floats(a, shape, first, rows, g, packed);
  sum_groups(a, shape, first, rows, g, sums);
}

constexpr Variant kVariant{"scalar", Isa::kMaxRows, Isa::kSteps, pack_group, block<Isa>};

}  // namespace

const Variant* scalar() { return &kVariant; }

}  // namespace cpu_int4
