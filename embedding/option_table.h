#ifndef HOTROW_EMBEDDING_OPTION_TABLE_H_
#define HOTROW_EMBEDDING_OPTION_TABLE_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/flag_set.h"
#include "base/status_macros.h"
#include "comm/compare_ranks.h"
#include "embedding/options.h"

// The one table of the options of a collection (EmbeddingCollectionOptions) and of its tables
// (TableConfig) that are a number or a word, but for those of a store, which each kind has for
// itself.
//
// To add one: its member (embedding/options.h) and its row (option_table.cc). The check of its
// bounds, the name in that error and what ranks compare follow. The C interface sets options by
// the names of rows (capi/options.cc).
namespace hotrow {

// Which ranks must share the value of an option.
enum class OptionRole {
  kAlike,            // all
  kAlikeInPresence,  // all, but it counts only whether the value is 0
  kOwn,              // each may have its own
};

template <typename Options>
struct OptionRow {
  OptionRole role;
  const char* name;                     // the path of the member: "cache.bytes"
  FlagField (*bind)(Options& options);  // binds the member: its text, its bounds, its words
};

template <typename Options>
std::span<const OptionRow<Options>> OptionRows();
template <>
std::span<const OptionRow<EmbeddingCollectionOptions>> OptionRows();
template <>
std::span<const OptionRow<TableConfig>> OptionRows();

// Whether each value is legal by itself. The error has the name that name_of gives for the row.
template <typename Options>
absl::Status CheckOptions(Options options,
                          absl::FunctionRef<std::string(std::string_view)> name_of) {
  for (const OptionRow<Options>& row : OptionRows<Options>()) {
    // A value is legal if its own text is.
    const FlagField field = row.bind(options);
    HOTROW_RETURN_IF_ERROR(field.SetAs(name_of(row.name), FlagText(field.get())));
  }
  return absl::OkStatus();
}

// What all ranks must have alike: with other tables, types or staging they would read what others
// send as what it is not, or write it to too little memory.
NamedValues ComparedOptions(const EmbeddingCollectionOptions& options);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_OPTION_TABLE_H_
