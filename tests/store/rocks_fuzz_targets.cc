#include "tests/store/rocks_fuzz_targets.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "store/rocks/rocks_dir_impl.h"
#include "tests/fuzz/fuzz_targets.h"

namespace hotrow::fuzz {
namespace {

using namespace hotrow::internal;  // NOLINT(google-build-using-namespace): all of it is about these

}  // namespace

// What is taken says what was read, and nothing else does.
void RocksText(const uint8_t* data, size_t size) {
  if (size == 0) return;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) {
    text.resize(std::min(text.size(), text.rfind("crc32c ")));
    absl::StrAppend(&text, "crc32c ", Crc32c(std::as_bytes(std::span(text))), "\n");
  }
  const auto list = ParseRocksSnapshotList("path", text);
  HOTROW_CHECK(list.ok() ? RocksSnapshotListToText(*list) == text
                         : !list.status().message().empty());
  const auto live = ParseRocksLive("path", text);
  HOTROW_CHECK(live.ok() ? RocksLiveToText(*live) == text : !live.status().message().empty());
  const auto tables = ParseRocksTables("path", text);
  if (!tables.ok()) return;
  for (const StoreTable& table : *tables) HOTROW_CHECK(table.row_bytes > 0);
}

std::vector<std::string> RocksTextCorpus() {
  const std::string list = RocksSnapshotListToText(
      {.id = 7,
       .identity = {.high = 1, .low = 2},
       .sequence = 44,
       .rows = 12,
       .tables = {{3, 8}, {70'000, 512}},
       .files = {{"000008.sst", 1000, 77}, {"000009.sst", 2000, {}}, {"CURRENT", 16, 5}}});
  const std::vector<StoreTable> tables = {{3, 8}, {70'000, 512}};
  std::vector<std::string> corpus;
  for (const std::string& text :
       {std::string(), list, RocksLiveToText({.number = 3, .sequence = 17}),
        RocksLiveToText({.number = UINT64_MAX}), RocksTablesToText(tables)}) {
    for (const char first : {'\0', '\1'}) corpus.push_back(std::string(1, first) + text);
  }
  return corpus;
}

}  // namespace hotrow::fuzz
