#ifndef HOTROW_CAPI_HANDLES_IMPL_H_
#define HOTROW_CAPI_HANDLES_IMPL_H_

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/thread_pool.h"
#include "capi/batch_copy_impl.h"
#include "capi/call_impl.h"
#include "comm/communicator.h"
#include "embedding/embedding_collection.h"
#include "hotrow/hotrow.h"
#include "models/saving/checkpoint_writer.h"
#include "models/saving/saved_model.h"

#if HOTROW_HAVE_CUDA
#include "base/cuda_device.h"
#endif

// What handles point to.

namespace hotrow::capi {

// Threads and device, shared by a context and its collections.
struct ContextState {
  ~ContextState();

  std::unique_ptr<ThreadPool> pool;
  ExecContext exec;
  std::optional<DeviceStream> stream;  // of a GPU: that of `exec`, where it is the context's own
  std::mutex ordering;                 // of `stream` with others: it has one event for that
};
// The device of a context is the current one of the thread while one lives, and then what was.
class [[maybe_unused]] DeviceScope {  // a variable of it is there for its end
 public:
  static absl::StatusOr<DeviceScope> Enter(const ExecContext& exec);

#if HOTROW_HAVE_CUDA
 private:
  std::optional<CudaDeviceGuard> guard_;  // none: the CPU's
#endif
};
// InvalidArgument, which begins with `name`, where ctx.stream is of another device than ctx's.
absl::Status CheckStream(const ExecContext& ctx, std::string_view name);
// null: a context with default options.
absl::StatusOr<std::shared_ptr<ContextState>> StateOf(const hotrow_context* context);

// Tables is a collection with all that lives as long: its steps, the writer of its checkpoints, and
// what it uses of its context and its communicator.
//
// Threads: all members but `mutex` and `caller` belong to the Turn that is taken.
struct Tables : Handle {
  ~Tables() { End(); }
  // Ends everything; steps that have not ended are cancelled.
  void End();

  std::shared_ptr<ContextState> context;
  std::shared_ptr<Communicator> communicator;
  EmbeddingCollectionOptions options;
  SavedModel description;      // without parts, step and blobs
  std::string start_dir;       // of the model or checkpoint that the tables came from
  int64_t settled_steps = -1;  // rows stand as after this step, see hotrow_settle; -1: not known
  std::unique_ptr<EmbeddingCollection> collection;  // null: it has ended
  std::unique_ptr<CheckpointWriter> writer;         // null: no checkpoints
  std::optional<CudaStream> callers_stream;         // hotrow_collection_use_stream; none: exec's
  BatchCopies copies;                               // of batches with arrays on the GPU
  SavedModel begun;  // what the writer was given last, until that is committed
  std::list<EmbeddingStep> steps;

  std::mutex mutex;
  std::atomic<std::thread::id> caller;  // whose turn it is
  // What was destroyed inside of a callback and goes when its turn ends.
  std::vector<std::list<EmbeddingStep>::iterator> dropped;
  bool end_asked = false;
};

// The ranks that wait in a collective call for this one; null: it is alone.
inline Communicator* FamilyOf(const std::shared_ptr<Communicator>& communicator) {
  return communicator == nullptr || communicator->world_size() == 1 ? nullptr : communicator.get();
}

// Whether checkpoints other than the newest were removed, since what they hold of the disk is
// wanted for what this error refuses. With several ranks nobody can go back to before a call.
bool MadeRoom(Tables& tables, const absl::Status& wanted);

// A call of a collection: waits until the one before it has ended.
class Turn {
 public:
  explicit Turn(std::shared_ptr<Tables> tables);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // FailedPrecondition: a callback of this collection called it, or it has ended.
  absl::Status status() const;
  // Whether a callback of this collection called it.
  bool nested() const { return nested_; }
  Tables* operator->() const { return tables_.get(); }

 private:
  const std::shared_ptr<Tables> tables_;
  const bool nested_;
  absl::StatusOr<DeviceScope> device_;
};

}  // namespace hotrow::capi

struct hotrow_context : hotrow::capi::Handle {
  std::shared_ptr<hotrow::capi::ContextState> state;
};
struct hotrow_communicator : hotrow::capi::Handle {
  std::shared_ptr<hotrow::Communicator> channel;
};
struct hotrow_collection : hotrow::capi::Handle {
  std::shared_ptr<hotrow::capi::Tables> tables;
};
struct hotrow_step : hotrow::capi::Handle {
  std::shared_ptr<hotrow::capi::Tables> tables;
  // Valid while tables->collection is there.
  std::list<hotrow::EmbeddingStep>::iterator step;
};

#endif  // HOTROW_CAPI_HANDLES_IMPL_H_
