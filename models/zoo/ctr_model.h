#ifndef HOTROW_MODELS_ZOO_CTR_MODEL_H_
#define HOTROW_MODELS_ZOO_CTR_MODEL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/exec_context.h"

namespace hotrow {

// The layers of a model as they cost time and memory, in the words of the planner
// (docs/planner.md): `bottom` reads the dense features, the interaction what comes from there and
// the pooled embeddings, `top` the interaction.
struct DenseLayers {
  // What a model has beside the MLPs and the interaction below.
  struct Part {
    std::string name;
    int32_t count = 1;  // equal parts
    // A linear map with a bias, of so many vectors of each sample; none where outputs is 0.
    int64_t rows = 1;
    int64_t inputs = 0;
    int64_t outputs = 0;
    // Parameters beside the map's; multiply-adds forward and numbers written of a sample.
    int64_t parameters = 0;
    int64_t macs = 0;
    int64_t activations = 0;
    bool operator==(const Part&) const = default;
  };
  // Counts a part that equals an earlier one with that.
  void Add(Part part);

  std::vector<int32_t> bottom;         // layer outputs
  std::vector<int32_t> top;            // layer outputs
  int32_t top_inputs = 0;              // of its first layer
  std::string interaction = "concat";  // concat, dot, cross
  int32_t cross_layers = 0;
  int32_t cross_rank = 0;  // 0: full matrices
  std::vector<Part> parts;
};

struct ParameterRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Adds numbers up over the slices of a batch.
using SliceSums = std::function<absl::Status(std::span<double> sums)>;

// The dense half of a click model: from dense features and embeddings to a logit of each task for
// each sample. Parameters and their gradients lie in two flat arrays of equal length that the model
// owns.
//
// A batch may be a rank's slice of a global batch. The logits are those that the whole batch would
// give these samples, dropout included, and the gradients are the slice's share of a sum over the
// batch: with logit gradients of the global loss they add up, over the ranks, to the batch's.
//
// Dimensions: B samples, T tasks, I dense features, E = width of the pooled embeddings.
// Device:     what a model reads and writes lies in memory of device(): inputs, logits, gradients,
//             its parameters. On a GPU calls enqueue work on ctx.stream and wait for nothing, and
//             "ready", "final" and "there" mean: for what is enqueued on that stream from then on.
//             Code on the host waits for the stream, then copies what it wants to look at.
// Threads:    one call at a time. Backward follows the Forward of the same batch. Functions that a
//             caller hands in run on the caller's thread, between pieces of the model's work, so
//             they should be short; they may read what is said to be ready.
class CtrModel {
 public:
  virtual ~CtrModel() = default;
  virtual std::string_view name() const = 0;
  virtual DenseLayers layers() const = 0;
  // Where it computes: ctx.device of every call.
  virtual Device device() const { return Device::kCpu; }
  virtual int32_t num_tasks() const { return 1; }  // T: logits of a sample
  // Positions in the data of the features whose rows it wants as they are, in order; the embeddings
  // are the others. Features that share a table are all of one kind.
  virtual std::vector<int32_t> unpooled_features() const { return {}; }
  // Whether Input::embedding_rows may take the place of the embeddings.
  virtual bool reads_rows() const { return false; }
  // Whether it knows Sequence::shared.
  virtual bool reads_shared_rows() const { return false; }

  // The rows of a feature that is not pooled: those of sample b are offsets[b] - offsets[0] up to
  // offsets[b + 1] - offsets[0]. Shared rows lie there once for all samples; offsets count each's.
  struct Sequence {
    const float* rows = nullptr;       // [N, D], end to end
    const int64_t* offsets = nullptr;  // [B + 1], in host memory
    float* gradient = nullptr;  // [N, D]: Backward's, as its embedding_gradient; null: no training
    const int64_t* device_offsets = nullptr;  // the same for a GPU; not read on the CPU
    bool shared = false;                      // only with reads_shared_rows(), and not in training

    const int64_t* OffsetsOn(Device device) const {
      return device == Device::kCpu ? offsets : device_offsets;
    }
  };
  struct Input {
    int64_t batch_size = 0;             // B
    const float* dense = nullptr;       // [B, I]
    const float* embeddings = nullptr;  // [B, E]; both stay valid until Backward
    // With reads_rows(), in the place of embeddings: where the vector of each pooled feature lies,
    // [B, E / D] pointers, 16-byte aligned vectors; they and these stay valid until Backward.
    const float* const* embedding_rows = nullptr;
    std::span<const Sequence> sequences;  // of unpooled_features(), which come with the embeddings
    bool training = false;
    uint32_t step = 0;  // from 1; dropout's counter
    // On a GPU: null, or where `step` lies in its memory instead, until Backward is done.
    const uint32_t* device_step = nullptr;
    int64_t first_sample = 0;  // position of sample 0 in the global batch; dropout's counter, too
    int64_t parameters_number = 0;  // as DenseNetwork::ForwardArgs, for parameters()
    // Null: the embeddings are there already. Otherwise Forward calls it once, also for B = 0,
    // right before it first reads `embeddings`: what needs the dense features alone comes first.
    // Its error is Forward's error. Not called where Forward fails before, nor kept beyond Forward.
    std::function<absl::Status()> await_embeddings;
    // Null: this is the whole batch. Otherwise models that look at the whole batch, as batch norm
    // does, call it in Forward for training and in the Backward that follows, also for B = 0. The
    // passes of all slices make the same calls in the same order; each replaces its numbers by
    // their sums over the slices, which are the same for all. Its error is that of the pass. The
    // numbers are in host memory: on a GPU the pass waits for its stream before each call.
    SliceSums sum_over_slices;
  };
  virtual absl::Status Forward(const ExecContext& ctx, const Input& input,
                               std::span<float> logits) = 0;  // [B, T]

  // What Backward tells on its way, so that others can work while it goes on. Each may be null. The
  // first error that one returns ends Backward and is its error; no call follows it.
  struct BackwardHooks {
    // Called once, also for B = 0, as soon as embedding_gradient is final: before the gradients of
    // the parameters, as far as those are not needed for it, and in DLRM before the bottom MLP.
    std::function<absl::Status()> embedding_gradient_ready;
    // gradients()[begin, end) are final and stay so until the next Backward. The ranges follow each
    // other without a gap from the end of gradients() to its beginning, padding included: first the
    // last layer. They depend on the shapes of the model alone, so they are the same on every rank,
    // also where B = 0 and the gradients are zeros.
    std::function<absl::Status(int64_t begin, int64_t end)> gradients_ready;
  };
  // logit_gradient [B, T] is overwritten as scratch; embedding_gradient [B, E] and gradients() are
  // overwritten.
  virtual absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                                float* embedding_gradient, const BackwardHooks& hooks) = 0;

  // Memory of device(). Checkpoints and hashes read a copy.
  virtual std::span<float> parameters() = 0;
  virtual std::span<const float> gradients() const = 0;
  // The same, to be scaled in place between Backward and the optimizer.
  virtual std::span<float> mutable_gradients() = 0;

  // What the model keeps in parameters() of the batches it has seen, such as the running statistics
  // of batch norm: saved and hashed like other parameters, and read by Forward when not training.
  // Their gradients are zeros, no optimizer may change them, and EndStep alone does. In order.
  virtual std::vector<ParameterRange> untrained_parameters() const { return {}; }
  // Ends a step: takes what the last Forward for training has seen into untrained_parameters(). A
  // step that is given up or tried again goes without. samples: of all slices, which give the same.
  virtual absl::Status EndStep(const ExecContext& ctx, int64_t samples) { return absl::OkStatus(); }

  // For errors: the name of the last layer with a number in `in`, an array like parameters(), that
  // is not finite; with nothing given, of the first one with such an output in the last Forward, in
  // training, which is made again. Empty: none, or not known. It waits for a GPU.
  virtual std::string NonFiniteAt(const ExecContext& ctx, std::span<const float> in) { return {}; }
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_CTR_MODEL_H_
