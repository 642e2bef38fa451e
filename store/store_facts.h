#ifndef HOTROW_STORE_STORE_FACTS_H_
#define HOTROW_STORE_STORE_FACTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/store_kind.h"

namespace hotrow {

// What the layers above must know of a kind of store. They ask for a fact and name no kind, so a
// new kind needs no change there. The values are rows of a table in store/open.cc.
struct StoreFacts {
  std::string_view word;  // StoreKindName
  // Rows lie in files of a directory that the store has for itself, within a disk budget, and
  // snapshots are parts of the store. false: rows lie in memory; each snapshot is a file
  // (SnapshotFileName), may lie in any directory, and is read where it lies.
  bool on_disk = false;
  bool striped = false;  // its files may lie in several directories
  // Each row keeps its place in memory: it is trained there without a cache, and a GPU reads it
  // there.
  bool in_place = false;
  bool planned = false;  // `hotrow plan` knows what it costs
  // Memory that suffices to fill a store of any size; 0: more rows need more.
  int64_t filling_bytes = 0;
};

const StoreFacts& FactsOf(StoreKind kind);
// The facts of a kind that has this word, also of one that this build lacks; null: none has.
const StoreFacts* FindStoreFacts(std::string_view word);

// All kinds, in the order of StoreKind.
std::vector<StoreKind> StoreKinds();
// The words of all kinds that have a fact (null: of all), for messages: "memory, ssd or rocksdb".
std::string StoreWords(bool StoreFacts::*fact, std::string_view conjunction);

}  // namespace hotrow

#endif  // HOTROW_STORE_STORE_FACTS_H_
