#include "ops/products/panel_products_impl.h"

#include <dnnl.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/math.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kCodeFloats = int64_t{1} << 20;  // more than the code of a product takes

absl::Status DnnlStatus(dnnl_status_t status) {
  switch (status) {
    case dnnl_success:
      return absl::OkStatus();
    case dnnl_out_of_memory:
      return absl::ResourceExhaustedError("oneDNN has no memory for a matrix product");
    default:
      return absl::InternalError(
          absl::StrCat("oneDNN's matmul failed with status ", static_cast<int>(status)));
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
using DnnlStream = Handle<dnnl_stream, dnnl_stream_destroy>;
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

struct ProductScratch::Stream {
  DnnlStream handle;
};

#if DNNL_VERSION_MAJOR == 2

class PanelProduct {
 public:
  absl::Status Init(const ProductShape& shape) {
    has_bias_ = shape.has_bias;
    const auto describe = [](int64_t rows, int64_t columns, dnnl_data_type_t type,
                             dnnl_format_tag_t tag, dnnl_memory_desc_t* desc) {
      const dnnl_dims_t dims = {rows, columns};
      return DnnlStatus(dnnl_memory_desc_init_by_tag(desc, 2, dims, type, tag));
    };
    dnnl_data_type_t result = shape.float_result ? dnnl_f32 : dnnl_bf16;
    if (shape.int8) result = dnnl_s32;
    HOTROW_RETURN_IF_ERROR(
        describe(shape.rows, shape.inner, shape.int8 ? dnnl_u8 : dnnl_bf16, dnnl_ab, &a_));
    HOTROW_RETURN_IF_ERROR(describe(shape.inner, shape.columns, shape.int8 ? dnnl_s8 : dnnl_bf16,
                                    shape.int8 ? dnnl_BA16a64b4a : dnnl_BA16a64b2a, &b_));
    HOTROW_RETURN_IF_ERROR(describe(1, shape.columns, dnnl_f32, dnnl_ab, &bias_));
    HOTROW_RETURN_IF_ERROR(describe(shape.rows, shape.columns, result, dnnl_ab, &result_));
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

  absl::Status Run(const void* a, const void* b, const float* bias, void* result,
                   ProductScratch* scratch) const {
    HOTROW_ASSIGN_OR_RETURN(const dnnl_engine_t engine, CpuEngine());
    if (scratch->stream == nullptr) {
      auto stream = std::make_unique<ProductScratch::Stream>();
      HOTROW_RETURN_IF_ERROR(
          DnnlStatus(dnnl_stream_create(stream->handle.out(), engine, dnnl_stream_default_flags)));
      scratch->stream = std::move(stream);
    }
    const auto workspace_floats =
        CeilDiv(static_cast<int64_t>(dnnl_memory_desc_get_size(&workspace_)),
                static_cast<int64_t>(sizeof(float)));
    HOTROW_ASSIGN_OR_RETURN(float* const workspace,
                            ProductScratch::Take(workspace_floats, &scratch->workspace));
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

bool PanelProductsKnown() { return true; }

#else

// Version 3 describes products in other words.
class PanelProduct {
 public:
  absl::Status Init(const ProductShape&) {
    return absl::UnimplementedError("products of bf16 and int8 are written for oneDNN 2");
  }
  absl::Status Run(const void*, const void*, const float*, void*, ProductScratch*) const {
    return absl::UnimplementedError("products of bf16 and int8 are written for oneDNN 2");
  }
};

bool PanelProductsKnown() { return false; }

#endif

ProductScratch::ProductScratch() = default;
ProductScratch::~ProductScratch() = default;

PanelProducts::PanelProducts() = default;
PanelProducts::~PanelProducts() = default;

absl::StatusOr<const PanelProduct*> PanelProducts::Find(const ProductShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<PanelProduct>& product = products_[shape];
  if (product == nullptr) {
    // oneDNN 2.6 crashes when there is no memory for code, so memory is asked for first.
    HOTROW_RETURN_IF_ERROR(HostBuffer<float>::Create(kCodeFloats).status());
    auto made = std::make_unique<PanelProduct>();
    HOTROW_RETURN_IF_ERROR(made->Init(shape));
    product = std::move(made);
  }
  return product.get();
}

absl::Status PanelProducts::Run(const ProductShape& shape, const void* a, const void* b,
                                const float* bias, void* result, ProductScratch* scratch) {
  HOTROW_ASSIGN_OR_RETURN(const PanelProduct* const product, Find(shape));
  return product->Run(a, b, bias, result, scratch);
}

int64_t PanelProducts::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const std::unique_ptr<ProductScratch>& s : idle_) {
    bytes += s->rows[0].bytes() + s->rows[1].bytes() + s->floats.bytes() + s->product.bytes() +
             s->workspace.bytes() + s->codes.bytes() + s->sums.bytes();
  }
  return bytes;
}

PanelProducts::Lease::Lease(PanelProducts* products) : products_(*products) {
  const std::lock_guard<std::mutex> lock(products_.mutex_);
  if (products_.idle_.empty()) {
    scratch_ = std::make_unique<ProductScratch>();
  } else {
    scratch_ = std::move(products_.idle_.back());
    products_.idle_.pop_back();
  }
}

PanelProducts::Lease::~Lease() {
  const std::lock_guard<std::mutex> lock(products_.mutex_);
  products_.idle_.push_back(std::move(scratch_));
}

}  // namespace hotrow::internal
