#ifndef HOTROW_TESTS_EMBEDDING_SERVING_UPDATES_H_
#define HOTROW_TESTS_EMBEDDING_SERVING_UPDATES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/row_key.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_tables.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

// What tests of rows for serving share: tables, random updates of them, and what they should hold.
namespace hotrow::test {

// Tables without state, of these widths.
inline ServingTablesOptions OptionsOf(const std::vector<int32_t>& dims, ServingRows rows) {
  ServingTablesOptions out = {.seed = 3, .memory_bytes = int64_t{64} << 20, .keeps_steps = true};
  SparseOptimizerConfig sgd;
  sgd.kind = SparseOptimizerKind::kSgd;
  for (const int32_t dim : dims) {
    out.tables.push_back({.name = absl::StrCat("t", out.tables.size()),
                          .rows = rows,
                          .layout = RowLayout::For(dim, SparseOptimizerKind::kSgd),
                          .optimizer = sgd,
                          .initializer = {InitializerKind::kUniform, 0.5f}});
  }
  return out;
}

// A row with its last step, as a layout has it.
inline std::vector<std::byte> RowOf(const RowLayout& layout, std::span<const float> weights,
                                    uint32_t last_step) {
  std::vector<std::byte> out(static_cast<size_t>(layout.row_bytes));
  std::memcpy(out.data(), weights.data(), weights.size_bytes());
  std::memcpy(out.data() + layout.step_offset, &last_step, sizeof(last_step));
  return out;
}

// The rows of keys, one behind the other.
inline std::vector<float> Read(const ServingTables& tables, const ServingTables::View& view,
                               uint32_t table, std::span<const uint64_t> keys,
                               ServingTables::Scratch* scratch) {
  const int32_t dim = tables.tables()[table].layout.dim;
  const std::vector<int64_t> offsets = {0, std::ssize(keys)};
  std::vector<float> out(keys.size() * static_cast<size_t>(dim));
  HOTROW_EXPECT_OK(tables.Pool(view,
                               {.table = table,
                                .pooling = Pooling::kNone,
                                .batch_size = 1,
                                .keys = keys,
                                .offsets = offsets,
                                .output = {out.data(), std::ssize(keys), dim}},
                               scratch));
  return out;
}

inline std::string BitsOf(const std::vector<float>& floats) {
  return {reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)};
}

// What tables should hold: {table, key} to weights and last step.
struct Row {
  std::vector<float> weights;
  uint32_t last_step = 0;
};
using Model = std::map<std::pair<uint32_t, uint64_t>, Row>;

inline absl::StatusOr<std::unique_ptr<ServingTables>> Build(const ServingTablesOptions& options,
                                                            const Model& model) {
  HOTROW_ASSIGN_OR_RETURN(const auto builder, ServingTables::Builder::Create(options));
  if (builder->has_rows()) return builder->Finish();
  for (const auto& [at, row] : model) {
    HOTROW_RETURN_IF_ERROR(builder->Add(
        {at.second, at.first}, RowOf(options.tables[at.first].layout, row.weights, row.last_step)));
  }
  return builder->Finish();
}

// A random update: what it does to a model, and its calls.
struct Change {
  std::vector<std::pair<RowKey, Row>> sets;
  std::vector<RowKey> erases;
  std::vector<uint32_t> lines;

  // One key of 2 to parts_max + 1 gets a row, and as many lose theirs.
  static Change Draw(const ServingTablesOptions& options, uint64_t keys, uint32_t step,
                     RandomStream& random, uint64_t parts_max = 20) {
    Change out;
    for (uint32_t t = 0; t < options.tables.size(); ++t) {
      const uint64_t parts = 2 + random.Below(parts_max);
      for (uint64_t key = 0; key < keys; ++key) {
        const uint64_t what = random.Below(parts);
        const uint64_t wide = key % 2 == 0 ? key : UINT64_MAX - key;
        if (what == 0) {
          Row row = {.last_step = step - static_cast<uint32_t>(random.Below(4))};
          for (int32_t d = 0; d < options.tables[t].layout.dim; ++d) {
            row.weights.push_back(static_cast<float>(random.Uniform()) - 0.5f);
          }
          out.sets.push_back({{wide, t}, std::move(row)});
        } else if (what == 1) {
          out.erases.push_back({wide, t});
        }
      }
      out.lines.push_back(step > 8 && random.Below(2) == 0 ? step - 6 : 0);
    }
    return out;
  }
  std::vector<ServingTables::Update::Size> sizes() const {
    std::vector<ServingTables::Update::Size> out(lines.size());
    for (const auto& [key, row] : sets) ++out[key.table].rows;
    for (const RowKey& key : erases) ++out[key.table].erased;
    for (size_t t = 0; t < lines.size(); ++t) out[t].age_line = lines[t];
    return out;
  }
  absl::Status Fill(const ServingTables& tables, ServingTables::Update& update) const {
    for (const RowKey& key : erases) HOTROW_RETURN_IF_ERROR(update.Erase(key));
    for (const auto& [key, row] : sets) {
      HOTROW_RETURN_IF_ERROR(
          update.Set(key, RowOf(tables.tables()[key.table].layout, row.weights, row.last_step)));
    }
    return absl::OkStatus();
  }
  void ApplyTo(Model* model) const {
    for (const auto& [key, row] : sets) (*model)[{key.table, key.key}] = row;
    for (const RowKey& key : erases) model->erase({key.table, key.key});
    std::erase_if(*model, [&](const auto& entry) {
      return entry.second.last_step != 0 && entry.second.last_step < lines[entry.first.first];
    });
  }
};

// That a view shows the rows of a model, and first values of all other keys: as tables that were
// built of it do.
inline void ExpectShows(const ServingTables& tables, const ServingTables::View& view,
                        const Model& model, uint64_t keys) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto fresh,
                              Build(OptionsOf({5, 8}, tables.tables()[0].rows), model));
  std::vector<uint64_t> all;
  for (uint64_t key = 0; key < keys; ++key) all.push_back(key % 2 == 0 ? key : UINT64_MAX - key);
  ServingTables::Scratch scratch, of_fresh;
  for (uint32_t t = 0; t < 2; ++t) {
    EXPECT_EQ(BitsOf(Read(tables, view, t, all, &scratch)),
              BitsOf(Read(*fresh, fresh->view(), t, all, &of_fresh)));
  }
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_EMBEDDING_SERVING_UPDATES_H_
