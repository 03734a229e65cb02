// Between the checkpoint's tensors and the packed format, and single rows out of it. Plain C++: read once a load, or a
// row a token.
#include <algorithm>
#include <cstring>

#include "convert.h"
#include "kernel.h"

namespace cpu_int4 {
namespace {

uint32_t load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Keeps the low nibble of each byte of v and closes the gaps: bytes 0..3 become nibbles 0..3 of 16 bits.
uint32_t gather_nibbles(uint32_t v) {
  v &= 0x0f0f0f0fu;
  v = (v | v >> 4) & 0x00ff00ffu;
  return (v | v >> 8) & 0xffffu;
}

uint32_t spread_nibbles(uint32_t v) {
  v = (v | v << 8) & 0x00ff00ffu;
  return (v | v << 4) & 0x0f0f0f0fu;
}

// Channel n's place: block b, lane c among the block's 16u.
struct Place {
  int64_t block, lane, units;

  Place(const Shape& s, int64_t n) : block(n / kBlock), lane(n % kBlock), units(s.units_of(n / kBlock)) {}
  int64_t scale(int64_t record) const { return record + 2 * lane; }
  int64_t zero(int64_t record) const { return record + 2 * (kLanes * units + lane); }
  int64_t code(int64_t record, int64_t row) const { return record + codes_offset(units) + row * units * kUnitBytes + 4 * lane; }
};

float weight(uint32_t lane, int input, float s, float z) {
  return static_cast<float>(static_cast<int>(lane >> code_shift(input) & 15u) - 8) * s + z;
}

struct GroupOfChannel {
  float s, z;
  const uint8_t* code;  // the lane's first word; the next one is `stride` bytes on
  int64_t stride;

  GroupOfChannel(const Weights& w, const Place& p, int64_t g) : stride(p.units * kUnitBytes) {
    const int64_t record = w.shape.record_offset(p.block, g);
    uint16_t half[2];
    std::memcpy(half, w.packed + p.scale(record), 2);
    std::memcpy(half + 1, w.packed + p.zero(record), 2);
    s = to_float(half[0]);
    z = to_float(half[1]);
    code = w.packed + p.code(record, 0);
  }
};

}  // namespace

void pack(const uint8_t* codes, const bf16* scales, const bf16* zeros, const Shape& shape, int64_t first, int64_t count,
          uint8_t* packed) {
  const int64_t groups = shape.groups(), words = shape.group / kUnitInputs, row_bytes = shape.k / 2;
#pragma omp parallel for schedule(static)
  for (int64_t b = first / kBlock; b <= (first + count - 1) / kBlock; ++b) {
    const int64_t begin = std::max(first, b * kBlock), end = std::min(first + count, (b + 1) * kBlock);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t record = shape.record_offset(b, g);
      for (int64_t n = begin; n < end; ++n) {
        const Place p(shape, n);
        std::memcpy(packed + p.scale(record), scales + (n - first) * groups + g, 2);
        std::memcpy(packed + p.zero(record), zeros + (n - first) * groups + g, 2);
      }
      // Row by row of units, lanes within: written in order, read from as many streams as there are lanes.
      for (int64_t word = 0; word < words; ++word) {
        const uint8_t* from = codes + (begin - first) * row_bytes + (g * words + word) * 4;
        uint8_t* to = packed + Place(shape, begin).code(record, word);
        for (int64_t n = begin; n < end; ++n, from += row_bytes, to += 4) {
          const uint32_t eight = load32(from);
          const uint32_t lane = gather_nibbles(eight) | gather_nibbles(eight >> 4) << 16;
          std::memcpy(to, &lane, 4);
        }
      }
    }
  }
}

void unpack(const Weights& w, uint8_t* codes, bf16* scales, bf16* zeros) {
  const Shape& shape = w.shape;
  const int64_t groups = shape.groups(), words = shape.group / kUnitInputs;
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < shape.n; ++n) {
    const Place p(shape, n);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t record = shape.record_offset(p.block, g);
      std::memcpy(scales + n * groups + g, w.packed + p.scale(record), 2);
      std::memcpy(zeros + n * groups + g, w.packed + p.zero(record), 2);
      for (int64_t word = 0; word < words; ++word) {
        const uint32_t lane = load32(w.packed + p.code(record, word));
        const uint32_t eight = spread_nibbles(lane & 0xffffu) | spread_nibbles(lane >> 16) << 4;
        std::memcpy(codes + n * (shape.k / 2) + (g * words + word) * 4, &eight, 4);
      }
    }
  }
}

void embed(const Weights& w, const int64_t* ids, int64_t count, bf16* rows) {
  const Shape& shape = w.shape;
  // A token's row is one 4-byte word in each of K/8 cache lines: about 6 us for K = 2048, too little to share out alone.
#pragma omp parallel for schedule(static) if (count > 1)
  for (int64_t i = 0; i < count; ++i) {
    const Place p(shape, ids[i]);
    bf16* out = rows + i * shape.k;
    for (int64_t g = 0; g < shape.groups(); ++g) {
      const GroupOfChannel group(w, p, g);
      for (int64_t word = 0; word < shape.group / kUnitInputs; ++word, out += kUnitInputs) {
        const uint32_t lane = load32(group.code + word * group.stride);
        for (int j = 0; j < kUnitInputs; ++j) out[j] = to_bf16(weight(lane, j, group.s, group.z));
      }
    }
  }
}

void dequantize_columns(const Weights& w, int64_t begin, int64_t end, bf16* columns) {
  const Shape& shape = w.shape;
  const int64_t width = end - begin;
#pragma omp parallel for schedule(static)
  for (int64_t g = 0; g < shape.groups(); ++g)
    for (int64_t n = begin; n < end; ++n) {
      const GroupOfChannel group(w, Place(shape, n), g);
      for (int64_t word = 0; word < shape.group / kUnitInputs; ++word) {
        const uint32_t lane = load32(group.code + word * group.stride);
        bf16* out = columns + (g * shape.group + word * kUnitInputs) * width + (n - begin);
        for (int j = 0; j < kUnitInputs; ++j) out[j * width] = to_bf16(weight(lane, j, group.s, group.z));
      }
    }
}

}  // namespace cpu_int4
