// Who does what: rows into strips, strips packed, blocks shared out among the threads.
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernel.h"

namespace cpu_int4 {

const Variant* best_variant() {
  for (const Variant* v : {avx512_bf16(), avx512(), avx2()})
    if (v) return v;
  return scalar();
}

const Variant* variant_by_name(const char* name) {
  for (const Variant* v : {avx512_bf16(), avx512(), avx2(), scalar()})
    if (v && std::strcmp(v->name, name) == 0) return v;
  return nullptr;
}

namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The calling thread's buffer, kept: a fresh one of 6 MB costs page faults that the product of 512 rows does not hide.
class Scratch {
 public:
  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      data_.reset();  // first, so that the two are never held together
      data_.reset(static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(ceil_div(bytes, 64) * 64))));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
      size_ = bytes;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t size_ = 0;
};

// Rows [0, rows) of one chunk cut into strips of equal size, give or take a row: 17 rows are 9 + 8, not 12 + 5.
struct Cut {
  int64_t rows, strips;

  int64_t first(int64_t s) const { return s * (rows / strips) + std::min(s, rows % strips); }
  int64_t size(int64_t s) const { return first(s + 1) - first(s); }
};

// Where strip s of a chunk lies in scratch: words for all rows before it, and behind all words the sums likewise.
struct Buffers {
  uint32_t* words;
  float* sums;
  int64_t words_a_row, groups;

  Buffers(void* scratch, int64_t rows, int64_t words_a_row, int64_t groups)
      : words(static_cast<uint32_t*>(scratch)),
        sums(reinterpret_cast<float*>(words + rows * words_a_row)),
        words_a_row(words_a_row),
        groups(groups) {}
  uint32_t* words_of(int64_t row) const { return words + row * words_a_row; }
  float* sums_of(int64_t row) const { return sums + row * groups; }
  // The buffers of one thread among many of `rows` rows each; 64 bytes apart at least, so that no line is shared.
  Buffers of_thread(int64_t thread, int64_t rows) const {
    return {words + thread * words_of_thread(rows), rows, words_a_row, groups};
  }
  int64_t words_of_thread(int64_t rows) const { return ceil_div(rows * (words_a_row + groups), 16) * 16 + 16; }
};

struct Range {
  int64_t begin, end;
};

Range share(int64_t count, int64_t part, int64_t parts) { return {count * part / parts, count * (part + 1) / parts}; }

// In how many parts the strips are cut, so that blocks x parts keep all threads busy: the fewest with at most a
// sixteenth of the time idle. One where there are many blocks to a thread: then each block is read by one thread only.
int64_t row_parts(int64_t blocks, int64_t strips, int64_t threads) {
  for (int64_t parts = 1; parts < strips; ++parts) {
    const int64_t rounds = ceil_div(blocks * parts, threads) * threads;
    if (16 * (rounds - blocks * parts) <= rounds) return parts;
  }
  return strips;
}

// Activations that one pass over the blocks multiplies. They are read once a block and must still lie in the second-level
// cache then, with a block's weights beside them (68 KiB at K = 2048, 221 at 6656): with all 512 rows in one pass
// they came from the third level, 6 to 8 % slower at 512 rows (1 MiB of second level; CPU time on a busy host). Weights are
// read once a pass instead, 0.53 bytes each, which the memory brings in a twentieth of the time of the products.
constexpr int64_t kPassBytes = int64_t{512} << 10;

void blocks_of_thread(const Variant& v, const Weights& w, const Outputs& y, const Cut& cut, const Buffers& b, int64_t thread,
                      int64_t threads) {
  const int64_t parts = row_parts(w.shape.blocks(), cut.strips, threads);
  const Range items = share(w.shape.blocks() * parts, thread, threads);
  const int64_t pass = std::max(int64_t{1}, kPassBytes / (4 * b.words_a_row * cut.size(0)));
  for (int64_t begin = 0; begin < cut.strips; begin += pass)
    for (int64_t item = items.begin; item < items.end; ++item) {
      const Range strips = share(cut.strips, item % parts, parts);
      const int64_t end = std::min(strips.end, begin + pass);
      for (int64_t s = std::max(strips.begin, begin); s < end; ++s) {
        const int64_t row = cut.first(s);
        v.block(w, item / parts, Strip{row, cut.size(s), b.words_of(row), b.sums_of(row)}, y);
      }
    }
}

// Inputs that every thread packs for itself rather than wait for the others: 32768 take 2 us, as much as a barrier of
// 2 threads; and where other processes want the cores, a thread that waits at a barrier waits for a time slice.
constexpr int64_t kAlone = 32768;

void pack_groups(const Variant& v, const Weights& w, const Activations& a, const Cut& cut, const Buffers& b, Range work) {
  const int64_t groups = w.shape.groups();
  for (int64_t i = work.begin; i < work.end; ++i) {
    const int64_t row = cut.first(i / groups);
    v.pack_group(a, w.shape, row, cut.size(i / groups), i % groups, b.words_of(row), b.sums_of(row));
  }
}

void chunk(const Variant& v, const Weights& w, const Activations& a, const Outputs& y, const Buffers& shared, bool alone) {
  const Cut cut{a.rows, ceil_div(a.rows, v.max_rows)};
  const int64_t all = cut.strips * w.shape.groups();
#pragma omp parallel
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const Buffers b = alone ? shared.of_thread(thread, a.rows) : shared;
    pack_groups(v, w, a, cut, b, alone ? Range{0, all} : share(all, thread, threads));
    if (!alone) {
#pragma omp barrier
    }
    blocks_of_thread(v, w, y, cut, b, thread, threads);
  }
}

}  // namespace

void linear(const Variant& v, const Weights& w, const Activations& a, const Outputs& y) {
  thread_local Scratch scratch;
  const int64_t words_a_row = w.shape.k / kUnitInputs * v.steps, groups = w.shape.groups();
  const int64_t bytes_a_row = 4 * (words_a_row + groups);
  const int64_t most = std::max(v.max_rows, kScratchBytes / bytes_a_row / v.max_rows * v.max_rows);
  const bool alone = a.rows * w.shape.k <= kAlone;
  for (int64_t first = 0; first < a.rows; first += most) {
    const int64_t rows = std::min(most, a.rows - first);
    const int64_t copies = alone ? omp_get_max_threads() : 1;
    const Buffers buffers(scratch.at_least(copies * (rows * bytes_a_row + 128)), rows, words_a_row, groups);
    chunk(v, w, {a.x + first * a.stride, a.stride, rows}, {y.y + first * y.stride, y.stride, y.bias}, buffers, alone);
  }
}

}  // namespace cpu_int4
