#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/digest_impl.h"
#include "embedding/embedding_collection_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"

namespace hotrow {

using internal::StepPipeline;

absl::StatusOr<int32_t> EmbeddingCollection::Impl::FindTable(const char* call,
                                                             std::string_view name) const {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (options.tables[plan.tables[t].config].name == name) return static_cast<int32_t>(t);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": there is no table \"", std::string(name), "\""));
}

absl::Status EmbeddingCollection::Impl::CheckBetweenSteps(const char* call) const {
  if (outstanding.empty() || !outstanding.front()->looked_up()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      call, ": a step was looked up and waits for its Update; call ", call, " between two steps"));
}

// --- By key

absl::Status EmbeddingCollection::ReadRows(std::string_view table, std::span<const uint64_t> keys,
                                           MatrixView<float> rows, std::span<bool> found) {
  Impl& c = *impl_;
  return c.Together("ReadRows", [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("ReadRows", table));
    const int64_t dim = c.plan.tables[position].layout.dim;
    HOTROW_RETURN_IF_ERROR(internal::CheckShape(rows, std::ssize(keys), dim,
                                                [] { return std::string("ReadRows: rows"); }));
    if (!found.empty() && found.size() != keys.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("ReadRows: found: expected none or ", keys.size(), ", got ", found.size()));
    }
    HOTROW_RETURN_IF_ERROR(c.CheckIdle("ReadRows"));
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return c.evaluation->ReadRows(position, keys, rows, found, c.steps + 1);
  });
}

absl::Status EmbeddingCollection::WriteRows(std::string_view table, std::span<const uint64_t> keys,
                                            MatrixView<const float> rows) {
  Impl& c = *impl_;
  return c.Together("WriteRows", [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("WriteRows", table));
    const internal::PlannedTable& planned = c.plan.tables[position];
    const TableConfig& config = c.options.tables[planned.config];
    HOTROW_RETURN_IF_ERROR(internal::CheckShape(rows, std::ssize(keys), planned.layout.dim,
                                                [] { return std::string("WriteRows: rows"); }));
    HOTROW_RETURN_IF_ERROR(internal::CheckWrittenRows(config, keys, rows));
    HOTROW_RETURN_IF_ERROR(c.rules->CheckWritable(static_cast<size_t>(position)));
    if (!c.outstanding.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("WriteRows: ", c.outstanding.size(),
                       " steps are outstanding; update or drop them first"));
    }
    HOTROW_RETURN_IF_ERROR(c.CheckIdle("WriteRows"));
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    // A row that no step has updated would be none, so before the first one it counts as the first.
    return c.Changing("WriteRows",
                      [&] { return c.writes->Run(position, keys, rows, std::max(c.steps, 1u)); });
  });
}

absl::Status EmbeddingCollection::Erase(std::string_view table, std::span<const uint64_t> keys) {
  Impl& c = *impl_;
  return c.Together("Erase", [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("Erase", table));
    HOTROW_RETURN_IF_ERROR(c.CheckBetweenSteps("Erase"));
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return c.Changing("Erase", [&] { return c.erasure->Run(position, keys); });
  });
}

absl::StatusOr<int64_t> EmbeddingCollection::EraseIf(
    std::string_view table, const std::function<bool(const StoredRow& row)>& wanted) {
  Impl& c = *impl_;
  return c.Together("EraseIf", [&]() -> absl::StatusOr<int64_t> {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("EraseIf", table));
    HOTROW_RETURN_IF_ERROR(c.CheckBetweenSteps("EraseIf"));
    HOTROW_RETURN_IF_ERROR(c.rules->CheckDated(static_cast<size_t>(position)));
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    HOTROW_ASSIGN_OR_RETURN(const std::vector<uint64_t> keys, c.erasure->Choose(position, wanted));
    HOTROW_RETURN_IF_ERROR(c.Changing("EraseIf", [&] { return c.erasure->Run(position, keys); }));
    return std::ssize(keys);
  });
}

// --- All of them

absl::Status EmbeddingCollection::Flush() {
  Impl& c = *impl_;
  return c.Alone("Flush", [&] {
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return c.tiers->Flush();
  });
}

absl::Status EmbeddingCollection::ForEachRow(
    std::string_view table,
    const std::function<absl::Status(uint64_t key, std::span<const float> weights)>& fn) {
  Impl& c = *impl_;
  return c.Alone("ForEachRow", [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("ForEachRow", table));
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return internal::ForEachRowOf(c.ctx, c.plan, static_cast<size_t>(position), *c.rules,
                                  c.tiers.get(), fn);
  });
}

absl::Status EmbeddingCollection::Settle() {
  Impl& c = *impl_;
  return c.Together("Settle", [&]() -> absl::Status {
    if (c.rules->stands()) return absl::OkStatus();
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    const auto own = [&c]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(c.tiers->Flush());
      return c.rules->Settle(c.ctx, c.tiers->store());
    };
    return c.Changing("Settle", [&] { return c.shuffle == nullptr ? own() : c.RunTogether(own); });
  });
}

absl::StatusOr<CollectionDigest> EmbeddingCollection::Digest() {
  Impl& c = *impl_;
  return c.Together("Digest", [&]() -> absl::StatusOr<CollectionDigest> {
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    CollectionDigest digest;
    const auto own = [&]() -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(
          digest.tables, internal::DigestRows(c.ctx, c.options, c.plan, *c.rules, c.tiers.get()));
      return absl::OkStatus();
    };
    if (c.shuffle == nullptr) {
      HOTROW_RETURN_IF_ERROR(own());
    } else {
      HOTROW_RETURN_IF_ERROR(c.RunTogether(own));
      HOTROW_RETURN_IF_ERROR(internal::SumOverRanks(c.shuffle.get(), &digest.tables));
    }
    for (const TableDigest& table : digest.tables) digest.hash += table.hash;
    return digest;
  });
}

}  // namespace hotrow
