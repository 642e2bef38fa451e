#include "models/saving/tables_model.h"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/portable_model_impl.h"
#include "models/saving/portable_tables_writer.h"
#include "models/saving/store_paths_impl.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {

absl::Status WriteTablesModel(EmbeddingCollection& tables, const TablesModelOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  const std::string dir = WithoutEndingSlashes(options.dir);
  PortableModel portable = {.model = options.model};
  for (SavedModel::Table& table : portable.model.tables) {
    table.optimizer = std::string(SparseOptimizerName(SparseOptimizerKind::kSgd));
    table.score = ScoreRule::kNone;
    portable.tables.push_back({.name = table.name,
                               .dim = table.dim,
                               .optimizer = SparseOptimizerKind::kSgd,
                               .weights_precision = table.weights_precision});
  }
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial, PartialDir::Create(env, dir));
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<PortableTablesWriter> writer,
      PortableTablesWriter::Create(
          {.dir = partial->path(), .memory_bytes = options.memory_bytes, .env = &env},
          options.shard_bytes, portable.tables));
  for (uint32_t t = 0; t < portable.tables.size(); ++t) {
    const PortableTable& table = portable.tables[t];
    std::vector<std::byte> row(static_cast<size_t>(table.row_bytes()));  // all but weights is 0
    HOTROW_RETURN_IF_ERROR(
        tables.ForEachRow(table.name, [&](uint64_t key, std::span<const float> weights) {
          NarrowWeights(table.weights_precision, weights, row.data());  // back to the same bits
          return writer->Add({.key = key, .table = t}, row);
        }));
  }
  HOTROW_ASSIGN_OR_RETURN(portable.tables, writer->Finish());
  HOTROW_RETURN_IF_ERROR(WritePortableRest(env, partial->path(), DenseVectors(), &portable));
  return partial->Commit();
}

}  // namespace hotrow
