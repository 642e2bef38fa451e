#ifndef HOTROW_TESTS_MODELS_CHAIN_TEST_UTIL_H_
#define HOTROW_TESTS_MODELS_CHAIN_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/row_key.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "models/delta/apply_chain.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables_reader.h"
#include "ops/rows/row_layout.h"
#include "tests/support/test_util.h"

// What the tests of chains of deltas share: the rows of a model, and that a chain leads to them.
namespace hotrow::test {

// Rows of a model: {table, key} to weights, state and last step.
using Rows = std::map<std::pair<uint32_t, uint64_t>, std::string>;

inline std::string BytesOf(const RowLayout& layout, const std::byte* row) {
  return std::string(reinterpret_cast<const char*>(row),
                     static_cast<size_t>(layout.step_offset) + sizeof(uint32_t));
}

// The rows of a directory of the portable form.
inline absl::StatusOr<Rows> ReadRows(const std::string& dir, Env& env = PosixEnv()) {
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable, ReadPortableManifest(env, dir, false));
  Rows out;
  HOTROW_RETURN_IF_ERROR(
      ReadPortableTables({.dir = dir, .env = &env}, portable.tables, [&](const PortableRows& rows) {
        for (size_t i = 0; i < rows.keys.size(); ++i) {
          const RowKey& key = rows.keys[i];
          out[{key.table, key.key}] = BytesOf(portable.tables[key.table].layout(), rows.rows[i]);
        }
        return absl::OkStatus();
      }).status());
  return out;
}

// Checks that the chain of a run leads to what its newest checkpoint is, bit for bit; makes
// dir/applied and dir/exported again. Returns its rows.
inline Rows ExpectChainIsTheEnd(const std::string& dir) {
  const std::string applied = dir + "/applied";
  const std::string exported = dir + "/exported";
  std::filesystem::remove_all(applied);
  std::filesystem::remove_all(exported);
  HOTROW_EXPECT_OK(ApplyChain({.chain = dir + "/chain", .dir = applied}));
  HOTROW_EXPECT_OK(ExportPortable({.checkpoint = dir + "/checkpoints", .dir = exported}));
  const absl::StatusOr<Rows> a = ReadRows(applied);
  const absl::StatusOr<Rows> b = ReadRows(exported);
  HOTROW_EXPECT_OK(a);
  HOTROW_EXPECT_OK(b);
  if (!a.ok() || !b.ok()) return {};
  EXPECT_FALSE(b->empty());
  EXPECT_EQ(a->size(), b->size());
  EXPECT_TRUE(*a == *b);
  const absl::StatusOr<std::string> dense =
      ReadFileToString(PosixEnv(), applied + "/dense.safetensors");
  const absl::StatusOr<std::string> expected =
      ReadFileToString(PosixEnv(), exported + "/dense.safetensors");
  HOTROW_EXPECT_OK(dense);
  HOTROW_EXPECT_OK(expected);
  EXPECT_TRUE(dense.ok() && expected.ok() && *dense == *expected);
  return *b;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_CHAIN_TEST_UTIL_H_
