#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "comm/compare_ranks.h"
#include "embedding/embedding_collection_impl.h"
#include "embedding/option_table.h"

namespace hotrow {

using internal::DeviceKeyShuffle;
using internal::DeviceRowShuffle;
using internal::Evaluation;
using internal::GradientResiduals;
using internal::PlannedFeature;
using internal::PlannedTable;
using internal::Prefetcher;
using internal::RowErasure;
using internal::RowGradients;
using internal::RowRules;
using internal::RowShuffle;
using internal::RowWrites;
using internal::Snapshots;
using internal::Tiers;

absl::StatusOr<int64_t> EmbeddingCollection::MinCacheBytes(
    const EmbeddingCollectionOptions& options, Device device) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  return internal::MakePlan(options, internal::PlaceOfCaches(options, device)).min_cache_bytes;
}

// --- From the options to the parts

absl::Status EmbeddingCollection::Impl::RunTogether(absl::FunctionRef<absl::Status()> work) {
  return shuffle->RunTogether([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(UseDevice(ctx));
    return work();
  });
}

absl::Status EmbeddingCollection::Impl::Open() {
  if (shuffle != nullptr && options.ranks.feedback_bytes > 0) {
    HOTROW_ASSIGN_OR_RETURN(residuals, GradientResiduals::Create(internal::ResidualTables(options),
                                                                 options.ranks.feedback_bytes));
    shuffle->KeepResiduals(residuals.get());
  }
  HOTROW_ASSIGN_OR_RETURN(tiers, Tiers::Create(options, plan, place, ctx.pool));
  HOTROW_ASSIGN_OR_RETURN(initialised_rows,
                          DeviceMemory<int64_t>::Create(1, {ctx.device, ctx.stream}));
  HOTROW_ASSIGN_OR_RETURN(read_back_rows, SharedBuffer<int64_t>::Create(1, {ctx.device}));
  constexpr int64_t kNone = 0;
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, initialised_rows.data(), &kNone, sizeof(kNone)));
  steps = static_cast<uint32_t>(options.start.steps);
  HOTROW_ASSIGN_OR_RETURN(rules, RowRules::Create(options, plan, shuffle.get()));
  if (!options.start.from.empty()) HOTROW_RETURN_IF_ERROR(rules->CountRows(tiers->store()));
  gradients = std::make_unique<RowGradients>(Parts(), ctx);
  evaluation = std::make_unique<Evaluation>(options, Parts(), ctx);
  erasure = std::make_unique<RowErasure>(options, plan, ctx, tiers.get(), shuffle.get(),
                                         residuals.get(), rules.get());
  writes = std::make_unique<RowWrites>(options, plan, ctx, tiers.get(), shuffle.get(),
                                       erasure.get(), rules.get());
  snapshots =
      std::make_unique<Snapshots>(options, ctx, tiers.get(), [this] { prefetcher->NotifyRoom(); });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CommLane>> EmbeddingCollection::Impl::Connect() {
  Communicator& family = *options.ranks.communicator;
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ids, family.Duplicate());
  HOTROW_RETURN_IF_ERROR(CompareRanks(*ids, ComparedOptions(options)));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rows, family.Duplicate());
  internal::RowShuffleOptions shuffle_options = {.seed = options.seed,
                                                 .forward = options.ranks.forward,
                                                 .backward = options.ranks.backward,
                                                 .rounding = options.ranks.rounding,
                                                 .feedback_bytes = options.ranks.feedback_bytes};
  shuffle_options.sends_lookups = RowRules::AskForLookups(options);
  for (const PlannedTable& table : plan.tables) {
    shuffle_options.tables.push_back(
        {static_cast<uint32_t>(table.config), table.layout.dim, table.read_precision, table.score});
  }
  HOTROW_ASSIGN_OR_RETURN(shuffle, RowShuffle::Create(shuffle_options, std::move(rows)));
  if (place.staged) {
    HOTROW_ASSIGN_OR_RETURN(device_keys, DeviceKeyShuffle::Create(plan, family, place.device));
    HOTROW_ASSIGN_OR_RETURN(device_rows,
                            DeviceRowShuffle::Create(shuffle_options, family, place.device));
  }
  return std::make_unique<CommLane>(std::move(ids));
}

absl::StatusOr<std::unique_ptr<EmbeddingCollection::Impl>> EmbeddingCollection::Impl::Create(
    const EmbeddingCollectionOptions& options, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const CachePlace place = internal::PlaceOfCaches(options, ctx.device);
  HOTROW_RETURN_IF_ERROR(internal::CheckDevice(options, ctx));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->ctx = ctx;
  impl->place = place;
  impl->plan = internal::MakePlan(options, place);
  for (const PlannedFeature& feature : impl->plan.features)
    impl->feature_names.push_back(feature.name);
  for (const TableConfig& table : options.tables) impl->tables.push_back({.name = table.name});
  std::unique_ptr<CommLane> id_lane;
  if (internal::WorldSize(options) == 1) {
    HOTROW_RETURN_IF_ERROR(impl->Open());
  } else {
    // A rank may copy rows for long while others have none to copy.
    HOTROW_ASSIGN_OR_RETURN(id_lane, impl->Connect());
    HOTROW_RETURN_IF_ERROR(impl->RunTogether([&impl]() -> absl::Status { return impl->Open(); }));
  }
  impl->prefetcher =
      std::make_unique<Prefetcher>(impl->options, ctx, impl->tiers.get(), std::move(id_lane));
  // Here, before the lanes of `impl` leave the job and that is what others hear.
  HOTROW_RETURN_IF_ERROR(hotrow::EndJobUnlessOk(impl->family(), impl->prefetcher->status()));
  return impl;
}

absl::StatusOr<std::unique_ptr<EmbeddingCollection>> EmbeddingCollection::Create(
    const EmbeddingCollectionOptions& options, const ExecContext& ctx) {
  Communicator* const ranks = options.ranks.communicator;
  const bool alone = ranks == nullptr || ranks->world_size() == 1;
  return OrEndJob(
      alone ? nullptr : ranks, [&]() -> absl::StatusOr<std::unique_ptr<EmbeddingCollection>> {
        HOTROW_ASSIGN_OR_RETURN(auto made, Impl::Create(options, ctx));
        return std::unique_ptr<EmbeddingCollection>(new EmbeddingCollection(std::move(made)));
      });
}

// --- The end

absl::Status EmbeddingCollection::Close() {
  if (!impl_->outstanding.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Close: ", impl_->outstanding.size(), " steps are outstanding"));
  }
  impl_->snapshots->Join();
  impl_->Stop();
  return impl_->tiers->Close();
}

void EmbeddingCollection::Impl::Stop() {
  // The snapshot first: the pipeline may be waiting for it.
  if (snapshots != nullptr) snapshots->Stop();
  if (prefetcher != nullptr) prefetcher->Stop();
  // What is enqueued reads arrays that go with us.
  if (tiers != nullptr) tiers->WaitForDevice();
  WaitForStream(ctx).IgnoreError();
}

}  // namespace hotrow
