// The tile: R rows x C vectors of channels over all groups, for any instruction set. Included once by each variant's
// translation unit, which brings a trait `Isa` (anonymous namespace: nothing here is seen by the linker).
//
//   Isa::kWidth     fp32 lanes of a vector (16 or 8)
//   Isa::kSteps     steps of a unit: 4 (each a pair of inputs) or 8
//   Isa::kOffset    w = (code + kOffset) as decoded: what the decoding adds to q, taken out again with the group's sum
//   Isa::kMaxRows   largest strip;  Isa::columns(rows): vectors of channels in its tile
//   Isa::Acc, Word, Row   accumulator, decoded weights, one row's activation broadcast
//   zero(), decode<step>(const uint8_t*), broadcast(const uint32_t*), mac(Acc, Word, Row),
//   load_bf16(const uint8_t*), load(const float*), store(float*, Acc), splat(float), fma(Acc, Acc, Acc) = a * b + c,
//   store_bf16(bf16*, const float*, count)   rounds one row of a block; `store_rounded` below serves where nothing does better
//
// A group is summed in its own accumulators as sum x * (q + kOffset), then y += s * sum + (z - (8 + kOffset) * s) * sum x
// in fp32. Each output's operations and their order are the same in every tile shape, so a row's result does not depend
// on its neighbours, to the bit.
#pragma once

#include "convert.h"
#include "kernel.h"

namespace cpu_int4 {
namespace {

// How far ahead of the codes in use the next ones are asked for. With 1, 2, 4 and 8 KiB one row ran at 84, 90, 98 and
// 105 % of a plain read loop's bandwidth (one thread of a 2-core Zen 5 host); it crosses pages, which hardware
// prefetchers do not.
constexpr uintptr_t kPrefetchBytes = 8192;

inline void prefetch(const uint8_t* p) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + kPrefetchBytes), 0, 3);
}

inline void store_rounded(bf16* to, const float* from, int64_t count) {
  for (int64_t c = 0; c < count; ++c) to[c] = to_bf16(from[c]);
}

template <class Isa, int R, int C>
struct Tile {
  static constexpr int64_t kVectorBytes = Isa::kWidth * 4;  // of a unit row of codes, 4 bytes a channel
  typename Isa::Acc acc[R][C];

  template <int step>
  __attribute__((always_inline)) void one_step(const uint8_t* codes, const uint32_t* x) {
    typename Isa::Word w[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) w[c] = Isa::template decode<step>(codes + c * kVectorBytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename Isa::Row row = Isa::broadcast(x + step * R + r);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) acc[r][c] = Isa::mac(acc[r][c], w[c], row);
    }
  }

  __attribute__((always_inline)) void one_unit(const uint8_t* codes, const uint32_t* x) {
#pragma GCC unroll 16
    for (int64_t line = 0; line < C * kVectorBytes; line += 64) prefetch(codes + line);
    one_step<0>(codes, x);
    one_step<1>(codes, x);
    one_step<2>(codes, x);
    one_step<3>(codes, x);
    if constexpr (Isa::kSteps == 8) {
      one_step<4>(codes, x);
      one_step<5>(codes, x);
      one_step<6>(codes, x);
      one_step<7>(codes, x);
    }
  }

  // out[r][c] += scale * acc + corrected zero * sum of x. scales and zeros: the record's, at this tile's first channel.
  __attribute__((always_inline)) void finish_group(const uint8_t* scales, const uint8_t* zeros, const float* sums, float* out) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const auto s = Isa::load_bf16(scales + c * Isa::kWidth * 2);
      const auto z = Isa::fma(s, Isa::splat(-(8.0f + Isa::kOffset)), Isa::load_bf16(zeros + c * Isa::kWidth * 2));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float* o = out + r * kBlock + c * Isa::kWidth;
        Isa::store(o, Isa::fma(z, Isa::splat(sums[r]), Isa::fma(s, acc[r][c], Isa::load(o))));
      }
    }
  }
};

// Channels [first, first + C * kWidth) of a block of u units, all groups. out [R][kBlock] fp32, at the tile's first channel.
template <class Isa, int R, int C>
__attribute__((noinline)) void tile(const uint8_t* record, int64_t u, int64_t first, const Shape& shape, const uint32_t* x,
                                    const float* sums, float* out) {
  const int64_t rows_of_units = shape.group / kUnitInputs;
  const int64_t record_bytes = u * shape.unit_group_bytes();
  for (int64_t g = 0; g < shape.groups(); ++g, record += record_bytes, sums += R) {
    Tile<Isa, R, C> t;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) t.acc[r][c] = Isa::zero();
    const uint8_t* codes = record + codes_offset(u) + first * 4;
    for (int64_t i = 0; i < rows_of_units; ++i, codes += u * kUnitBytes, x += Isa::kSteps * R) t.one_unit(codes, x);
    // Without this, GCC reads all of `out` before the loop and spills it: 70 moves a group instead of 24 loads.
    asm volatile("" ::: "memory");
    t.finish_group(record + first * 2, record + (kLanes * u + first) * 2, sums, out);
  }
}

// A block's channels in tiles of C vectors while they fit, then of half as many.
template <class Isa, int R, int C>
int64_t tiles_from(int64_t first, const uint8_t* record, int64_t u, const Shape& shape, const Strip& a, float* out) {
  for (; first + C * Isa::kWidth <= u * kLanes; first += C * Isa::kWidth)
    tile<Isa, R, C>(record, u, first, shape, a.packed, a.sums, out + first);
  if constexpr (C > 1) return tiles_from<Isa, R, C / 2>(first, record, u, shape, a, out);
  return first;
}

// out[r][c] = bias of channel c, or 0: where the sums start.
inline void start_block(float* out, int64_t rows, const bf16* bias, int64_t channels) {
  for (int64_t c = 0; c < kBlock; ++c) out[c] = bias && c < channels ? to_float(bias[c]) : 0.0f;
  for (int64_t r = 1; r < rows; ++r) std::memcpy(out + r * kBlock, out, sizeof(float) * kBlock);
}

template <class Isa, int R>
void block_rows(const Weights& w, int64_t b, const Strip& a, const Outputs& y) {
  alignas(64) float out[R * kBlock];
  const int64_t first = b * kBlock, left = w.shape.n - first, channels = left < kBlock ? left : kBlock;
  // Asks for the lines that the results will take, 128 bytes in each of R far apart rows. Asked for only when written,
  // they held up the next strip's stores: 272 instead of 255 us a block at 512 rows (CPU time on a busy host).
  for (int64_t r = 0; r < R; ++r)
    for (int64_t c = 0; c < channels; c += 32) __builtin_prefetch(y.y + (a.first + r) * y.stride + first + c, 1, 3);
  start_block(out, R, y.bias ? y.bias + first : nullptr, channels);
  tiles_from<Isa, R, Isa::columns(R)>(0, w.packed + w.shape.block_offset(b), w.shape.units_of(b), w.shape, a, out);
  for (int64_t r = 0; r < R; ++r) Isa::store_bf16(y.y + (a.first + r) * y.stride + first, out + r * kBlock, channels);
}

template <class Isa, int R = 1>
void block(const Weights& w, int64_t b, const Strip& a, const Outputs& y) {
  if (a.rows == R) return block_rows<Isa, R>(w, b, a, y);
  if constexpr (R < Isa::kMaxRows) block<Isa, R + 1>(w, b, a, y);
}

// Sum of one row over one group, in 8 partial sums.
inline float sum_of(const bf16* x, int64_t count) {
  float part[8] = {};
  for (int64_t k = 0; k < count; k += 8)
    for (int i = 0; i < 8; ++i) part[i] += to_float(x[k + i]);
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

inline uint32_t bits_of(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// Rows as fp32, inputs in the order of a unit's nibbles: 0 2 4 6 1 3 5 7.
inline void pack_floats(const Activations& a, const Shape& shape, int64_t first, int64_t rows, int64_t g, uint32_t* packed) {
  uint32_t* to = packed + g * shape.group * rows;
  for (int64_t k = g * shape.group; k < (g + 1) * shape.group; k += kUnitInputs)
    for (int i = 0; i < 8; ++i)
      for (int64_t r = 0; r < rows; ++r)
        *to++ = bits_of(to_float(a.x[(first + r) * a.stride + k + (i < 4 ? 2 * i : 2 * i - 7)]));
}

inline void sum_groups(const Activations& a, const Shape& shape, int64_t first, int64_t rows, int64_t g, float* sums) {
  for (int64_t r = 0; r < rows; ++r) sums[g * rows + r] = sum_of(a.x + (first + r) * a.stride + g * shape.group, shape.group);
}

}  // namespace
}  // namespace cpu_int4
