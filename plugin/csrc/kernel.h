// The kernel's interface: raw pointers, no torch. M rows of activations, K inputs, N output channels, G inputs a group.
#pragma once

#include <cstdint>

#include "format.h"

namespace cpu_int4 {

using bf16 = uint16_t;  // bit pattern of a bfloat16: the upper half of an fp32

struct Weights {
  const uint8_t* packed;  // shape.bytes() bytes in the format of format.h; aligned to 64 for speed, not for correctness
  Shape shape;
};

struct Activations {
  const bf16* x;   // [M, K], inputs contiguous
  int64_t stride;  // elements from one row to the next, at least K
  int64_t rows;    // M
};

struct Outputs {
  bf16* y;           // [M, N], channels contiguous
  int64_t stride;    // elements from one row to the next, at least N
  const bf16* bias;  // [N], or null
};

// The rows of one strip, packed for the tiles: what a tile reads besides weights.
struct Strip {
  int64_t first, rows;    // rows [first, first + rows) of the activations
  const uint32_t* packed; // [K/8][steps][rows] words of 32 bits: `steps` is the variant's (two bf16, or one fp32)
  const float* sums;      // [K/G][rows] sum of x over each group
};

// One instruction set's implementation. All give the same answer within the rounding of fp32 sums; within one variant
// a row's answer does not depend on the other rows or on the number of threads, to the bit.
struct Variant {
  const char* name;
  int64_t max_rows;  // rows of the largest strip
  int64_t steps;     // words of 32 bits for 8 inputs of a row
  // Packs group g of the strip's rows and writes its sums, and nothing else: groups may be packed by different threads.
  // `packed` and `sums` point to the strip's own buffers.
  void (*pack_group)(const Activations&, const Shape&, int64_t first, int64_t rows, int64_t g, uint32_t* packed, float* sums);
  // y[first.., 64b .. 64(b+1)) for one strip and one block.
  void (*block)(const Weights&, int64_t b, const Strip&, const Outputs&);
};

// Best first; null where the CPU (or the operating system) lacks what a variant needs.
const Variant* avx512_bf16();
const Variant* avx512();
const Variant* avx2();
const Variant* scalar();
const Variant* best_variant();
const Variant* variant_by_name(const char* name);  // null if unknown or not runnable here

// y = x W^T + bias, on the calling thread's OpenMP team. Scratch is the calling thread's own and is kept between calls:
// at most kScratchBytes plus one strip, or for few rows 256 KiB a thread.
void linear(const Variant&, const Weights&, const Activations&, const Outputs&);
constexpr int64_t kScratchBytes = int64_t{8} << 20;

// The same in plain C++ and double, not rounded to bf16: what the variants are tested against. y [M, N], contiguous.
void linear_reference(const Weights&, const Activations&, const bf16* bias, double* y);

// Checkpoint to packed, channels [first, first + count): codes [count, K/2] (low nibble even k), scales and zeros
// [count, K/G], all row-major and contiguous. Writes these channels' lanes only, so the parts of a fused matrix can be
// packed one after the other, wherever they meet inside a block. `packed` must start as zero bytes (its padding).
void pack(const uint8_t* codes, const bf16* scales, const bf16* zeros, const Shape&, int64_t first, int64_t count, uint8_t* packed);
// Packed back to the checkpoint's three tensors, all N channels.
void unpack(const Weights&, uint8_t* codes, bf16* scales, bf16* zeros);
// rows[i] = W[ids[i]] rounded to bf16, [count, K] contiguous. Every id must lie in [0, N).
void embed(const Weights&, const int64_t* ids, int64_t count, bf16* rows);
// columns[k][n - begin] = W[n][k] for n in [begin, end), rounded to bf16: [K, end - begin]. begin: a multiple of 64.
void dequantize_columns(const Weights&, int64_t begin, int64_t end, bf16* columns);

}  // namespace cpu_int4
