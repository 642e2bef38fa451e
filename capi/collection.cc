#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "capi/batch_copy_impl.h"
#include "capi/call_impl.h"
#include "capi/handles_impl.h"
#include "capi/options_impl.h"
#include "capi/tables_impl.h"
#include "capi/views_impl.h"
#include "comm/run_together.h"
#include "embedding/stats.h"

namespace hotrow::capi {

void Tables::End() {
  writer.reset();  // its thread commits snapshots of the collection
  steps.clear();
  collection.reset();
  copies = {};
}

Turn::Turn(std::shared_ptr<Tables> tables)
    : tables_(std::move(tables)),
      nested_(tables_->caller == std::this_thread::get_id()),
      device_(DeviceScope::Enter(tables_->context->exec)) {
  if (nested_) return;
  tables_->mutex.lock();
  tables_->caller = std::this_thread::get_id();
}

Turn::~Turn() {
  if (nested_) return;
  for (const auto step : tables_->dropped) tables_->steps.erase(step);
  tables_->dropped.clear();
  if (tables_->end_asked) tables_->End();
  tables_->caller = std::thread::id();
  tables_->mutex.unlock();
}

absl::Status Turn::status() const {
  if (nested_) {
    return absl::FailedPreconditionError(
        "the collection was called by a callback that it had called");
  }
  if (tables_->collection == nullptr) {
    return absl::FailedPreconditionError("the collection has been closed");
  }
  return device_.status();
}

bool MadeRoom(Tables& tables, const absl::Status& wanted) {
  if (!IsOutOfRoom(wanted)) return false;
  if (FamilyOf(tables.communicator) != nullptr || tables.writer == nullptr) return false;
  const bool was_busy = tables.writer->busy();  // then its commit lets older ones go
  if (!tables.writer->Wait().ok()) return false;
  const absl::StatusOr<bool> removed = tables.writer->KeepNewestOnly();
  return removed.ok() && (*removed || was_busy);
}

namespace {

// A call of a collection.
template <typename Body>
hotrow_status CallTables(const hotrow_collection* collection, const Body& body) noexcept {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(collection, "collection"));
    const Turn turn(collection->tables);
    HOTROW_RETURN_IF_ERROR(turn.status());
    return body(*turn.operator->());
  });
}

// One that all ranks make together. After an error it can be made again.
template <typename Body>
hotrow_status CallTogether(const hotrow_collection* collection, const Body& body) noexcept {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(collection, "collection"));
    const Turn turn(collection->tables);
    return OrEndJob(FamilyOf(turn->communicator), [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(turn.status());
      Tables& tables = *turn.operator->();
      const absl::Status status = body(tables);
      return MadeRoom(tables, status) ? body(tables) : status;
    });
  });
}

// A call of a step, which all ranks make together.
template <typename Body>
hotrow_status CallStep(const hotrow_step* step, const Body& body) noexcept {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(step, "step"));
    const Turn turn(step->tables);
    return OrEndJob(FamilyOf(turn->communicator), [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(turn.status());
      return body(*turn.operator->(), *step->step);
    });
  });
}

ExecContext OnCallersStream(const Tables& tables) {
  ExecContext callers = tables.context->exec;
  callers.stream = tables.callers_stream.value_or(callers.stream);
  return callers;
}

// Runs a call that reads or writes device memory of the caller's: what it enqueues comes behind
// what the caller's stream has, and before what that gets later.
template <typename Body>
absl::Status InOrder(Tables& tables, const Body& body) {
  if (!tables.callers_stream.has_value()) return body();
  DeviceStream& own = *tables.context->stream;
  const ExecContext callers = OnCallersStream(tables);
  {
    const std::lock_guard<std::mutex> lock(tables.context->ordering);
    HOTROW_RETURN_IF_ERROR(own.RunAfter(callers.stream));
  }
  absl::Status status = body();
  const std::lock_guard<std::mutex> lock(tables.context->ordering);
  const absl::Status ordered = own.RunBefore(callers);
  return status.ok() ? ordered : status;
}

// Those who are to share the tables; null: nobody.
Communicator* SharersOf(const hotrow_collection_options& options) {
  if (!TakeStruct(&options, options, "options").ok()) return nullptr;  // the struct is none of ours
  const hotrow_communicator* const ranks = options.communicator;
  return ranks == nullptr || ranks->forked() ? nullptr : FamilyOf(ranks->channel);
}

absl::StatusOr<const TableConfig*> FindTable(const Tables& tables, const char* name) {
  HOTROW_RETURN_IF_ERROR(NotNull(name, "table"));
  for (const TableConfig& table : tables.options.tables) {
    if (table.name == name) return &table;
  }
  return absl::InvalidArgumentError(absl::StrCat("table: there is no \"", name, "\""));
}

// Rows gathered for hotrow_rows_fn.
class RowBlock {
 public:
  static constexpr int64_t kBytes = int64_t{1} << 20;
  static constexpr int64_t kRowsMax = 4096;

  RowBlock(int64_t dim, hotrow_rows_fn fn, void* user)
      : dim_(dim),
        rows_max_(std::clamp<int64_t>(kBytes / (4 * dim), 1, kRowsMax)),  // <= 2^33
        fn_(fn),
        user_(user) {
    keys_.reserve(static_cast<size_t>(rows_max_));
    rows_.reserve(static_cast<size_t>(rows_max_ * dim));  // <= kBytes, or one row
  }

  absl::Status Add(uint64_t key, std::span<const float> weights) {
    keys_.push_back(key);
    rows_.insert(rows_.end(), weights.begin(), weights.end());
    return std::ssize(keys_) < rows_max_ ? absl::OkStatus() : Give();
  }
  absl::Status Give() {
    if (keys_.empty()) return absl::OkStatus();
    const hotrow_status code = fn_(user_, keys_.data(), rows_.data(), std::ssize(keys_), dim_);
    keys_.clear();
    rows_.clear();
    if (code == HOTROW_OK) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(code), "the callback ended the iteration");
  }

 private:
  const int64_t dim_;
  const int64_t rows_max_;
  const hotrow_rows_fn fn_;
  void* const user_;
  std::vector<uint64_t> keys_;
  std::vector<float> rows_;
};

absl::Status NoOwnSnapshots(const Tables& tables) {
  if (tables.writer == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the collection has a checkpoint_dir, which keeps its snapshots; use "
      "hotrow_checkpoint_begin");
}

// A call of the snapshots that the caller keeps.
template <typename Body>
hotrow_status CallSnapshots(const hotrow_collection* collection, const Body& body) noexcept {
  return CallTables(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NoOwnSnapshots(tables));
    return body(tables.collection->snapshots());
  });
}

absl::StatusOr<BatchView> TakeBatchOf(const Tables& tables, const hotrow_batch* batch) {
  HOTROW_ASSIGN_OR_RETURN(BatchView view, TakeBatch(batch, tables.collection->feature_names(),
                                                    tables.context->exec.device));
  // The engine says so of a batch that it sees; a copy would take the memory before.
  if (view.on_device && view.all.batch_size > tables.options.max_batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("batch.batch_size: is ", view.all.batch_size,
                                                   ", must lie in [0, ",
                                                   tables.options.max_batch_size, "]"));
  }
  return view;
}

// owner: null: the batch is copied.
absl::StatusOr<EmbeddingStep> MakeStep(Tables& tables, const BatchView& view,
                                       std::shared_ptr<const void> owner,
                                       std::function<absl::Status()> ready = nullptr) {
  EmbeddingCollection& to = *tables.collection;
  return view.jagged ? to.Prefetch(view.all, std::move(owner), std::move(ready))
                     : to.Prefetch(view.features(), std::move(owner), std::move(ready));
}

// The same for a batch with arrays on the GPU; no thread of the caller's waits for them.
absl::StatusOr<EmbeddingStep> MakeStepOfCopy(Tables& tables, const BatchView& view) {
  HOTROW_ASSIGN_OR_RETURN(
      const std::shared_ptr<BatchCopy> copy,
      tables.copies.Begin(OnCallersStream(tables), view, tables.collection->feature_names()));
  return MakeStep(tables, copy->view(), copy, [its = copy.get()] { return its->Wait(); });
}

// owner: null: the batch is copied.
hotrow_status Prefetch(hotrow_collection* collection, const hotrow_batch* batch,
                       std::shared_ptr<const void> owner, hotrow_step** step) noexcept {
  return CallTogether(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(step, "step"));
    HOTROW_ASSIGN_OR_RETURN(const BatchView view, TakeBatchOf(tables, batch));
    // Before the step, so that none is left behind when there is no memory for its handle.
    auto handle = std::make_unique<hotrow_step>();
    std::list<EmbeddingStep> made(1);
    // The owner stays for another try.
    HOTROW_ASSIGN_OR_RETURN(made.front(), view.on_device ? MakeStepOfCopy(tables, view)
                                                         : MakeStep(tables, view, owner));
    tables.steps.splice(tables.steps.end(), made);
    handle->tables = collection->tables;
    handle->step = std::prev(tables.steps.end());
    *step = handle.release();
    return absl::OkStatus();
  });
}

absl::StatusOr<std::span<const uint64_t>> TakeKeys(const uint64_t* keys, int64_t num_keys) {
  HOTROW_RETURN_IF_ERROR(CheckCount(num_keys, "num_keys"));
  return TakeArray<uint64_t>(keys, num_keys, "keys");
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow;        // NOLINT: what follows is the C interface
using namespace hotrow::capi;  // NOLINT

extern "C" {

hotrow_status hotrow_collection_create(hotrow_context* context,
                                       const hotrow_collection_options* options,
                                       hotrow_collection** collection) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(options, "options"));
    return OrEndJob(SharersOf(*options), [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(NotNull(collection, "collection"));
      HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<Tables> tables, MakeTables(context, *options));
      *collection = new hotrow_collection{{}, std::move(tables)};
      return absl::OkStatus();
    });
  });
}

hotrow_status hotrow_collection_close(hotrow_collection* collection) {
  if (collection != nullptr && collection->forked()) return HOTROW_OK;
  return CallTables(collection, [](Tables& tables) -> absl::Status {
    if (tables.writer != nullptr) HOTROW_RETURN_IF_ERROR(tables.writer->Wait());
    HOTROW_RETURN_IF_ERROR(tables.collection->Close());
    tables.End();
    return absl::OkStatus();
  });
}

void hotrow_collection_abandon(hotrow_collection* collection) {
  if (collection == nullptr || collection->forked()) return;
  CallVoid([&] {
    const Turn turn(collection->tables);
    turn.nested() ? static_cast<void>(turn->end_asked = true) : turn->End();
  });
}

void hotrow_collection_destroy(hotrow_collection* collection) {
  hotrow_collection_abandon(collection);
  CallVoid([&] { Destroy(collection); });
}

hotrow_status hotrow_collection_use_stream(hotrow_collection* collection, void* cuda_stream) {
  return CallTables(collection, [&](Tables& tables) -> absl::Status {
    if (!tables.context->stream.has_value()) {
      return absl::FailedPreconditionError(
          "the collection's context has no stream that is its own; make it with the device cuda "
          "and without a cuda_stream");
    }
    ExecContext on = tables.context->exec;
    on.stream = static_cast<CudaStream>(cuda_stream);
    // The default stream is that of the current device, which is the context's.
    if (on.stream != nullptr) HOTROW_RETURN_IF_ERROR(CheckStream(on, "cuda_stream"));
    tables.callers_stream = on.stream;
    return absl::OkStatus();
  });
}

hotrow_status hotrow_wait(hotrow_collection* collection) {
  return CallTables(collection, [](Tables& tables) { return WaitForStream(tables.context->exec); });
}

hotrow_status hotrow_min_cache_bytes(hotrow_context* context,
                                     const hotrow_collection_options* options, int64_t* bytes) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(options, "options"));
    HOTROW_RETURN_IF_ERROR(NotNull(bytes, "bytes"));
    HOTROW_ASSIGN_OR_RETURN(EmbeddingCollectionOptions taken, TakeOptions(*options));
    if (options->communicator != nullptr) {
      HOTROW_RETURN_IF_ERROR(Usable(options->communicator, "communicator"));
      taken.ranks.communicator = options->communicator->channel.get();
    }
    const Device device = context == nullptr ? Device::kCpu : context->state->exec.device;
    HOTROW_ASSIGN_OR_RETURN(*bytes, EmbeddingCollection::MinCacheBytes(taken, device));
    return absl::OkStatus();
  });
}

hotrow_status hotrow_collection_describe(hotrow_collection* collection, char* text, uint64_t size,
                                         uint64_t* needed) {
  return CallTables(collection, [&](const Tables& tables) {
    return GiveText(Describe(tables), text, size, needed);
  });
}

hotrow_status hotrow_prefetch(hotrow_collection* collection, const hotrow_batch* batch,
                              hotrow_step** step) {
  return Prefetch(collection, batch, /*owner=*/nullptr, step);
}

hotrow_status hotrow_prefetch_in_place(hotrow_collection* collection, const hotrow_batch* batch,
                                       hotrow_release_fn release, void* user, hotrow_step** step) {
  static constexpr char kOwned = 0;  // any address: it is never read
  std::shared_ptr<const void> owner;
  const hotrow_status made = Call([&]() -> absl::Status {
    // Also calls release where it finds no memory.
    owner = std::shared_ptr<const void>(&kOwned, [release, user](const void*) {
      if (release != nullptr) release(user);
    });
    return absl::OkStatus();
  });
  if (made == HOTROW_OK) return Prefetch(collection, batch, std::move(owner), step);
  // The others wait in it.
  return CallTogether(collection, [](Tables&) -> absl::Status { throw std::bad_alloc(); });
}

hotrow_status hotrow_step_lookup(hotrow_step* step, const hotrow_matrix* pooled,
                                 const hotrow_matrix* unpooled, int64_t num_unpooled) {
  return CallStep(step, [&](Tables& tables, EmbeddingStep& its) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput output,
                            TakeOutput(tables.context->exec, pooled, unpooled, num_unpooled));
    return InOrder(tables, [&] { return its.Lookup(output); });
  });
}

hotrow_status hotrow_step_update(hotrow_step* step, const hotrow_matrix* pooled,
                                 const hotrow_matrix* unpooled, int64_t num_unpooled,
                                 float learning_rate_factor) {
  return CallStep(step, [&](Tables& tables, EmbeddingStep& its) -> absl::Status {
    EmbeddingStep ending = std::move(its);
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingGradient gradient,
                            TakeGradient(tables.context->exec, pooled, unpooled, num_unpooled));
    return InOrder(tables,
                   [&] { return std::move(ending).Update(gradient, learning_rate_factor); });
  });
}

hotrow_status hotrow_step_begin_lookup(hotrow_step* step) {
  return CallStep(step, [](const Tables&, EmbeddingStep& its) { return its.BeginLookup(); });
}

hotrow_status hotrow_step_begin_update(hotrow_step* step, const hotrow_matrix* pooled,
                                       const hotrow_matrix* unpooled, int64_t num_unpooled) {
  return CallStep(step, [&](Tables& tables, EmbeddingStep& its) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingGradient gradient,
                            TakeGradient(tables.context->exec, pooled, unpooled, num_unpooled));
    return InOrder(tables, [&] { return its.BeginUpdate(gradient); });
  });
}

void hotrow_step_destroy(hotrow_step* step) {
  if (step == nullptr || step->forked()) return;
  CallVoid([&] {
    const Turn turn(step->tables);
    if (turn->collection == nullptr) return;  // the step went with it
    if (turn.nested()) {
      turn->dropped.push_back(step->step);
    } else {
      turn->steps.erase(step->step);
    }
  });
  delete step;
}

hotrow_status hotrow_evaluate(hotrow_collection* collection, const hotrow_batch* batch,
                              const hotrow_matrix* pooled, const hotrow_matrix* unpooled,
                              int64_t num_unpooled) {
  return CallTogether(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(BatchView view, TakeBatchOf(tables, batch));
    HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput output,
                            TakeOutput(tables.context->exec, pooled, unpooled, num_unpooled));
    std::shared_ptr<BatchCopy> copy;
    if (view.on_device) {
      HOTROW_ASSIGN_OR_RETURN(copy, tables.copies.Begin(OnCallersStream(tables), view,
                                                        tables.collection->feature_names()));
      HOTROW_RETURN_IF_ERROR(copy->Wait());
      view = copy->view();
    }
    return InOrder(tables, [&] {
      return view.jagged ? tables.collection->Evaluate(view.all, output)
                         : tables.collection->Evaluate(view.features(), output);
    });
  });
}

hotrow_status hotrow_read_rows(hotrow_collection* collection, const char* table,
                               const uint64_t* keys, int64_t num_keys, const hotrow_matrix* rows,
                               uint8_t* found) {
  static_assert(sizeof(bool) == sizeof(uint8_t));
  return CallTogether(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(FindTable(tables, table).status());
    HOTROW_ASSIGN_OR_RETURN(const std::span<const uint64_t> of, TakeKeys(keys, num_keys));
    HOTROW_RETURN_IF_ERROR(NotNull(rows, "rows"));
    HOTROW_ASSIGN_OR_RETURN(const MatrixView<float> view, TakeMatrix(*rows, "rows"));
    HOTROW_RETURN_IF_ERROR(CheckArray(found, found == nullptr ? 0 : num_keys, 1, 1, "found"));
    return tables.collection->ReadRows(table, of, view,
                                       found == nullptr
                                           ? std::span<bool>()
                                           : std::span(reinterpret_cast<bool*>(found), of.size()));
  });
}

hotrow_status hotrow_write_rows(hotrow_collection* collection, const char* table,
                                const uint64_t* keys, int64_t num_keys, const hotrow_matrix* rows) {
  return CallTogether(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(FindTable(tables, table).status());
    HOTROW_ASSIGN_OR_RETURN(const std::span<const uint64_t> of, TakeKeys(keys, num_keys));
    HOTROW_RETURN_IF_ERROR(NotNull(rows, "rows"));
    HOTROW_ASSIGN_OR_RETURN(const MatrixView<float> view, TakeMatrix(*rows, "rows"));
    return tables.collection->WriteRows(table, of, view);
  });
}

hotrow_status hotrow_erase(hotrow_collection* collection, const char* table, const uint64_t* keys,
                           int64_t num_keys) {
  return CallTogether(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(FindTable(tables, table).status());
    HOTROW_ASSIGN_OR_RETURN(const std::span<const uint64_t> of, TakeKeys(keys, num_keys));
    return tables.collection->Erase(table, of);
  });
}

hotrow_status hotrow_erase_older_than(hotrow_collection* collection, const char* table,
                                      int64_t step, int64_t* erased) {
  return CallTogether(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(FindTable(tables, table).status());
    if (step < 0) {
      return absl::InvalidArgumentError(absl::StrCat("step must be at least 0, is ", step));
    }
    HOTROW_ASSIGN_OR_RETURN(const int64_t gone,
                            tables.collection->EraseIf(table, [step](const StoredRow& row) {
                              return row.last_step != 0 && row.last_step < step;
                            }));
    if (erased != nullptr) *erased = gone;
    return absl::OkStatus();
  });
}

hotrow_status hotrow_for_each_row(hotrow_collection* collection, const char* table,
                                  hotrow_rows_fn fn, void* user) {
  return CallTables(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const TableConfig* const config, FindTable(tables, table));
    HOTROW_RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(fn), "fn"));
    RowBlock block(config->embedding_dim, fn, user);
    HOTROW_RETURN_IF_ERROR(tables.collection->ForEachRow(
        table,
        [&](uint64_t key, std::span<const float> weights) { return block.Add(key, weights); }));
    return block.Give();
  });
}

hotrow_status hotrow_flush(hotrow_collection* collection) {
  return CallTables(collection, [](Tables& tables) { return tables.collection->Flush(); });
}

hotrow_status hotrow_settle(hotrow_collection* collection) {
  return CallTogether(collection, [](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(tables.collection->Settle());
    tables.settled_steps = tables.collection->steps();
    return absl::OkStatus();
  });
}

hotrow_status hotrow_digest(hotrow_collection* collection, char* text, uint64_t size,
                            uint64_t* needed) {
  return CallTables(collection, [&](Tables& tables) -> absl::Status {
    const absl::Status room = CheckRoom(DigestTextBytesMax(tables), text, size, needed);
    // Who asks how much room it takes is not in the call of all ranks yet.
    if (absl::IsOutOfRange(room)) return room;
    return OrEndJob(FamilyOf(tables.communicator), [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(room);
      HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.collection->Digest());
      return GiveText(DigestText(digest), text, size, needed);
    });
  });
}

hotrow_status hotrow_steps(hotrow_collection* collection, int64_t* steps) {
  return CallTables(collection, [&](Tables& tables) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(steps, "steps"));
    *steps = tables.collection->steps();
    return absl::OkStatus();
  });
}

hotrow_status hotrow_stats(hotrow_collection* collection, char* text, uint64_t size,
                           uint64_t* needed) {
  return CallTables(collection, [&](Tables& tables) {
    return GiveText(StatsText(tables.collection->Stats()), text, size, needed);
  });
}

hotrow_status hotrow_metrics(hotrow_collection* collection, char* text, uint64_t size,
                             uint64_t* needed) {
  return CallTables(collection, [&](Tables& tables) {
    return GiveText(MetricsText(tables.collection->Stats()), text, size, needed);
  });
}

hotrow_status hotrow_snapshot_announce(hotrow_collection* collection) {
  return CallSnapshots(collection, [](EmbeddingSnapshots& snapshots) {
    snapshots.Announce();
    return absl::OkStatus();
  });
}

hotrow_status hotrow_snapshot_begin(hotrow_collection* collection, uint64_t snapshot) {
  return CallSnapshots(collection,
                       [&](EmbeddingSnapshots& snapshots) { return snapshots.Begin(snapshot); });
}

hotrow_status hotrow_snapshot_prepared(hotrow_collection* collection, int32_t* prepared) {
  return CallSnapshots(collection, [&](EmbeddingSnapshots& snapshots) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(prepared, "prepared"));
    HOTROW_ASSIGN_OR_RETURN(const bool is, snapshots.Prepared());
    *prepared = is ? 1 : 0;
    return absl::OkStatus();
  });
}

hotrow_status hotrow_snapshot_wait(hotrow_collection* collection) {
  return CallSnapshots(collection, [](EmbeddingSnapshots& snapshots) { return snapshots.Wait(); });
}

hotrow_status hotrow_snapshot_commit(hotrow_collection* collection, uint64_t snapshot) {
  return CallSnapshots(collection,
                       [&](EmbeddingSnapshots& snapshots) { return snapshots.Commit(snapshot); });
}

hotrow_status hotrow_snapshot_drop(hotrow_collection* collection, uint64_t snapshot) {
  return CallSnapshots(collection,
                       [&](EmbeddingSnapshots& snapshots) { return snapshots.Drop(snapshot); });
}

hotrow_status hotrow_snapshot_list(hotrow_collection* collection, uint64_t* snapshots, int64_t size,
                                   int64_t* count) {
  return CallSnapshots(collection, [&](EmbeddingSnapshots& its) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(count, "count"));
    if (size > 0) HOTROW_RETURN_IF_ERROR(NotNull(snapshots, "snapshots"));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> ids, its.List());
    *count = std::ssize(ids);
    std::copy_n(ids.begin(), std::clamp<int64_t>(size, 0, std::ssize(ids)), snapshots);
    return absl::OkStatus();
  });
}

}  // extern "C"
