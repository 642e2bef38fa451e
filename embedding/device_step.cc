#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/device_stream.h"
#include "base/status_macros.h"
#include "embedding/device_keys_impl.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "embedding/ranks/device_row_shuffle_impl.h"
#include "embedding/step_impl.h"
#include "embedding/tiers/step_arrays_impl.h"

namespace hotrow::internal {
namespace {

// A step whose keys and rows are on a device: no loop of the host goes over them. The host waits
// in FindKeys until it knows how many keys each table has.
class DeviceStep final : public StepBatch {
 public:
  DeviceStep(const StepParts& parts, DeviceStream stream)
      : StepBatch(parts), stream_(std::move(stream)) {
    input = TakenBatch(stream_.device());
  }
  ~DeviceStep() override { stream_.Wait().IgnoreError(); }

  absl::Status FindKeys(const ExecContext& ctx, UniqueScratch* scratch) override {
    FindSegments(&scratch->segments);
    arrays_.Clear();
    const size_t values_part = arrays_.AddShared(input.values);
    const size_t offsets_part = arrays_.AddShared(input.offsets);
    const size_t weights_part = arrays_.AddShared(input.weights);
    HOTROW_RETURN_IF_ERROR(OrWait([&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(arrays_.Enqueue(&stream_));
      HOTROW_RETURN_IF_ERROR(wanted_.Find(ctx, parts_.plan, arrays_.At<uint64_t>(values_part),
                                          input.num_lookups(), scratch->segments, &stream_));
      return wanted_.Group(ctx, &stream_);
    }));
    at = {.offsets = arrays_.At<int64_t>(offsets_part),
          .weights = input.weights.empty() ? nullptr : arrays_.At<float>(weights_part),
          .inverse = wanted_.inverse(),
          .row_offsets = wanted_.row_offsets(),
          .lookup_order = wanted_.lookup_order(),
          .value_rows = wanted_.rows().data()};
    return alone() ? Serve() : absl::OkStatus();
  }

  absl::Status ExchangeKeys(const ExecContext& ctx, Communicator& /*channel*/,
                            RowShuffle::Scratch* /*scratch*/) override {
    HOTROW_RETURN_IF_ERROR(parts_.device_keys->Exchange(ctx, wanted_, &shuffled_));
    return Serve();
  }

  std::span<const int64_t> wanted_offsets() const override { return wanted_.table_offsets(); }
  StepKeys served() const override {
    const DeviceKeys& keys = alone() ? wanted_ : shuffled_.served;
    return {keys.keys(), keys.counts(), keys.table_offsets()};
  }

  // With a cache a row stays where it is until the step ends.
  absl::Status Fill(const ExecContext& ctx, TierStep* tiers) override {
    const absl::Status enqueued =
        stream_.Run(ctx, [all = parts_.tiers, tiers, rows = rows()](const ExecContext& here) {
          return all->Resolve(here, tiers, rows);
        });
    // All that was enqueued reads what the step holds.
    const absl::Status done = stream_.Wait();
    return enqueued.ok() ? done : enqueued;
  }

  absl::Status BeginLookup(const ExecContext& ctx, TierStep* /*tiers*/, uint32_t update) override {
    if (alone()) return absl::OkStatus();
    return parts_.device_rows->StartRows(ctx, shuffled_.routes(), at.rows, update,
                                         /*evaluation=*/false,
                                         const_cast<const std::byte**>(wanted_.rows().data()));
  }
  absl::Status FinishLookup(const ExecContext& ctx) override {
    return parts_.device_rows->FinishRows(ctx);
  }

  RuledRows ruled_rows() const override { return {no_keys_, {}, {}, {}}; }
  std::span<std::byte*> rows() override { return served_keys().rows(); }
  absl::Status StartGradients(const ExecContext& ctx, uint32_t update,
                              float* const* sums) override {
    return parts_.device_rows->StartGradients(ctx, wanted_, shuffled_.routes(), at.gradients,
                                              update, sums);
  }
  absl::Status FinishGradients(const ExecContext& ctx, float* const* /*sums*/) override {
    return parts_.device_rows->FinishGradients(ctx);
  }
  absl::StatusOr<StepKeys> Told() override {
    std::span<const RowKey> keys;
    std::span<const int32_t> counts;
    HOTROW_RETURN_IF_ERROR(served_keys().Told(&keys, &counts));
    return StepKeys{keys.data(), counts.data(), served().table_offsets};
  }

  void End(const ExecContext& ctx, TierStep* tiers, bool begun, bool updated) override {
    // What a Start that failed has enqueued reads the step, too.
    if (begun && !alone()) parts_.device_rows->Drop(ctx);
    parts_.tiers->Release(ctx, tiers, updated);
    // An error is one of the device, and the next call that enqueues says it again.
    stream_.RunAfter(ctx.stream).IgnoreError();
  }

  void AddTo(EmbeddingStats* stats) const override {
    stats->transfer_host_bytes +=
        arrays_.host_bytes() + wanted_.host_bytes() + shuffled_.served.host_bytes();
    stats->transfer_device_bytes += arrays_.device_bytes() + wanted_.device_bytes() +
                                    shuffled_.device_bytes() + shuffled_.served.device_bytes();
    // The batch travels from where it lies.
    if (wanted_.host_bytes() > 0) stats->transfer_host_bytes += input.bytes();
  }

 private:
  DeviceKeys& served_keys() { return alone() ? wanted_ : shuffled_.served; }
  // An error or an exception of `work` comes when what was enqueued is done: it reads the batch,
  // the segments and the arrays.
  template <typename Work>
  absl::Status OrWait(const Work& work) {
    try {
      const absl::Status status = work();
      if (!status.ok()) stream_.Wait().IgnoreError();
      return status;
    } catch (...) {
      stream_.Wait().IgnoreError();
      throw;
    }
  }
  // What is served is known: the rest of `at`, and the host is told of the keys where it wants to
  // know them.
  absl::Status Serve() {
    at.rows = served_keys().rows().data();
    if (parts_.plan.rounds) at.served_keys = served_keys().values();
    return parts_.tells ? served_keys().Tell() : absl::OkStatus();
  }

  // The batch travels on it, and keys are found there. Since memory is used again, it also waits
  // for the kernels that read the copies of the time before.
  DeviceStream stream_;
  StepArrays arrays_;
  DeviceKeys wanted_;
  DeviceShuffledKeys shuffled_;  // several ranks: what they want of this one
  const TableKeys no_keys_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepBatch>> StepBatch::Create(const StepParts& parts,
                                                             const ExecContext& ctx) {
  if (!parts.tiers->staged()) return std::make_unique<HostStep>(parts);
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream,
                          DeviceStream::Create(ctx.device, /*is_urgent=*/true));
  return std::make_unique<DeviceStep>(parts, std::move(stream));
}

}  // namespace hotrow::internal
