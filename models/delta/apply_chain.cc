#include "models/delta/apply_chain.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "models/delta/chain_head_impl.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_damage_impl.h"
#include "models/saving/blob_files.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/portable_model_impl.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/portable_tables_writer.h"
#include "models/saving/saved_part.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/vocabulary_file.h"

namespace hotrow {
namespace {

// Keys that deltas name, of one slice of all keys, by table. Ascending.
using NamedKeys = std::vector<std::vector<uint64_t>>;

bool Contains(const NamedKeys& named, const RowKey& key) {
  const std::vector<uint64_t>& keys = named[key.table];
  return std::binary_search(keys.begin(), keys.end(), key.key);
}

// Manifests may say anything; up to this, sums and their bytes do not overflow.
constexpr int64_t kEntriesMax = int64_t{1} << 56;
void AddEntries(std::span<const int64_t> counts, int64_t* sum) {
  for (const int64_t n : counts) *sum = std::min(*sum + std::min(n, kEntriesMax), kEntriesMax);
}

// How many entries all deltas together have at most.
int64_t EntriesOf(const DeltaChain& chain) {
  int64_t out = 0;
  for (const DeltaManifest& delta : chain.deltas) {
    for (const DeltaPart& part : delta.parts) {
      AddEntries(part.rows, &out);
      AddEntries(part.erased, &out);
    }
  }
  return out;
}

// The model of the last link, with the bytes of its blobs and vocabulary.
absl::StatusOr<ChainHead> ReadHead(Env& env, const DeltaChain& chain) {
  HOTROW_ASSIGN_OR_RETURN(ChainHead out, ReadChainHead(env, chain));
  SavedModel& model = out.portable.model;
  HOTROW_ASSIGN_OR_RETURN(model.blob_bytes, ReadSavedBlobs(env, model));
  SavedModel base = chain.base.model;
  base.dir = chain.base_dir();
  if (base.vocabulary.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(std::string bytes, ReadSavedVocabularyBytes(env, base));
    model.vocabulary_bytes = std::make_shared<std::string>(std::move(bytes));
  }
  return out;
}

absl::StatusOr<PortableSummary> Apply(const ApplyChainOptions& options, Env& env,
                                      DeltaChain chain) {
  const std::string dir = WithoutEndingSlashes(options.dir);
  if (options.shard_bytes < 1 || options.memory_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard_bytes and memory_bytes must be at least "
                     "1, are ",
                     options.shard_bytes, " and ", options.memory_bytes));
  }
  if (options.until >= 0) {
    const int64_t first = chain.manifest.base_sequence;
    if (options.until < first || options.until > chain.head().sequence) {
      return absl::FailedPreconditionError(absl::StrCat(chain.dir, ": there is no link ",
                                                        options.until, ", it has ", first, " to ",
                                                        chain.head().sequence));
    }
    chain.deltas.resize(static_cast<size_t>(options.until - first));
  }
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  HOTROW_ASSIGN_OR_RETURN(ChainHead head, ReadHead(env, chain));
  PortableModel& portable = head.portable;
  const std::vector<SavedModel::Table> expected = portable.model.tables;
  const std::vector<DeltaTable>& tables = head.tables;
  const bool has_state = chain.manifest.form.state;
  BaseRows base_rows(chain, tables);
  // An older link's rows age by the lines of the last one.
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(portable.model));

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial, PartialDir::Create(env, dir));
  // A half is for the writer's buffers, a quarter for the reader's, a quarter for keys.
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<PortableTablesWriter> writer,
      PortableTablesWriter::Create(
          {.dir = partial->path(), .memory_bytes = options.memory_bytes / 2, .env = &env},
          options.shard_bytes, portable.tables));
  const auto add = [&](const RowKey& key, std::span<const std::byte> row) {
    return aged.Has(key, row) ? absl::OkStatus() : writer->Add(key, row);
  };
  const int64_t key_bytes = EntriesOf(chain) * static_cast<int64_t>(sizeof(uint64_t));
  const int64_t budget = std::max<int64_t>(options.memory_bytes / 8, 1);  // vectors double
  const int64_t slices = std::min<int64_t>(key_bytes / budget + 1, RowHash::kNumShards);
  if (slices > 1 && options.tell) {
    options.tell(absl::StrCat("the base and the deltas are read ", slices,
                              " times, since memory_bytes=", options.memory_bytes,
                              " has no room for the keys that deltas name; ", 8 * (key_bytes + 1),
                              " would do for once"));
  }
  const auto slice_of = [&](const RowKey& key) -> int64_t {
    return slices == 1 ? 0 : HashRowKey(key).shard() % slices;
  };
  for (int64_t slice = 0; slice < slices; ++slice) {
    NamedKeys named(tables.size());
    HOTROW_ASSIGN_OR_RETURN(DeltaMerge merge, MergeDeltas(env, chain, chain.deltas, tables));
    while (!merge.done()) {
      if (slice_of(merge.key()) == slice) {
        named[merge.key().table].push_back(merge.key().key);
        if (!merge.erased()) HOTROW_RETURN_IF_ERROR(add(merge.key(), merge.row()));
      }
      HOTROW_RETURN_IF_ERROR(merge.Next());
    }
    const auto visit = [&](const PortableRows& batch) -> absl::Status {
      for (size_t i = 0; i < batch.keys.size(); ++i) {
        const RowKey& key = batch.keys[i];
        if (slice_of(key) != slice || Contains(named, key)) continue;
        HOTROW_RETURN_IF_ERROR(add(key, base_rows.Of(key.table, batch.rows[i])));
      }
      return absl::OkStatus();
    };
    HOTROW_RETURN_IF_ERROR(
        ReadPortableTables(
            {.dir = chain.base_dir(), .memory_bytes = options.memory_bytes / 4, .env = &env},
            chain.base.tables, visit)
            .status());
  }
  HOTROW_ASSIGN_OR_RETURN(portable.tables, writer->Finish());
  std::vector<PortableDigest> digests;
  for (size_t t = 0; t < portable.tables.size(); ++t) {
    const PortableTable& table = portable.tables[t];
    digests.push_back({*table.rows, *table.hash});
    const bool compares_hash = !expected[t].hash.empty() &&
                               (chain.manifest.form.lossless() || chain.deltas.empty()) &&
                               has_state;
    if ((expected[t].rows >= 0 && expected[t].rows != *table.rows) ||
        (compares_hash && expected[t].hash != table.hash->ToHex())) {
      return DeltaDamaged(
          chain.deltas.empty() ? chain.base_dir() : chain.delta_dir(chain.head().sequence),
          absl::StrCat("table \"", table.name, "\" has ", *table.rows, " rows of hash ",
                       table.hash->ToHex(), " after it, its manifest says ", expected[t].rows,
                       " of ", expected[t].hash));
    }
  }
  HOTROW_RETURN_IF_ERROR(WritePortableRest(env, partial->path(), head.dense, &portable));
  HOTROW_RETURN_IF_ERROR(partial->Commit());

  PortableSummary summary;
  summary.from = chain.dir;
  summary.to = dir;
  summary.model = portable.model;
  SummarisePortable(portable.tables, digests, &summary);
  return summary;
}

}  // namespace

absl::StatusOr<PortableSummary> ApplyChain(const ApplyChainOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  PortableSummary out;
  HOTROW_RETURN_IF_ERROR(UseChain(env, options.chain, [&](DeltaChain chain) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(out, Apply(options, env, std::move(chain)));
    return absl::OkStatus();
  }));
  return out;
}

ChainSummary SummariseChain(const DeltaChain& chain) {
  const ChainLink head = chain.head();
  ChainSummary out;
  out.chain = chain.dir;
  out.base_id = chain.manifest.base_id;
  out.form = chain.manifest.form;
  out.base_sequence = chain.manifest.base_sequence;
  out.base_step = chain.manifest.base_step;
  out.sequence = head.sequence;
  out.step = head.step;
  for (const DeltaManifest& delta : chain.deltas) {
    for (const DeltaPart& part : delta.parts) {
      AddEntries(part.rows, &out.rows);
      AddEntries(part.erased, &out.erased);
      AddEntries({&part.bytes, 1}, &out.bytes);
    }
  }
  return out;
}

absl::Status VerifyDeltas(Env& env, DeltaChain chain) {
  HOTROW_ASSIGN_OR_RETURN(
      const std::vector<DeltaTable> tables,
      DeltaTablesOf(chain.deltas.empty() ? chain.base.model : chain.deltas.back().model));
  HOTROW_ASSIGN_OR_RETURN(DeltaMerge merge, MergeDeltas(env, chain, chain.deltas, tables));
  while (!merge.done()) HOTROW_RETURN_IF_ERROR(merge.Next());
  // Each delta has its own dense parameters and blobs.
  while (!chain.deltas.empty()) {
    HOTROW_RETURN_IF_ERROR(ReadHead(env, chain).status());
    chain.deltas.pop_back();
  }
  return absl::OkStatus();
}

absl::StatusOr<ChainSummary> VerifyChain(Env& env, const std::string& dir, int64_t memory_bytes) {
  ChainSummary summary;
  HOTROW_RETURN_IF_ERROR(UseChain(env, dir, [&](DeltaChain chain) -> absl::Status {
    summary = SummariseChain(chain);
    HOTROW_RETURN_IF_ERROR(VerifyPortable(env, chain.base_dir(), memory_bytes).status());
    return VerifyDeltas(env, std::move(chain));
  }));
  return summary;
}

}  // namespace hotrow
