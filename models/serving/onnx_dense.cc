#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/json/quote.h"
#include "models/saving/tables_model.h"
#include "models/serving/onnx_dense_impl.h"
#include "models/serving/onnxruntime_impl.h"

namespace hotrow::internal {
namespace {

constexpr char kEmbeddings[] = "embeddings";
constexpr char kDense[] = "dense";
constexpr char kLogits[] = "logits";
constexpr int64_t kTasksMax = 4096;

// An object of onnxruntime's and the function that ends it.
template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// An input or output of a file.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;  // -1: any; empty also where it is no tensor of floats
};

class Session final : public OnnxDense {
 public:
  Session(OnnxRuntime ort, std::string where) : ort_(std::move(ort)), where_(std::move(where)) {}

  int32_t num_tasks() const override { return num_tasks_; }

  absl::Status Open(const std::string& file, const Columns& columns) {
    OrtSessionOptions* options_made = nullptr;
    OrtEnv* env = nullptr;
    HOTROW_RETURN_IF_ERROR(Check(ort_.CreateEnv(kOrtLogFatal, "hotrow", &env)));
    env_ = Owned<OrtEnv>(env, ort_.ReleaseEnv);
    HOTROW_RETURN_IF_ERROR(Check(ort_.CreateSessionOptions(&options_made)));
    const Owned<OrtSessionOptions> options(options_made, ort_.ReleaseSessionOptions);
    // A call runs on the thread that makes it.
    HOTROW_RETURN_IF_ERROR(Check(ort_.SetIntraOpNumThreads(options_made, 1)));
    OrtSession* session = nullptr;
    HOTROW_RETURN_IF_ERROR(
        Check(ort_.CreateSessionFromArray(env, file.data(), file.size(), options_made, &session)));
    session_ = Owned<OrtSession>(session, ort_.ReleaseSession);
    OrtMemoryInfo* memory = nullptr;
    HOTROW_RETURN_IF_ERROR(
        Check(ort_.CreateCpuMemoryInfo(kOrtDeviceAllocator, kOrtDefaultMemory, &memory)));
    memory_ = Owned<OrtMemoryInfo>(memory, ort_.ReleaseMemoryInfo);
    columns_ = columns;
    return CheckTensors();
  }

  absl::Status Run(int64_t batch_size, const float* embeddings, const float* dense,
                   float* logits) const override {
    if (batch_size == 0) return absl::OkStatus();
    std::vector<Owned<OrtValue>> values;
    std::vector<const char*> names;
    std::vector<const OrtValue*> inputs;
    for (const char* const name : inputs_) {
      const bool is_dense = name == std::string_view(kDense);
      // Inputs are not written to.
      HOTROW_RETURN_IF_ERROR(Wrap(const_cast<float*>(is_dense ? dense : embeddings), batch_size,
                                  is_dense ? columns_.dense : columns_.embeddings, &values));
      names.push_back(name);
      inputs.push_back(values.back().get());
    }
    HOTROW_RETURN_IF_ERROR(Wrap(logits, batch_size, num_tasks_, &values));
    OrtValue* output = values.back().get();
    const char* const output_name = kLogits;
    OrtStatus* const status = ort_.Run(session_.get(), nullptr, names.data(), inputs.data(),
                                       inputs.size(), &output_name, 1, &output);
    return Check(status, absl::StatusCode::kInternal);
  }

 private:
  absl::Status Check(OrtStatus* status,
                     absl::StatusCode code = absl::StatusCode::kFailedPrecondition) const {
    if (status == nullptr) return absl::OkStatus();
    const Owned<OrtStatus> owned(status, ort_.ReleaseStatus);
    return {code, absl::StrCat(where_, ": onnxruntime ", ort_.version, ": ",
                               ort_.GetErrorMessage(status))};
  }
  absl::Status Refused(std::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(
        where_, ": ", std::string(what), "; export the model again (hotrow.torch.export)"));
  }

  // A matrix where it lies.
  absl::Status Wrap(float* data, int64_t rows, int64_t columns,
                    std::vector<Owned<OrtValue>>* values) const {
    const std::array<int64_t, 2> shape = {rows, columns};
    const auto bytes = static_cast<size_t>(rows * columns) * sizeof(float);
    OrtValue* value = nullptr;
    HOTROW_RETURN_IF_ERROR(
        Check(ort_.CreateTensorWithDataAsOrtValue(memory_.get(), data, bytes, shape.data(),
                                                  shape.size(), kOrtFloat, &value),
              absl::StatusCode::kInternal));
    values->emplace_back(value, ort_.ReleaseValue);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Tensor>> Tensors(bool inputs) const {
    size_t count = 0;
    HOTROW_RETURN_IF_ERROR(Check(
        (inputs ? ort_.SessionGetInputCount : ort_.SessionGetOutputCount)(session_.get(), &count)));
    OrtAllocator* allocator = nullptr;
    HOTROW_RETURN_IF_ERROR(Check(ort_.GetAllocatorWithDefaultOptions(&allocator)));
    std::vector<Tensor> out;
    for (size_t i = 0; i < count; ++i) {
      Tensor& tensor = out.emplace_back();
      char* name = nullptr;
      HOTROW_RETURN_IF_ERROR(Check((inputs ? ort_.SessionGetInputName : ort_.SessionGetOutputName)(
          session_.get(), i, allocator, &name)));
      tensor.name = name;
      HOTROW_RETURN_IF_ERROR(Check(ort_.AllocatorFree(allocator, name)));
      OrtTypeInfo* type = nullptr;
      HOTROW_RETURN_IF_ERROR(
          Check((inputs ? ort_.SessionGetInputTypeInfo : ort_.SessionGetOutputTypeInfo)(
              session_.get(), i, &type)));
      const Owned<OrtTypeInfo> owned(type, ort_.ReleaseTypeInfo);
      const OrtTensorTypeAndShapeInfo* info = nullptr;  // of `type`; null: no tensor
      HOTROW_RETURN_IF_ERROR(Check(ort_.CastTypeInfoToTensorInfo(type, &info)));
      if (info == nullptr) continue;
      int element = 0;
      size_t dims = 0;
      HOTROW_RETURN_IF_ERROR(Check(ort_.GetTensorElementType(info, &element)));
      HOTROW_RETURN_IF_ERROR(Check(ort_.GetDimensionsCount(info, &dims)));
      if (element != kOrtFloat) continue;
      tensor.shape.resize(dims);
      HOTROW_RETURN_IF_ERROR(Check(ort_.GetDimensions(info, tensor.shape.data(), dims)));
    }
    return out;
  }

  // Any number of samples with so many columns.
  static bool IsMatrix(const Tensor& tensor, int64_t columns) {
    return tensor.shape.size() == 2 && tensor.shape[0] < 0 && tensor.shape[1] == columns;
  }
  static std::string Shown(const Tensor& tensor) {
    return absl::StrCat(QuoteForMessage(tensor.name), " of float [",
                        absl::StrJoin(tensor.shape, ", "), "]");
  }

  absl::Status CheckTensors() {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<Tensor> inputs, Tensors(/*inputs=*/true));
    for (const Tensor& input : inputs) {
      const bool is_dense = input.name == kDense;
      const int64_t columns = is_dense ? columns_.dense : columns_.embeddings;
      if ((!is_dense && input.name != kEmbeddings) || !IsMatrix(input, columns)) {
        return Refused(absl::StrCat("its input ", Shown(input), " does not fit the model, whose ",
                                    "inputs are \"", kEmbeddings, "\" of float [-1, ",
                                    columns_.embeddings, "] and \"", kDense, "\" of float [-1, ",
                                    columns_.dense, "]"));
      }
      inputs_.push_back(is_dense ? kDense : kEmbeddings);
    }
    HOTROW_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, Tensors(/*inputs=*/false));
    if (outputs.size() != 1 || outputs[0].name != kLogits || outputs[0].shape.size() != 2 ||
        outputs[0].shape[0] >= 0 || outputs[0].shape[1] < 1 || outputs[0].shape[1] > kTasksMax) {
      return Refused(
          absl::StrCat("it has ", outputs.size(), " outputs",
                       outputs.empty() ? "" : absl::StrCat(", the first ", Shown(outputs[0])),
                       "; expected \"", kLogits, "\" of float [-1, tasks] alone"));
    }
    num_tasks_ = static_cast<int32_t>(outputs[0].shape[1]);
    return absl::OkStatus();
  }

  const OnnxRuntime ort_;
  const std::string where_;
  Columns columns_;
  int32_t num_tasks_ = 0;
  std::vector<const char*> inputs_;  // names
  // The environment outlives the session.
  Owned<OrtEnv> env_{nullptr, nullptr};
  Owned<OrtMemoryInfo> memory_{nullptr, nullptr};
  Owned<OrtSession> session_{nullptr, nullptr};
};

class OnnxModel final : public CtrModel {
 public:
  explicit OnnxModel(std::shared_ptr<const OnnxDense> dense) : dense_(std::move(dense)) {}

  std::string_view name() const override { return kOnnxModel; }
  DenseLayers layers() const override { return {}; }
  int32_t num_tasks() const override { return dense_->num_tasks(); }
  absl::Status Forward(const ExecContext&, const Input& input, std::span<float> logits) override {
    return dense_->Run(input.batch_size, input.embeddings, input.dense, logits.data());
  }
  absl::Status Backward(const ExecContext&, std::span<float>, float*,
                        const BackwardHooks&) override {
    return absl::UnimplementedError("a dense part in ONNX is for scoring alone");
  }
  std::span<float> parameters() override { return {}; }
  std::span<const float> gradients() const override { return {}; }
  std::span<float> mutable_gradients() override { return {}; }

 private:
  const std::shared_ptr<const OnnxDense> dense_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const OnnxDense>> OnnxDense::Open(const std::string& library,
                                                                 const std::string& file,
                                                                 const std::string& where,
                                                                 const Columns& columns) {
  absl::StatusOr<OnnxRuntime> ort = LoadOnnxRuntime(library);
  if (!ort.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": ", std::string(ort.status().message())));
  }
  auto out = std::make_shared<Session>(*std::move(ort), where);
  HOTROW_RETURN_IF_ERROR(out->Open(file, columns));
  return out;
}

std::unique_ptr<CtrModel> NewOnnxModel(std::shared_ptr<const OnnxDense> dense) {
  return std::make_unique<OnnxModel>(std::move(dense));
}

}  // namespace hotrow::internal
