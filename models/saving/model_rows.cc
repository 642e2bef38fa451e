#include "models/saving/model_rows.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/saving/checkpoint.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/saved_part.h"
#include "models/saving/training_state.h"

namespace hotrow {

absl::StatusOr<ModelRows> OpenModelRows(Env& env, const std::string& path) {
  ModelRows out;
  HOTROW_ASSIGN_OR_RETURN(const bool is_portable, IsPortableModel(env, path));
  if (is_portable) {
    HOTROW_ASSIGN_OR_RETURN(PortableModel portable, ReadPortableManifest(env, path, false));
    HOTROW_RETURN_IF_ERROR(CheckHasWeights(path, portable));
    out.dir = path;
    out.model = portable.model;
    out.model.dir = path;
    out.tables = portable.tables;
    out.portable = std::move(portable);
    return out;
  }
  HOTROW_ASSIGN_OR_RETURN(out.model, ReadCheckpoint(env, path));
  if (out.model.training != nullptr && out.model.training->rows_missed_steps()) {
    return absl::FailedPreconditionError(absl::StrCat(
        out.model.dir,
        ": its tables decay as a whole (--table_weight_decay_mode=table), and the rows of a "
        "checkpoint have not made up for the steps that they missed; export the model of a "
        "--save_dir, which --resume with that flag writes"));
  }
  HOTROW_ASSIGN_OR_RETURN(out.tables, TablesOf(out.model));
  out.dir = out.model.dir;
  return out;
}

absl::Status VisitRows(
    Env& env, const ModelRows& rows, const VisitRowsOptions& options,
    absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit) {
  if (rows.portable.has_value()) {
    return ReadPortableTables({.dir = rows.dir, .memory_bytes = options.memory_bytes, .env = &env},
                              rows.tables,
                              [&](const PortableRows& some) {
                                for (size_t i = 0; i < some.keys.size(); ++i) {
                                  const int64_t bytes = rows.tables[some.keys[i].table].row_bytes();
                                  HOTROW_RETURN_IF_ERROR(visit(
                                      some.keys[i], {some.rows[i], static_cast<size_t>(bytes)}));
                                }
                                return absl::OkStatus();
                              })
        .status();
  }
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(rows.model));
  for (int32_t rank = 0; rank < static_cast<int32_t>(rows.model.parts.size()); ++rank) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                            OpenSavedPart(env, rows.model, rank, options.store_bytes));
    HOTROW_RETURN_IF_ERROR(
        reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(CheckRankOfRow(rows.model, rank, key));
          return aged.Has(key, row) ? absl::OkStatus() : visit(key, row);
        }));
  }
  return absl::OkStatus();
}

}  // namespace hotrow
