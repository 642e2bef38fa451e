#ifndef HOTROW_EMBEDDING_OPTIONS_H_
#define HOTROW_EMBEDDING_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/row_key.h"
#include "base/row_lines.h"
#include "cache/cache_policy.h"
#include "embedding/serving/serving_rows.h"
#include "embedding/table_policies.h"
#include "ops/pooling.h"
#include "ops/rows/exchange_type.h"
#include "ops/rows/initializer.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer_config.h"
#include "store/snapshot.h"
#include "store/store_kind.h"

// What an EmbeddingCollection is made from.

namespace hotrow {

class Communicator;
class Env;

// One embedding table. A table has no fixed size: any 64-bit key gets a row at its first update.
struct TableConfig {
  std::string name;                        // required, distinct
  int32_t embedding_dim = 0;               // D > 0, any number
  std::vector<std::string> feature_names;  // required; the features that look rows up here
  Pooling pooling = Pooling::kSum;
  // Storage type of a row's weights. fp16 and bf16 halve their bytes, in memory and on disk.
  // Outputs, gradients and optimizer state are float; updates use unbiased stochastic rounding, see
  // ops/rows/weights_precision.h. Between ranks rows travel as RankOptions::forward, which loses
  // nothing where it is the same.
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  SparseOptimizerConfig optimizer;
  Initializer initializer;
  // The gradient of a row in a step, summed over its lookups, is scaled down to this Euclidean norm
  // where it is longer; 0: never. On a CPU only.
  float max_row_gradient_norm = 0;
  // Those of feature_names whose lookups get no gradient. A row is updated in the steps in which
  // another feature looks it up. All of them here: the table is frozen: its rows stay clean, none
  // is made, and unseen keys read their initial rows; the optimizer then only says how wide rows
  // are.
  std::vector<std::string> read_only_features;
  // Which keys get a row, and after how many steps without an update a row ages and reads as if it
  // had never been there; 0: never. docs/row_life.md. Both on a CPU without a device cache only,
  // and not where the table decays as a whole; admission not with read_only_features, ttl_steps not
  // where all features are read only.
  Admission admission;
  int64_t ttl_steps = 0;
  // Rows of all ranks together; 0: no limit. Below min_rows, which goes with ttl_steps only, no row
  // ages. Above max_rows those age whose last update is longest ago. Both are kept at each multiple
  // of EmbeddingCollectionOptions::row_limit_steps, and whole groups of so many steps age together;
  // the rows of the last group stay. ttl_steps then is judged there as well.
  int64_t min_rows = 0;
  int64_t max_rows = 0;
  // Whether rows keep a score, 4 bytes each, which batches bring (JaggedBatch::scores), and what
  // becomes of it. On a CPU without a device cache only; not with read_only_features, nor where the
  // table decays as a whole.
  ScoreRule score = ScoreRule::kNone;
  // kScore: above max_rows the lowest scores age, whole ranges of them (base/row_lines.h), the
  // oldest rows of the last range before its others; needs `score`, and goes with neither ttl_steps
  // nor min_rows.
  RowOrder max_rows_by = RowOrder::kAge;
  // How lookups, in training and evaluation, read rows: as a model that keeps them so for serving
  // does (ScorerOptions::rows), so that what is trained is what is served. Updates take the
  // gradients for the weights with all their bits, which stores and snapshots have. On a CPU
  // without a device cache only.
  ServingRows serve_rows = ServingRows::kAsTrained;
  // 0: any key. Otherwise keys lie in [0, num_embeddings) and others are InvalidArgument.
  int64_t num_embeddings = 0;
  // The most lookups a feature of this table has in one sample; 0 when that is not known. Known for
  // all tables, a cache too small for one step is refused by Create instead of by the first batch
  // that does not fit.
  int64_t max_hotness = 0;
};

// Where rows come from: a snapshot of the store of one collection, or of one rank's part of it.
struct SnapshotSource {
  SnapshotId snapshot = 0;  // required
  // Known: the snapshot must have this identity, FailedPrecondition otherwise.
  UniqueId identity;
  std::optional<StoreKind> store;  // none: the kind of the collection that is to be opened
  // path of an ssd or rocksdb store, snapshot_dir of a memory store; empty: the collection's
  std::string dir;
};

// --- Where rows are stored ---

// All rows in memory.
struct MemoryStorage {
  int64_t memory_bytes = 0;  // required; a hard limit
  std::string snapshot_dir;  // where snapshots are written; empty: no snapshots
};
// Rows in a log on an SSD, with an index in memory.
struct SsdStorage {
  std::string path;  // required; made if missing. One collection at a time, in any process
  std::vector<std::string> more_paths;  // further directories, on other drives: rows are striped
  int64_t memory_bytes = 0;             // required; of index, buffers and metadata: a hard limit
  int64_t disk_bytes = 0;               // required; of all files, snapshots included
};
// Rows in RocksDB, where the build has it.
struct RocksDbStorage {
  std::string path;          // required; made if missing. One collection at a time, in any process
  int64_t memory_bytes = 0;  // required; see store/rocks/rocks_store.h
  int64_t disk_bytes = 0;    // required; of all files, snapshots included
};
using Storage = std::variant<MemoryStorage, SsdStorage, RocksDbStorage>;  // as in StoreKind

// --- The rest, by subject ---

// The tiers above the store.
struct CacheOptions {
  // Budget of the row cache over the store, without device_bytes: rows, keys, marks, overflow,
  // staging and the buffers of a snapshot that is being written; a hard limit. 0, in MemoryStorage
  // only: no cache, rows are trained where the store keeps them. Rows have the same bits either
  // way. With device_bytes: budget of the host memory that keeps evicted rows of a store on a disk,
  // see embedding/tiers/cached_store.h; 0: none, as it must be over MemoryStorage.
  int64_t bytes = 0;
  // Budget of device memory for the row cache, required on a GPU: rows, keys, marks, overflow and
  // staging of rows on their way in. A hard limit; EmbeddingStats says what is taken beside it. On
  // the CPU 0, or else the tiers of a GPU in host memory, to try them out.
  int64_t device_bytes = 0;
  // Budget of device memory for an index of the store, with which the device finds rows that its
  // cache does not have, and reads them, without the host; with device_bytes over MemoryStorage. A
  // hard limit beside device_bytes; 32 bytes a row find nearly all. Rows that find no room in it,
  // the host looks up, as it does all of them with 0. Values and the counts of the tiers are the
  // same either way.
  int64_t device_index_bytes = 0;
  CachePolicy policy = CachePolicy::kLru;
};

// Several ranks share the tables: each keeps the rows of its shards (embedding/ranks/shard_map.h)
// in its own store, and rows and gradients travel. All ranks have the same options but for
// paths, cache.policy, prefetch_depth and the sizes of budgets; which tiers there are is the same.
// Create compares them: InvalidArgument names what differs.
struct RankOptions {
  Communicator* communicator = nullptr;  // not owned; null or of one rank: all rows are here
  // Types in which rows and gradients travel in training; evaluation reads fp32. What stays on its
  // rank is never rounded.
  ExchangeType forward = ExchangeType::kFp32;
  ExchangeType backward = ExchangeType::kFp32;
  ExchangeRounding rounding = ExchangeRounding::kNearest;
  // Error feedback: what a gradient loses on its way to another rank is kept by the rank that sends
  // it, and added to the next one that it sends for the same row. Budget of the memory for that, on
  // each rank, a hard limit; all ranks have the same. Rows that find no room go without, see
  // docs/ranks.md. 0: none. Only where `backward` loses something, not with fp32; of one rank
  // nothing travels, and nothing is taken. Not with cache.device_bytes. A step that is cancelled
  // behind its BeginUpdate leaves residuals behind as if it had been applied.
  int64_t feedback_bytes = 0;
};

// What the tables start from.
struct StartOptions {
  // These snapshots instead of empty tables: one, or one from each of the ranks that wrote them, in
  // their order. One of this collection's own store, written by as many ranks, is opened in place,
  // wherever SnapshotSource::dir says that it lies, if its identity is known and found there: rows
  // written after it are dropped, other snapshots stay. Others are copied row by row, by each
  // rank those of its shards, and nothing changes where they lie; then, as with empty tables, what
  // is in the store's path must be no store or one without rows and snapshots, FailedPrecondition
  // otherwise. The tables must be those of the snapshots: their number, their order and their row
  // widths are checked; names, dims, optimizers, precisions and the number of steps are for the
  // caller to keep: rows of 64 weights in fp16 are as wide as rows of 64 in bf16, or of 32 in fp32,
  // and would be taken for them. When Create refuses, nothing has changed on disk; a copy that
  // fails midway leaves the path as start_over takes it.
  std::vector<SnapshotSource> from;
  // Updates that `from` has seen: EmbeddingCollection::steps() goes on from here.
  int64_t steps = 0;
  // Where a table decays as a whole (WeightDecayMode::kTable):
  // EmbeddingCollection::learning_rates() as of the snapshot, so that rows make up for the steps
  // that they missed before it, and the step behind which those begin: start.steps of a collection
  // that was given none, else its settled_steps. Without them all rows count as settled, as they
  // are after Settle(), and first values as those of start.steps, which decay from there on.
  std::vector<LearningRateRun> learning_rates;
  int64_t settled_steps = 0;
  // EmbeddingCollection::age_lines() as of the snapshot: what had aged by then stays aged, with any
  // ttl_steps now. Empty: nothing had.
  std::vector<RowLines> age_lines;
  // Instead of refusing a store that has rows, empties it, as long as no snapshot of it was
  // committed: what a run leaves that was killed before its first checkpoint.
  bool start_over = false;
};

struct EmbeddingCollectionOptions {
  std::vector<TableConfig> tables;  // required
  // The order of the features in batches and outputs; empty: table by table, as feature_names list
  // them.
  std::vector<std::string> feature_order;
  uint64_t seed = 0;           // of row initialisation and of stochastic rounding
  int64_t max_batch_size = 0;  // B at most; with several ranks of all together; required
  // The same for the gradients of all rows of a step together, behind max_row_gradient_norm.
  float max_gradient_norm = 0;

  Storage store;  // required: its memory_bytes
  CacheOptions cache;
  // Where tables admit keys by their number of lookups (Admission::Rule::kLookups): memory of the
  // counters, on each rank; a hard limit, beside the budgets of the tiers. A step whose new keys
  // find no room is ResourceExhausted. Required there; otherwise ignored.
  int64_t admission_bytes = 0;
  // How often floors and capacities of tables (min_rows, max_rows) are kept, in steps, in [1,
  // 2^20]; with several ranks each time costs an exchange of a few numbers. Bits depend on it.
  int64_t row_limit_steps = 64;
  // Steps prefetched beyond the current one, in [0, 32]. 0: everything runs on the caller's thread,
  // in a fixed order, so that statistics are the same in each run. From 1 up rows are made resident
  // by a thread of the collection's own.
  int32_t prefetch_depth = 0;
  // A hard limit of the rows that evaluation brings in for a moment; batches are cut to fit.
  int64_t evaluation_staging_bytes = int64_t{64} << 20;
  RankOptions ranks;
  StartOptions start;
  Env* env = nullptr;  // of all files, but RocksDB's; not owned; null: the real file system
  // Null, or called by the thread of each Update once that has changed its rows, for every table:
  // its number in `tables`, the distinct keys of the step that are kept here, how often each was
  // looked up (several ranks: by how many ranks). Sees the steps that were trained, each once and
  // in order, and no evaluation. Must not call the collection. What it throws is an error of the
  // Update, which has been made.
  std::function<void(uint32_t table, std::span<const RowKey> keys,
                     std::span<const int32_t> lookups)>
      on_update;

  // What errors call an option, for callers who know it by another name: given its path here
  // ("cache.bytes") or in a table ("ttl_steps"). Null: by the path.
  std::string (*name_option)(std::string_view path) = nullptr;

  // The name in errors of an option of the collection, and of one of its tables.
  std::string NameOf(std::string_view path) const;
  std::string NameInTable(std::string_view path) const;
  absl::Status Validate() const;  // names the table or field, the limit and the value it got
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_OPTIONS_H_
