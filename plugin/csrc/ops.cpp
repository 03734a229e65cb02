// The torch side: checks every argument, then hands raw pointers to the kernel. Nothing is read before the checks end.
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "amx.h"
#include "kernel.h"
#include "roofline.h"

namespace cpu_int4 {
namespace {

using at::Tensor;

// Calls by path, counted here so that they tell what ran and not what was asked for. Order: see native.py.
enum Path { kDecode, kMid, kPrefill, kOneDnn, kEmbedding, kPaths };
std::array<std::atomic<int64_t>, kPaths> calls{};

Path path_of(int64_t rows) { return rows <= 8 ? kDecode : rows < 64 ? kMid : kPrefill; }

const Variant* chosen_variant() {
  const char* name = std::getenv("CPU_INT4_ISA");
  if (!name || !*name) return best_variant();
  const Variant* v = variant_by_name(name);
  TORCH_CHECK(v, "CPU_INT4_ISA=", name, ": not an instruction set of this kernel that this CPU has; ",
              "supported: avx512_bf16, avx512, avx2, scalar; unset it to take the best one");
  return v;
}

std::atomic<const Variant*>& current_variant() {
  static std::atomic<const Variant*> variant{chosen_variant()};
  return variant;
}

Shape checked_shape(int64_t n, int64_t k, int64_t group) {
  const Shape shape{n, k, group};
  TORCH_CHECK(shape.valid(), "cpu_int4 native: N ", n, ", K ", k, ", group size ", group,
              ": N and K must be positive, the group size a multiple of 8, and K a multiple of the group size");
  return shape;
}

void check_tensor(const Tensor& t, const char* name, at::ScalarType type, at::IntArrayRef sizes) {
  TORCH_CHECK(t.device().is_cpu(), "cpu_int4 native: ", name, " is on ", t.device(), ", expected cpu");
  TORCH_CHECK(t.scalar_type() == type, "cpu_int4 native: ", name, " is ", t.scalar_type(), ", expected ", type);
  TORCH_CHECK(t.sizes() == sizes, "cpu_int4 native: ", name, " has shape ", t.sizes(), ", expected ", sizes);
  TORCH_CHECK(t.is_contiguous(), "cpu_int4 native: ", name, " has strides ", t.strides(), ", expected contiguous; call .contiguous()");
}

Weights checked_weights(const Tensor& packed, int64_t n, int64_t k, int64_t group) {
  const Shape shape = checked_shape(n, k, group);
  check_tensor(packed, "packed", at::kByte, {shape.bytes()});
  return {packed.const_data_ptr<uint8_t>(), shape};
}

const bf16* bits(const Tensor& t) { return reinterpret_cast<const bf16*>(t.const_data_ptr<at::BFloat16>()); }
bf16* mutable_bits(const Tensor& t) { return reinterpret_cast<bf16*>(t.mutable_data_ptr<at::BFloat16>()); }

// Zero bytes for packed weights. From 2 MiB on in pages of their own, huge where the system grants them (1 row ran 3 %
// faster so): outside malloc, whose dynamic threshold would put buffers of up to 32 MiB into arenas that it never returns.
Tensor zero_bytes(int64_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20, kPage = 4096;
  const auto size = static_cast<size_t>(bytes);
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (size < kHuge) return at::zeros({bytes}, options);
  const size_t used = (size + kPage - 1) / kPage * kPage;
  void* raw = mmap(nullptr, used + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(raw != MAP_FAILED, "cpu_int4 native: no memory for ", bytes, " bytes of packed weights");
  const auto start = reinterpret_cast<uintptr_t>(raw), aligned = (start + kHuge - 1) / kHuge * kHuge;
  const size_t head = aligned - start;
  if (head > 0) munmap(raw, head);
  munmap(reinterpret_cast<void*>(aligned + used), kHuge - head);  // head < kHuge: never empty
  void* data = reinterpret_cast<void*>(aligned);
  madvise(data, used, MADV_HUGEPAGE);  // advice: a kernel without huge pages says no, and small ones serve
  return at::from_blob(data, {bytes}, [used](void* p) { munmap(p, used); }, options);
}

Tensor native_empty(int64_t n, int64_t k, int64_t group) { return zero_bytes(checked_shape(n, k, group).bytes()); }

void native_pack_rows(const Tensor& packed, const Tensor& qweight, const Tensor& scales, const Tensor& zeros, int64_t first,
                      int64_t n, int64_t k, int64_t group) {
  const Weights w = checked_weights(packed, n, k, group);
  TORCH_CHECK(qweight.dim() == 2, "cpu_int4 native: qweight has ", qweight.dim(), " dimensions, expected [rows, K/2]");
  const int64_t count = qweight.size(0);
  TORCH_CHECK(first >= 0 && count >= 0 && first <= n && count <= n - first, "cpu_int4 native: rows [", first, ", ", first + count,
              ") do not lie within the ", n, " of the packed matrix");
  check_tensor(qweight, "qweight", at::kByte, {count, k / 2});
  check_tensor(scales, "scales", at::kBFloat16, {count, k / group});
  check_tensor(zeros, "zeros", at::kBFloat16, {count, k / group});
  if (count) pack(qweight.const_data_ptr<uint8_t>(), bits(scales), bits(zeros), w.shape, first, count, packed.mutable_data_ptr<uint8_t>());
}

std::tuple<Tensor, Tensor, Tensor> native_unpack(const Tensor& packed, int64_t n, int64_t k, int64_t group) {
  const Weights w = checked_weights(packed, n, k, group);
  Tensor codes = at::empty({n, k / 2}, at::kByte), scales = at::empty({n, k / group}, at::kBFloat16), zeros = at::empty_like(scales);
  unpack(w, codes.mutable_data_ptr<uint8_t>(), mutable_bits(scales), mutable_bits(zeros));
  return {codes, scales, zeros};
}

// Rows from which the product goes through oneDNN where AMX is; never on other hosts. An environment variable for tests
// and for measuring the crossover, which no host at hand could.
int64_t onednn_rows() {
  static const int64_t rows = [] {
    const char* text = std::getenv("CPU_INT4_ONEDNN_ROWS");
    return text && *text ? std::strtoll(text, nullptr, 10) : has_amx() ? int64_t{64} : INT64_MAX;
  }();
  return rows;
}

// Panels of [K, columns] bf16 of at most kScratchBytes, one buffer reused for all, through torch's own product.
void onednn_linear(const Weights& w, const Tensor& x, const std::optional<Tensor>& bias, Tensor& y) {
  const TileConfigurations kept;
  const int64_t n = w.shape.n, k = w.shape.k;
  const int64_t columns = std::min(n, std::max(kBlock, kScratchBytes / 2 / k / kBlock * kBlock));
  thread_local Tensor scratch;
  if (!scratch.defined() || scratch.numel() < k * columns) scratch = at::empty({k * columns}, at::kBFloat16);
  for (int64_t begin = 0; begin < n; begin += columns) {
    const int64_t width = std::min(columns, n - begin);
    Tensor panel = scratch.narrow(0, 0, k * width).view({k, width});
    dequantize_columns(w, begin, begin + width, mutable_bits(panel));
    y.narrow(1, begin, width).copy_(bias ? at::addmm(bias->narrow(0, begin, width), x, panel) : at::mm(x, panel));
  }
}

Tensor native_linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias, int64_t n, int64_t k, int64_t group) {
  const Weights w = checked_weights(packed, n, k, group);
  TORCH_CHECK(x.device().is_cpu(), "cpu_int4 native: x is on ", x.device(), ", expected cpu");
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "cpu_int4 native: x is ", x.scalar_type(), ", expected ", at::kBFloat16);
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == k, "cpu_int4 native: x has shape ", x.sizes(), ", expected [..., ", k, "]");
  if (bias) check_tensor(*bias, "bias", at::kBFloat16, {n});
  auto sizes = x.sizes().vec();
  sizes.back() = n;
  const int64_t rows = x.numel() / k;
  Tensor y = at::empty({rows, n}, x.options());
  if (rows == 0) return y.view(sizes);
  TORCH_CHECK(x.stride(-1) == 1 && (x.dim() <= 2 || x.is_contiguous()), "cpu_int4 native: x has strides ", x.strides(),
              ", expected contiguous inputs (and rows of more than two dimensions contiguous too); call .contiguous()");
  if (rows >= onednn_rows()) {
    ++calls[kOneDnn];
    onednn_linear(w, x.view({rows, k}), bias, y);
    return y.view(sizes);
  }
  ++calls[path_of(rows)];
  const int64_t stride = x.dim() == 2 ? x.stride(0) : k;
  linear(*current_variant(), w, {bits(x), stride, rows}, {mutable_bits(y), n, bias ? bits(*bias) : nullptr});
  return y.view(sizes);
}

Tensor native_embedding(const Tensor& ids, const Tensor& packed, int64_t n, int64_t k, int64_t group) {
  const Weights w = checked_weights(packed, n, k, group);
  TORCH_CHECK(ids.device().is_cpu(), "cpu_int4 native: ids is on ", ids.device(), ", expected cpu");
  TORCH_CHECK(ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt, "cpu_int4 native: ids is ", ids.scalar_type(),
              ", expected int64 or int32");
  const Tensor wide = ids.to(at::kLong).contiguous();
  const int64_t* id = wide.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < wide.numel(); ++i)
    TORCH_CHECK_INDEX(id[i] >= 0 && id[i] < n, "cpu_int4 native: id ", id[i], " at position ", i, " does not lie in [0, ", n, ")");
  auto sizes = ids.sizes().vec();
  sizes.push_back(k);
  Tensor rows = at::empty(sizes, at::kBFloat16);
  ++calls[kEmbedding];
  embed(w, id, wide.numel(), mutable_bits(rows));
  return rows;
}

std::string native_isa(const std::string& name) {
  if (!name.empty()) {
    const Variant* v = variant_by_name(name.c_str());
    TORCH_CHECK(v, "cpu_int4 native: instruction set '", name, "' is unknown or not runnable on this CPU; ",
                "supported: avx512_bf16, avx512, avx2, scalar");
    current_variant() = v;
  }
  return current_variant().load()->name;
}

std::vector<int64_t> native_calls(bool reset) {
  std::vector<int64_t> counts;
  for (auto& c : calls) counts.push_back(reset ? c.exchange(0) : c.load());
  return counts;
}

void native_read(const Tensor& data) {
  TORCH_CHECK(avx512(), "cpu_int4 native: the read kernel needs AVX-512");
  check_tensor(data, "data", at::kByte, {data.numel() / 4096 * 4096});
  read_once(data.const_data_ptr<uint8_t>(), data.numel());
}

int64_t native_bf16_products(int64_t rounds) {
  TORCH_CHECK(avx512_bf16(), "cpu_int4 native: the bf16 peak needs AVX-512 with bf16");
  return bf16_products(rounds);
}

}  // namespace
}  // namespace cpu_int4

TORCH_LIBRARY_FRAGMENT(cpu_int4, m) {
  m.def("native_linear(Tensor x, Tensor packed, Tensor? bias, int n, int k, int group_size) -> Tensor");
  m.def("native_embedding(Tensor ids, Tensor packed, int n, int k, int group_size) -> Tensor");
  m.def("native_pack_rows(Tensor(a!) packed, Tensor qweight, Tensor scales, Tensor zeros, int first, int n, int k, int group_size) -> ()");
  m.def("native_unpack(Tensor packed, int n, int k, int group_size) -> (Tensor, Tensor, Tensor)");
  // Without a tensor to dispatch on: one kernel for all back ends.
  m.def("native_empty(int n, int k, int group_size) -> Tensor", &cpu_int4::native_empty);
  m.def("native_isa(str name) -> str", &cpu_int4::native_isa);
  m.def("native_calls(bool reset) -> int[]", &cpu_int4::native_calls);
  // For the benchmark: read [bytes] once; products by all threads, answered with the operations done.
  m.def("native_read(Tensor data) -> ()");
  m.def("native_bf16_products(int rounds) -> int", &cpu_int4::native_bf16_products);
}

TORCH_LIBRARY_IMPL(cpu_int4, CPU, m) {
  m.impl("native_linear", &cpu_int4::native_linear);
  m.impl("native_embedding", &cpu_int4::native_embedding);
  m.impl("native_pack_rows", &cpu_int4::native_pack_rows);
  m.impl("native_unpack", &cpu_int4::native_unpack);
  m.impl("native_read", &cpu_int4::native_read);
}
