#include <dnnl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/products/bf16_gemm_impl.h"
#include "ops/products/dense_precision.h"
#include "ops/products/processor_kind.h"

namespace hotrow::internal {
namespace {

// A block of a weight gradient: 128 x 256 over a batch of 2048 is 0.11 ms of a core with AMX. The
// speed falls by a fifth with 512 columns, whose panels no longer fit the cache.
constexpr int64_t kBlockOutputs = 128;
constexpr int64_t kBlockInputs = 256;
constexpr int64_t kBlockOutputStep = 16;
constexpr int64_t kCodeFloats = int64_t{1} << 20;  // more than the code of a product takes
static_assert(kGemmChunkRows % kPanelRows == 0);

absl::Status DnnlStatus(dnnl_status_t status) {
  switch (status) {
    case dnnl_success:
      return absl::OkStatus();
    case dnnl_out_of_memory:
      return absl::ResourceExhaustedError("oneDNN has no memory for a matrix product of bf16");
    default:
      return absl::InternalError(
          absl::StrCat("oneDNN's matmul of bf16 failed with status ", static_cast<int>(status)));
  }
}

// Owns a handle of oneDNN.
template <typename T, dnnl_status_t (*kDestroy)(T*)>
class Handle {
 public:
  Handle() = default;
  ~Handle() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  T** out() { return &handle_; }
  T* get() const { return handle_; }

 private:
  T* handle_ = nullptr;
};
using Engine = Handle<dnnl_engine, dnnl_engine_destroy>;
using StreamHandle = Handle<dnnl_stream, dnnl_stream_destroy>;
using Attr = Handle<dnnl_primitive_attr, dnnl_primitive_attr_destroy>;
using PrimitiveDesc = Handle<dnnl_primitive_desc, dnnl_primitive_desc_destroy>;
using Primitive = Handle<dnnl_primitive, dnnl_primitive_destroy>;
using Memory = Handle<dnnl_memory, dnnl_memory_destroy>;

// One for the process: it holds nothing but that it is the CPU.
absl::StatusOr<dnnl_engine_t> CpuEngine() {
  static Engine engine;
  static const dnnl_status_t status = dnnl_engine_create(engine.out(), dnnl_cpu, 0);
  HOTROW_RETURN_IF_ERROR(DnnlStatus(status));
  return engine.get();
}

}  // namespace

struct Bf16Scratch::Stream {
  StreamHandle handle;
};

#if DNNL_VERSION_MAJOR == 2

class Bf16Product {
 public:
  absl::Status Init(const ProductShape& shape) {
    has_bias_ = shape.has_bias;
    const auto describe = [](int64_t rows, int64_t columns, dnnl_data_type_t type,
                             dnnl_format_tag_t tag, dnnl_memory_desc_t* desc) {
      const dnnl_dims_t dims = {rows, columns};
      return DnnlStatus(dnnl_memory_desc_init_by_tag(desc, 2, dims, type, tag));
    };
    HOTROW_RETURN_IF_ERROR(describe(shape.rows, shape.inner, dnnl_bf16, dnnl_ab, &a_));
    HOTROW_RETURN_IF_ERROR(describe(shape.inner, shape.columns, dnnl_bf16, dnnl_BA16a64b2a, &b_));
    HOTROW_RETURN_IF_ERROR(describe(1, shape.columns, dnnl_f32, dnnl_ab, &bias_));
    HOTROW_RETURN_IF_ERROR(describe(shape.rows, shape.columns,
                                    shape.float_result ? dnnl_f32 : dnnl_bf16, dnnl_ab, &result_));
    dnnl_matmul_desc_t desc;
    HOTROW_RETURN_IF_ERROR(
        DnnlStatus(dnnl_matmul_desc_init(&desc, &a_, &b_, has_bias_ ? &bias_ : nullptr, &result_)));
    Attr attr;
    HOTROW_RETURN_IF_ERROR(DnnlStatus(dnnl_primitive_attr_create(attr.out())));
    HOTROW_RETURN_IF_ERROR(
        DnnlStatus(dnnl_primitive_attr_set_scratchpad_mode(attr.get(), dnnl_scratchpad_mode_user)));
    HOTROW_ASSIGN_OR_RETURN(const dnnl_engine_t engine, CpuEngine());
    PrimitiveDesc primitive;
    HOTROW_RETURN_IF_ERROR(DnnlStatus(
        dnnl_primitive_desc_create(primitive.out(), &desc, attr.get(), engine, nullptr)));
    workspace_ = *dnnl_primitive_desc_query_md(primitive.get(), dnnl_query_scratchpad_md, 0);
    return DnnlStatus(dnnl_primitive_create(primitive_.out(), primitive.get()));
  }

  absl::Status Run(const Bf16* a, const Bf16* b, const float* bias, void* result,
                   Bf16Scratch* scratch) const {
    HOTROW_ASSIGN_OR_RETURN(const dnnl_engine_t engine, CpuEngine());
    if (scratch->stream == nullptr) {
      auto stream = std::make_unique<Bf16Scratch::Stream>();
      HOTROW_RETURN_IF_ERROR(
          DnnlStatus(dnnl_stream_create(stream->handle.out(), engine, dnnl_stream_default_flags)));
      scratch->stream = std::move(stream);
    }
    const auto workspace_floats =
        CeilDiv(static_cast<int64_t>(dnnl_memory_desc_get_size(&workspace_)),
                static_cast<int64_t>(sizeof(float)));
    HOTROW_ASSIGN_OR_RETURN(float* const workspace,
                            Bf16Scratch::Take(workspace_floats, &scratch->workspace));
    struct Operand {
      int number;
      const dnnl_memory_desc_t* desc;
      const void* data;
    };
    const Operand operands[] = {{DNNL_ARG_SRC, &a_, a},
                                {DNNL_ARG_WEIGHTS, &b_, b},
                                {DNNL_ARG_DST, &result_, result},
                                {DNNL_ARG_SCRATCHPAD, &workspace_, workspace},
                                {DNNL_ARG_BIAS, &bias_, bias}};
    const size_t count = std::size(operands) - (has_bias_ ? 0 : 1);
    std::array<Memory, std::size(operands)> memory;
    std::array<dnnl_exec_arg_t, std::size(operands)> args;
    for (size_t i = 0; i < count; ++i) {
      HOTROW_RETURN_IF_ERROR(DnnlStatus(dnnl_memory_create(
          memory[i].out(), operands[i].desc, engine, const_cast<void*>(operands[i].data))));
      args[i] = {operands[i].number, memory[i].get()};
    }
    return DnnlStatus(dnnl_primitive_execute(primitive_.get(), scratch->stream->handle.get(),
                                             static_cast<int>(count), args.data()));
  }

 private:
  bool has_bias_ = false;
  dnnl_memory_desc_t a_;
  dnnl_memory_desc_t b_;
  dnnl_memory_desc_t bias_;
  dnnl_memory_desc_t result_;
  dnnl_memory_desc_t workspace_;
  Primitive primitive_;
};

constexpr bool kOneDnnKnown = true;

#else

// Version 3 describes products in other words.
class Bf16Product {
 public:
  absl::Status Init(const ProductShape&) {
    return absl::UnimplementedError("products of bf16 are written for oneDNN 2");
  }
  absl::Status Run(const Bf16*, const Bf16*, const float*, void*, Bf16Scratch*) const {
    return absl::UnimplementedError("products of bf16 are written for oneDNN 2");
  }
};

constexpr bool kOneDnnKnown = false;

#endif

absl::Status CheckBf16(bool onednn_supports, bool rows_supported, const std::string& processor,
                       const std::string& option) {
  if (!kOneDnnKnown) {
    return absl::FailedPreconditionError(
        absl::StrCat(option, "bf16 needs a build with oneDNN 2; use ", option, "fp32"));
  }
  if (onednn_supports && rows_supported) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      option,
      "bf16 needs a processor with AVX-512 BF16 (better: AMX), which this one lacks or "
      "the environment forbids (ONEDNN_MAX_CPU_ISA): ",
      processor, "; use ", option, "fp32"));
}

Bf16Scratch::Bf16Scratch() = default;
Bf16Scratch::~Bf16Scratch() = default;

namespace {
template <typename T>
absl::StatusOr<T*> TakeRoom(int64_t size, HostBuffer<T>* buffer) {
  if (buffer->size() < size) {
    HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<T>::Create(size));
  }
  return buffer->data();
}
}  // namespace

absl::StatusOr<Bf16*> Bf16Scratch::Take(int64_t size, HostBuffer<Bf16>* buffer) {
  return TakeRoom(size, buffer);
}
absl::StatusOr<float*> Bf16Scratch::Take(int64_t size, HostBuffer<float>* buffer) {
  return TakeRoom(size, buffer);
}

Bf16Products::Bf16Products() = default;
Bf16Products::~Bf16Products() = default;

absl::StatusOr<const Bf16Product*> Bf16Products::Find(const ProductShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Bf16Product>& product = products_[shape];
  if (product == nullptr) {
    // oneDNN 2.6 crashes when there is no memory for code, so memory is asked for first.
    HOTROW_RETURN_IF_ERROR(HostBuffer<float>::Create(kCodeFloats).status());
    auto made = std::make_unique<Bf16Product>();
    HOTROW_RETURN_IF_ERROR(made->Init(shape));
    product = std::move(made);
  }
  return product.get();
}

absl::Status Bf16Products::Run(const ProductShape& shape, const Bf16* a, const Bf16* b,
                               const float* bias, void* result, Bf16Scratch* scratch) {
  HOTROW_ASSIGN_OR_RETURN(const Bf16Product* const product, Find(shape));
  return product->Run(a, b, bias, result, scratch);
}

int64_t Bf16Products::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const std::unique_ptr<Bf16Scratch>& s : idle_) {
    bytes += s->rows[0].bytes() + s->rows[1].bytes() + s->floats.bytes() + s->product.bytes() +
             s->workspace.bytes();
  }
  return bytes;
}

Bf16Products::Lease::Lease(Bf16Products* products) : products_(*products) {
  const std::lock_guard<std::mutex> lock(products_.mutex_);
  if (products_.idle_.empty()) {
    scratch_ = std::make_unique<Bf16Scratch>();
  } else {
    scratch_ = std::move(products_.idle_.back());
    products_.idle_.pop_back();
  }
}

Bf16Products::Lease::~Lease() {
  const std::lock_guard<std::mutex> lock(products_.mutex_);
  products_.idle_.push_back(std::move(scratch_));
}

absl::Status Bf16Linear::Init(int64_t in, int64_t out, int64_t max_batch_size) {
  in_ = in;
  out_ = out;
  in_padded_ = RoundUp(in, kPanelColumns);
  out_padded_ = RoundUp(out, kPanelColumns);
  const int64_t batch = RoundUp(max_batch_size, kGemmChunkRows);
  const auto make = [](int64_t size, HostBuffer<Bf16>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<Bf16>::Create(size, HugePages::kTry));
    return absl::OkStatus();
  };
  HOTROW_RETURN_IF_ERROR(make(in_padded_ * out_padded_, &transposed_));
  HOTROW_RETURN_IF_ERROR(make(in_padded_ * out_padded_, &weights_));
  HOTROW_RETURN_IF_ERROR(make(batch * in_padded_, &inputs_));
  HOTROW_RETURN_IF_ERROR(make(batch * out_padded_, &gradients_));
  HOTROW_ASSIGN_OR_RETURN(bias_, HostBuffer<float>::Create(out_padded_));
  return absl::OkStatus();
}

int64_t Bf16Linear::bytes() const {
  return transposed_.bytes() + weights_.bytes() + inputs_.bytes() + gradients_.bytes() +
         bias_.bytes();
}

void Bf16Linear::Prepare(ThreadPool* pool, const float* weights, const float* bias,
                         int64_t batch_size, bool training) {
  batch_padded_ = RoundUp(batch_size, kGemmChunkRows);
  has_bias_ = bias != nullptr;
  if (has_bias_) std::copy_n(bias, out_, bias_.data());
  ParallelFor(pool, out_padded_ / kPanelColumns, 1, [&](int64_t begin, int64_t end) {
    WeightsToPanels(weights, in_, out_, begin * kPanelColumns, end * kPanelColumns,
                    transposed_.data(), training ? weights_.data() : nullptr);
  });
}

absl::Status Bf16Linear::Forward(Bf16Products* products, const Bf16* x, int64_t rows,
                                 bool float_result, void* y, Bf16Scratch* scratch) const {
  return products->Run({rows, in_padded_, out_padded_, float_result, has_bias_}, x,
                       transposed_.data(), bias_.data(), y, scratch);
}

absl::Status Bf16Linear::InputGradient(Bf16Products* products, const Bf16* dy, bool float_result,
                                       void* dx, Bf16Scratch* scratch) const {
  return products->Run({kGemmChunkRows, out_padded_, in_padded_, float_result}, dy, weights_.data(),
                       nullptr, dx, scratch);
}

void Bf16Linear::KeepInput(const Bf16* x, int64_t begin) {
  ToPanels(x, kGemmChunkRows, in_padded_, begin, batch_padded_, inputs_.data());
}

void Bf16Linear::KeepGradient(const Bf16* dy, int64_t begin) {
  ToColumns(dy, kGemmChunkRows, out_padded_, begin, batch_padded_, gradients_.data());
}

absl::Status Bf16Linear::WeightGradient(Bf16Products* products, const WeightBlock& block, float* dw,
                                        Bf16Scratch* scratch) const {
  const int64_t outputs = std::min(kBlockOutputs, out_ - block.output);
  const int64_t inputs = std::min(kBlockInputs, in_ - block.input);
  const ProductShape shape = {.rows = RoundUp(outputs, kBlockOutputStep),
                              .inner = batch_padded_,
                              .columns = RoundUp(inputs, kPanelColumns),
                              .float_result = true};
  HOTROW_ASSIGN_OR_RETURN(float* const product,
                          Bf16Scratch::Take(kBlockOutputs * kBlockInputs, &scratch->product));
  HOTROW_RETURN_IF_ERROR(products->Run(shape, gradients_.data() + block.output * batch_padded_,
                                       inputs_.data() + block.input * batch_padded_, nullptr,
                                       product, scratch));
  for (int64_t r = 0; r < outputs; ++r) {
    std::copy_n(product + r * shape.columns, inputs, dw + (block.output + r) * in_ + block.input);
  }
  return absl::OkStatus();
}

WeightBlocks CutWeights(std::span<const Bf16Linear* const> linears) {
  std::vector<WeightShape> shapes;
  for (const Bf16Linear* const linear : linears) {
    shapes.push_back({.in = linear->in(), .out = linear->out()});
  }
  return CutWeights(shapes, kBlockOutputs, kBlockInputs);
}

}  // namespace hotrow::internal

namespace hotrow {

absl::Status CheckDensePrecision(DensePrecision precision, Device device, std::string_view option) {
  if (device != Device::kCpu || precision == DensePrecision::kFp32) return absl::OkStatus();
  const std::string name(option);
  if (precision == DensePrecision::kTf32) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "tf32 is for GPUs; on the CPU use ", name, "fp32"));
  }
  if (precision == DensePrecision::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "fp16 is for GPUs; on the CPU use ", name, "bf16 or ", name, "fp32"));
  }
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  const bool onednn_supports =
      (isa & dnnl_cpu_isa_avx512_core_bf16) == static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
  return internal::CheckBf16(onednn_supports, internal::Bf16RowsSupported(), ProcessorKind(), name);
}

}  // namespace hotrow
