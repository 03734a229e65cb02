// The kernel without torch: every variant this CPU runs against the double reference, with buffers of exactly the size
// they need, so that a sanitizer sees the first byte too many. Exit code 0 and one line a variant, or 1 and the worst
// element. `make -C plugin/csrc test` and `make -C plugin/csrc sanitize` run it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "convert.h"
#include "kernel.h"

using namespace cpu_int4;

namespace {

int failures = 0;

void check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  ++failures;
}

struct Matrix {
  Shape shape;
  std::vector<uint8_t> codes;
  std::vector<bf16> scales, zeros, bias;
  std::vector<uint8_t> packed;

  Matrix(Shape s, std::mt19937& random) : shape(s), codes(s.n * s.k / 2), packed(s.bytes()) {
    std::normal_distribution<float> normal;
    for (auto& c : codes) c = static_cast<uint8_t>(random());
    for (int64_t i = 0; i < s.n * s.groups(); ++i) {
      scales.push_back(to_bf16(0.01f * (1.0f + std::fabs(normal(random)))));
      zeros.push_back(to_bf16(0.02f * normal(random)));
    }
    for (int64_t i = 0; i < s.n; ++i) bias.push_back(to_bf16(normal(random)));
    // In two parts that meet anywhere inside a block, as those of a fused matrix do.
    const int64_t cut = s.n * 2 / 5;
    if (cut) pack(codes.data(), scales.data(), zeros.data(), shape, 0, cut, packed.data());
    pack(codes.data() + cut * s.k / 2, scales.data() + cut * s.groups(), zeros.data() + cut * s.groups(), shape, cut, s.n - cut,
         packed.data());
  }
  Weights weights() const { return {packed.data(), shape}; }
};

// What fp32 sums may be off by, for one output: every group adds G products of at most (15 + 136) |x| s, each addition
// rounding by 2^-24 of the running sum; scale, zero and the sum over groups add a few roundings of the group's result.
double sum_error(const Matrix& m, const bf16* x, int64_t n) {
  double bound = 0;
  for (int64_t g = 0; g < m.shape.groups(); ++g) {
    double absolute = 0;
    for (int64_t k = g * m.shape.group; k < (g + 1) * m.shape.group; ++k) absolute += std::fabs(to_float(x[k]));
    const double s = to_float(m.scales[n * m.shape.groups() + g]), z = std::fabs(to_float(m.zeros[n * m.shape.groups() + g]));
    bound += static_cast<double>(m.shape.group + m.shape.groups() + 8) * std::ldexp(1.0, -24) * absolute * (151 * s + z);
  }
  return bound;
}

double worst = 0;  // largest error over tolerance so far

void compare(const Variant& v, const Matrix& m, int64_t rows, int64_t x_gap, int64_t y_gap, bool bias, std::mt19937& random) {
  const int64_t x_stride = m.shape.k + x_gap, y_stride = m.shape.n + y_gap;
  std::normal_distribution<float> normal;
  std::vector<bf16> x((rows - 1) * x_stride + m.shape.k), y((rows - 1) * y_stride + m.shape.n, 0x1234);
  std::vector<double> expected(rows * m.shape.n);
  for (auto& value : x) value = to_bf16(normal(random));
  const Activations a{x.data(), x_stride, rows};
  const bf16* b = bias ? m.bias.data() : nullptr;
  linear(v, m.weights(), a, {y.data(), y_stride, b});
  linear_reference(m.weights(), a, b, expected.data());
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<bf16> alone(m.shape.n);
    linear(v, m.weights(), {a.x + r * x_stride, x_stride, 1}, {alone.data(), m.shape.n, b});
    for (int64_t n = 0; n < y_stride; ++n) {
      const int64_t at = r * y_stride + n;
      if (n >= m.shape.n) {
        if (r + 1 < rows) check(y[at] == 0x1234, "a byte between rows was written");
        continue;
      }
      const double got = to_float(y[at]), want = expected[r * m.shape.n + n];
      // Rounding to the 8 significant bits of bf16 costs at most 2^-8 of the value.
      const double tolerance = std::ldexp(std::fabs(want), -8) + sum_error(m, x.data() + r * x_stride, n);
      worst = std::fmax(worst, std::fabs(got - want) / tolerance);
      if (!(std::fabs(got - want) <= tolerance)) {
        std::fprintf(stderr, "%s N %ld K %ld G %ld rows %ld: y[%ld][%ld] = %g, expected %g +- %g\n", v.name, m.shape.n, m.shape.k,
                     m.shape.group, rows, r, n, got, want, tolerance);
        ++failures;
      }
      check(alone[n] == y[at], "a row alone differs from the same row in a batch");
    }
  }
}

void check_variant(const Variant& v, std::mt19937& random) {
  worst = 0;
  for (const Shape shape : {Shape{64, 128, 128}, Shape{80, 256, 128}, Shape{1, 64, 32}, Shape{17, 96, 32}, Shape{191, 256, 64},
                            Shape{129, 512, 256}, Shape{33, 48, 16}, Shape{70, 40, 8}, Shape{4304, 64, 64}}) {
    const Matrix m(shape, random);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 25, 40}) {
      if (shape.n > 1000 && rows > 2) continue;  // the reference is slow
      compare(v, m, rows, rows % 3, rows % 2, rows % 2 == 0, random);
    }
  }
  std::printf("%-12s worst error %.3f of its tolerance\n", v.name, worst);
}

void check_packing(std::mt19937& random) {
  for (const Shape shape : {Shape{64, 128, 128}, Shape{80, 256, 32}, Shape{1, 8, 8}, Shape{100, 512, 256}}) {
    const Matrix m(shape, random);
    std::vector<uint8_t> codes(m.codes.size());
    std::vector<bf16> scales(m.scales.size()), zeros(m.zeros.size());
    unpack(m.weights(), codes.data(), scales.data(), zeros.data());
    check(codes == m.codes && scales == m.scales && zeros == m.zeros, "unpack(pack(w)) is not w");
    std::vector<int64_t> ids;
    for (int64_t n = shape.n - 1; n >= 0; --n) ids.push_back(n);
    std::vector<bf16> rows(shape.n * shape.k), columns(shape.n * shape.k);
    embed(m.weights(), ids.data(), shape.n, rows.data());
    dequantize_columns(m.weights(), 0, shape.n, columns.data());
    for (int64_t n = 0; n < shape.n; ++n)
      for (int64_t k = 0; k < shape.k; ++k) {
        const int q = m.codes[n * shape.k / 2 + k / 2] >> (k % 2 * 4) & 15;
        const int64_t at = n * shape.groups() + k / shape.group;
        const bf16 want = to_bf16(static_cast<float>(q - 8) * to_float(m.scales[at]) + to_float(m.zeros[at]));
        check(rows[(shape.n - 1 - n) * shape.k + k] == want, "embed: not w = (q - 8) * s + z");
        check(columns[k * shape.n + n] == want, "dequantize_columns: not w = (q - 8) * s + z");
      }
  }
}

}  // namespace

int main() {
  std::mt19937 random(20251201);
  check_packing(random);
  for (const char* name : {"avx512_bf16", "avx512", "avx2", "scalar"}) {
    if (const Variant* v = variant_by_name(name))
      check_variant(*v, random);
    else
      std::printf("%-12s not runnable on this CPU\n", name);
  }
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
