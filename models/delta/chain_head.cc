#include <cstring>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "models/delta/chain_head_impl.h"
#include "models/saving/portable_model.h"
#include "models/saving/saved_part.h"

namespace hotrow {

absl::StatusOr<ChainHead> ReadChainHead(Env& env, const DeltaChain& chain) {
  ChainHead out;
  SavedModel& model = out.portable.model;
  if (chain.deltas.empty()) {
    model = chain.base.model;
    model.dir = chain.base_dir();
    HOTROW_ASSIGN_OR_RETURN(out.dense, ReadPortableDense(env, model.dir, chain.base));
  } else {
    model = chain.deltas.back().model;
    HOTROW_ASSIGN_OR_RETURN(out.dense, ReadSavedDense(env, model));
    if (!model.scoring.has_value()) model.scoring = chain.base.model.scoring;
  }
  HOTROW_ASSIGN_OR_RETURN(out.tables, DeltaTablesOf(model));
  if (!chain.manifest.form.lossless()) model.training.reset();
  if (!chain.manifest.form.state) {
    for (SavedModel::Table& table : model.tables) {
      table.optimizer = SparseOptimizerName(SparseOptimizerKind::kSgd);
    }
  }
  HOTROW_ASSIGN_OR_RETURN(out.portable.tables, TablesOf(model));
  return out;
}

absl::StatusOr<DeltaMerge> MergeDeltas(Env& env, const DeltaChain& chain,
                                       std::span<const DeltaManifest> deltas,
                                       const std::vector<DeltaTable>& tables) {
  std::vector<DeltaMerge::Source> sources;
  for (const DeltaManifest& delta : deltas) {
    const auto num_parts = static_cast<int32_t>(delta.parts.size());
    for (int32_t p = 0; p < num_parts; ++p) {
      const DeltaFileId id = {.base = chain.manifest.base_id,
                              .sequence = delta.sequence,
                              .part = p,
                              .num_parts = num_parts};
      HOTROW_ASSIGN_OR_RETURN(
          std::unique_ptr<DeltaRowsReader> reader,
          DeltaRowsReader::Open(env, delta.model.dir, delta.parts[static_cast<size_t>(p)], id,
                                chain.manifest.form, tables));
      sources.push_back({.reader = std::move(reader), .sequence = delta.sequence});
    }
  }
  return DeltaMerge::Create(std::move(sources));
}

BaseRows::BaseRows(const DeltaChain& chain, const std::vector<DeltaTable>& tables)
    : has_state_(chain.manifest.form.state) {
  for (size_t t = 0; t < tables.size(); ++t) {
    Table table = {.from = chain.base.tables[t].layout(),
                   .to = tables[t].layout_read(chain.manifest.form)};
    table.row.resize(static_cast<size_t>(table.to.row_bytes));
    tables_.push_back(std::move(table));
  }
}

std::span<const std::byte> BaseRows::Of(uint32_t table, const std::byte* row) {
  Table& own = tables_[table];
  if (has_state_) return {row, own.row.size()};
  std::memcpy(own.row.data(), row, static_cast<size_t>(own.from.state_offset));
  std::memcpy(own.row.data() + own.to.step_offset, row + own.from.step_offset, sizeof(uint32_t));
  if (own.to.scored()) {
    std::memcpy(own.row.data() + own.to.score_offset, row + own.from.score_offset, sizeof(float));
  }
  return own.row;
}

}  // namespace hotrow
