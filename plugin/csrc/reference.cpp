// The product as its definition reads, in double. Written from format.h's block comment alone and sharing no code with
// the tiles: what they are tested against.
#include "convert.h"
#include "kernel.h"

namespace cpu_int4 {

void linear_reference(const Weights& w, const Activations& a, const bf16* bias, double* y) {
  const Shape& s = w.shape;
  for (int64_t row = 0; row < a.rows; ++row)
    for (int64_t n = 0; n < s.n; ++n) {
      const int64_t b = n / 64, units = s.units_of(b), lane = n % 64;
      double total = bias ? static_cast<double>(to_float(bias[n])) : 0.0;
      for (int64_t k = 0; k < s.k; ++k) {
        const uint8_t* record = w.packed + b * 64 * s.groups() * (4 + s.group / 2) + k / s.group * units * (64 + 8 * s.group);
        const auto half_at = [record](int64_t byte) {
          return static_cast<double>(to_float(static_cast<uint16_t>(record[byte] | record[byte + 1] << 8)));
        };
        const int64_t in_group = k % s.group, nibble = in_group % 8 / 2;
        const uint8_t byte = record[64 * units + in_group / 8 * 64 * units + 4 * lane + in_group % 2 * 2 + nibble / 2];
        const int q = nibble % 2 ? byte >> 4 : byte & 15;
        total += static_cast<double>(to_float(a.x[row * a.stride + k])) * ((q - 8) * half_at(2 * lane) + half_at(32 * units + 2 * lane));
      }
      y[row * s.n + n] = total;
    }
}

}  // namespace cpu_int4
