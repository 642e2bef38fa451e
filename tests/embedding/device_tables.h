#ifndef HOTROW_TESTS_EMBEDDING_DEVICE_TABLES_H_
#define HOTROW_TESTS_EMBEDDING_DEVICE_TABLES_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "embedding/embedding_collection.h"
#include "gtest/gtest.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/gpu_test.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/test_util.h"

// Tables whose row cache lies on a device: on a GPU where there is one, and everywhere as the same
// tiers in host memory, which take the same ways: at once, and late, as a GPU might.
namespace hotrow::test {

inline constexpr uint64_t kDeviceRows = 800;

struct DevicePlace {
  Device device;
  bool late = false;  // the tables' streams lag
};

// A collection on a device, and what a caller on that device needs: a stream, and outputs and
// gradients in its memory.
class DeviceTables {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceTables>> Create(
      DevicePlace place, const EmbeddingCollectionOptions& options) {
    const Device device = place.device;
    std::unique_ptr<DeviceTables> tables(new DeviceTables());
    HOTROW_ASSIGN_OR_RETURN(tables->stream_, DeviceStream::Create(device));
    tables->ctx_ = tables->stream_.On(ExecContext());
    tables->ctx_.pool = &tables->pool_;
    // The tables' own streams alone, and those of their steps: what is enqueued on the caller's
    // runs at once.
    if (place.late) tables->lagging_.emplace(kLag);
    HOTROW_ASSIGN_OR_RETURN(tables->tables_, EmbeddingCollection::Create(options, tables->ctx_));
    const int64_t floats = options.max_batch_size * tables->tables_->pooled_dim();
    HOTROW_ASSIGN_OR_RETURN(tables->output_,
                            DeviceMemory<float>::Create(floats, {device, tables->stream_.get()}));
    HOTROW_ASSIGN_OR_RETURN(tables->gradient_,
                            DeviceMemory<float>::Create(floats, {device, tables->stream_.get()}));
    tables->depth_ = options.prefetch_depth;
    return tables;
  }

  EmbeddingCollection& operator*() { return *tables_; }
  EmbeddingCollection* operator->() { return tables_.get(); }

  absl::Status Step(const Batch& batch, int step) {
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep prefetched,
                            PrefetchStep(*tables_, batch, step, ctx_.device));
    return Finish(std::move(prefetched), step);
  }

  // The same for features of `dim` columns with one lookup each, whose rows are read where they
  // lie.
  absl::Status StepByRows(const Batch& batch, int step, int64_t dim) {
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep prefetched, tables_->Prefetch(batch.view()));
    const int64_t lookups = std::ssize(batch.values);
    std::vector<const float*> rows(batch.values.size());
    HOTROW_ASSIGN_OR_RETURN(auto device_rows, DeviceMemory<const float*>::Create(
                                                  lookups, {ctx_.device, stream_.get()}));
    HOTROW_RETURN_IF_ERROR(prefetched.LookupRows(device_rows.data()));
    HOTROW_RETURN_IF_ERROR(stream_.Copy(rows.data(), device_rows.data(), device_rows.bytes()));
    HOTROW_RETURN_IF_ERROR(stream_.Wait());
    std::vector<float> output(static_cast<size_t>(lookups * dim));
    for (int64_t i = 0; i < lookups; ++i) {
      HOTROW_RETURN_IF_ERROR(stream_.Copy(output.data() + i * dim, rows[static_cast<size_t>(i)],
                                          dim * static_cast<int64_t>(sizeof(float))));
    }
    HOTROW_RETURN_IF_ERROR(stream_.Wait());
    return Update(std::move(prefetched), step, output);
  }

  // Trains the steps [first, last), those ahead included.
  absl::Status Train(int first, int last, uint64_t rows = kDeviceRows) {
    std::deque<EmbeddingStep> ahead;
    int next = first;
    for (int step = first; step < last; ++step) {
      for (; next < last && std::ssize(ahead) <= depth_; ++next) {
        HOTROW_ASSIGN_OR_RETURN(EmbeddingStep prefetched,
                                PrefetchStep(*tables_, BatchOf(next, rows), next, ctx_.device));
        ahead.push_back(std::move(prefetched));
      }
      HOTROW_RETURN_IF_ERROR(Finish(std::move(ahead.front()), step));
      ahead.pop_front();
    }
    return absl::OkStatus();
  }

  // Enqueues what a step does to the tables, with its output as the gradient; `between` comes
  // before the update. Waits for rows alone.
  absl::Status Enqueue(EmbeddingStep step, const std::function<void(CudaStream)>& between) {
    const auto output = RowsOf(*tables_, step.batch_size(), output_);
    HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = output}));
    between(stream_.get());
    return std::move(step).Update({.pooled = output});
  }
  absl::Status Wait() { return stream_.Wait(); }

  absl::StatusOr<std::vector<float>> Evaluate(const Batch& batch) {
    HOTROW_RETURN_IF_ERROR(
        tables_->Evaluate(batch.view(), {.pooled = RowsOf(*tables_, batch.batch_size, output_)}));
    return Output(batch.batch_size);
  }

 private:
  absl::Status Finish(EmbeddingStep step, int number) {
    HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = RowsOf(*tables_, step.batch_size(), output_)}));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<float> output, Output(step.batch_size()));
    return Update(std::move(step), number, output);
  }

  absl::Status Update(EmbeddingStep step, int number, const std::vector<float>& output) {
    FillGradient(output, static_cast<uint64_t>(number), &host_gradient_);
    HOTROW_RETURN_IF_ERROR(
        stream_.Copy(gradient_.data(), host_gradient_.data(), std::ssize(host_gradient_) * 4));
    return std::move(step).Update({.pooled = RowsOf(*tables_, step.batch_size(), gradient_)});
  }

  absl::StatusOr<std::vector<float>> Output(int64_t batch_size) {
    std::vector<float> output(static_cast<size_t>(batch_size * tables_->pooled_dim()));
    HOTROW_RETURN_IF_ERROR(stream_.Copy(output.data(), output_.data(), std::ssize(output) * 4));
    HOTROW_RETURN_IF_ERROR(stream_.Wait());
    return output;
  }

  // Longer than the host takes to go on to what it does next.
  static constexpr std::chrono::microseconds kLag{300};

  ThreadPool pool_{2};
  DeviceStream stream_;
  ExecContext ctx_;
  DeviceMemory<float> output_;
  DeviceMemory<float> gradient_;
  std::vector<float> host_gradient_;
  int32_t depth_ = 0;
  std::optional<test::LaggingStreams> lagging_;
  std::unique_ptr<EmbeddingCollection> tables_;
};

// On a GPU, if that is where a case runs and where there is one.
class DeviceTablesTest : public testing::TestWithParam<DevicePlace> {
 protected:
  void SetUp() override {
    if (GetParam().device != Device::kCuda) return;
    HOTROW_REQUIRE_GPU_OR_SKIP();
    // On the second one where there are two: a thread that does not set its device is found out.
    UseDevice({.device = Device::kCuda, .device_index = 1}).IgnoreError();
  }

  // The smallest device cache, times `factor`.
  EmbeddingCollectionOptions WithDeviceCache(EmbeddingCollectionOptions options, double factor) {
    options.cache.device_bytes = 1;
    const absl::StatusOr<int64_t> least =
        EmbeddingCollection::MinCacheBytes(options, GetParam().device);
    HOTROW_EXPECT_OK(least);
    options.cache.device_bytes = static_cast<int64_t>(static_cast<double>(*least) * factor);
    return options;
  }
};

inline constexpr DevicePlace kOnCpu = {Device::kCpu};

// Places for INSTANTIATE_TEST_SUITE_P: everywhere in host memory, at once and late, and on a GPU.
inline auto DevicePlaces() {
  return testing::Values(kOnCpu, DevicePlace{Device::kCpu, true}, DevicePlace{Device::kCuda});
}
inline std::string NameOfDevicePlace(const testing::TestParamInfo<DevicePlace>& info) {
  if (info.param.device == Device::kCuda) return "Gpu";
  return info.param.late ? "HostMemoryLate" : "HostMemory";
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_EMBEDDING_DEVICE_TABLES_H_
