#ifndef HOTROW_TOOLS_STORED_KEYS_H_
#define HOTROW_TOOLS_STORED_KEYS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"

namespace hotrow {

struct NamedKey {
  std::string table;
  uint64_t key = 0;
  friend auto operator<=>(const NamedKey&, const NamedKey&) = default;
};

// Reads a list of keys: a line for each, the table's name and the key in decimal with a comma,
// blanks or tabs between. Empty lines and those that begin with # are left out. The result is
// sorted and has each key once. Errors: InvalidArgument (names file, line and text; or no key at
// all), those of ReadWholeFile.
absl::StatusOr<std::vector<NamedKey>> ReadKeyList(Env& env, const std::string& path);

// A row of one of the keys, and the directory that has it.
struct StoredKey {
  std::string place;
  NamedKey key;
  bool aged = false;  // training takes it for gone, but its bytes are still read
};

struct StoredKeysReport {
  std::vector<std::string> places;  // that were read, all
  std::vector<StoredKey> found;     // by place, table and key
  int64_t keys_found = 0;           // of the list, each counted once
};

// Looks for rows of `keys`, sorted ones, in all that `path` has: every checkpoint of a directory of
// checkpoints, one checkpoint or saved model, an export, or the base and every delta of a chain.
// Each of them is a place, and is read whole, with its checksums. A delta with a tombstone of a key
// does not have it; one before that with a row does.
//
// Not looked into: residuals of gradients, counters of admission, and what no reader reaches any
// more, such as replaced records of an SSD store that no compaction has dropped yet.
//
// Errors: InvalidArgument (the path is nothing of the kind), NotFound (a place has no such table;
// names those that it has), and those of reading; then nothing is known.
absl::StatusOr<StoredKeysReport> FindStoredKeys(Env& env, const std::string& path,
                                                const std::vector<NamedKey>& keys,
                                                int64_t store_bytes);

// Lines for a person, and one JSON object.
std::string StoredKeysText(const std::string& path, const std::vector<NamedKey>& keys,
                           const StoredKeysReport& report);
std::string StoredKeysJson(const std::string& path, const std::vector<NamedKey>& keys,
                           const StoredKeysReport& report);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_STORED_KEYS_H_
