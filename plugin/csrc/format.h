// The packed weight format, version 1 ("lane-major nibbles"), and the arithmetic of its offsets. Knows no torch.
//
// A weight matrix W [N, K] (N output channels, K inputs) is stored as 4-bit codes q with a scale s and a zero z for
// each channel and group of G inputs:   W[n][k] = (q - 8) * s + z,   s and z bfloat16, arithmetic in fp32.
//
//   unit    64 bytes: 16 channels x 8 inputs. The 32-bit little-endian word of lane c belongs to channel c; nibble i of
//           its low half (bits 4i..4i+3) is input 2i, nibble i of its high half (bits 16+4i..) is input 2i+1, i = 0..3.
//   record  one block of up to 64 channels x one group:  16u scales (bf16) | 16u zeros (bf16) | G/8 rows of u units,
//           u = number of units side by side: 4, in the last block ceil(rest / 16). Size u * (64 + 8G) bytes.
//   buffer  records [block][group], blocks of 64 channels, nothing between them. Channels are padded to 16, never to 64:
//           N = 80 takes 5 units. Padding lanes are zero bytes, weights of 0. Size ceil(N/16) * (K/G) * (64 + 8G) bytes.
//
// Offsets are in bytes. Every unit starts on a multiple of 64 bytes if the buffer does. K must be a multiple of G, and
// G of 8. Bits a weight: 4 + 32/G, the checkpoint's own, so nothing is lost or duplicated by packing.
//
// Why so: one load brings the codes of 16 lanes in the order in which `vdpbf16ps` wants them, pairs (k, k+1) of one
// channel in one 32-bit lane. A shift by 0, 4, 8 or 12 and one `vpternlogd` make 32 bf16 out of them: 7 instructions
// for 128 weights, none a shuffle. Scales travel in the same stream as their codes: one stream a thread, no second one
// for the prefetcher to find.
// Rejected: tinygemm's [N/64][K][32 B] needs two byte permutes and one more shift for the same 128 weights, expands to
// int32 to be packed, pads or refuses N that 16 does not divide, and depends on the instruction set that torch chose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cpu_int4 {

constexpr int64_t kLanes = 16;                        // channels in a unit: fp32 lanes of a 512-bit register
constexpr int64_t kUnitInputs = 8;                    // inputs in a unit: nibbles of a 32-bit lane
constexpr int64_t kUnitBytes = 64;                    // kLanes * kUnitInputs / 2
constexpr int64_t kBlockUnits = 4;                    // units side by side in a full block
constexpr int64_t kBlock = kLanes * kBlockUnits;      // channels in a full block

struct Shape {
  int64_t n;      // output channels N, any positive number
  int64_t k;      // inputs K, a multiple of group
  int64_t group;  // inputs that share a scale and a zero, a multiple of 8

  constexpr bool valid() const { return n > 0 && k > 0 && group > 0 && group % kUnitInputs == 0 && k % group == 0; }
  constexpr int64_t groups() const { return k / group; }
  constexpr int64_t units() const { return (n + kLanes - 1) / kLanes; }
  constexpr int64_t blocks() const { return (n + kBlock - 1) / kBlock; }
  constexpr int64_t unit_group_bytes() const { return kUnitBytes + kUnitInputs * group; }  // one unit's share of a record
  constexpr int64_t bytes() const { return units() * groups() * unit_group_bytes(); }
  // Units side by side in block b: 4, or what is left in the last one.
  constexpr int64_t units_of(int64_t b) const {
    const int64_t left = units() - b * kBlockUnits;
    return left < kBlockUnits ? left : kBlockUnits;
  }
  constexpr int64_t block_offset(int64_t b) const { return b * kBlockUnits * groups() * unit_group_bytes(); }
  constexpr int64_t record_bytes(int64_t b) const { return units_of(b) * unit_group_bytes(); }
  constexpr int64_t record_offset(int64_t b, int64_t g) const { return block_offset(b) + g * record_bytes(b); }
};

// Offset of the codes inside a record of u units: scales and zeros come first.
constexpr int64_t codes_offset(int64_t u) { return 2 * kLanes * u * int64_t{sizeof(uint16_t)}; }
// Bit position, inside its 32-bit lane, of input i (0..7) of a unit.
constexpr int code_shift(int i) { return 16 * (i % 2) + 4 * (i / 2); }

}  // namespace cpu_int4
