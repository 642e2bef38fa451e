#include "comm/compare_ranks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// What a rank may have to say; more is an error on all ranks.
constexpr int64_t kTextBytesMax = int64_t{16} << 20;
// How many differences one message lists, and how much of a value.
constexpr size_t kDifferencesMax = 8;
constexpr size_t kValueBytesMax = 200;

// What travels first.
struct Digest {
  uint64_t hi = 0;
  uint64_t lo = 0;
  int64_t bytes = 0;

  friend bool operator==(const Digest&, const Digest&) = default;
};

void AppendText(std::string_view text, std::string* out) {
  const uint64_t bytes = text.size();
  out->append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  out->append(text);
}

std::string Pack(const NamedValues& values) {
  std::string out;
  for (const auto& [name, value] : values) {
    AppendText(name, &out);
    AppendText(value, &out);
  }
  return out;
}

// False: the text ends in the midst of it.
bool TakeText(std::string_view* packed, std::string* text) {
  uint64_t bytes = 0;
  if (packed->size() < sizeof(bytes)) return false;
  std::memcpy(&bytes, packed->data(), sizeof(bytes));
  packed->remove_prefix(sizeof(bytes));
  if (packed->size() < bytes) return false;
  text->assign(packed->substr(0, bytes));
  packed->remove_prefix(bytes);
  return true;
}

absl::StatusOr<NamedValues> Unpack(std::string_view packed) {
  NamedValues out;
  while (!packed.empty()) {
    auto& [name, value] = out.emplace_back();
    if (!TakeText(&packed, &name) || !TakeText(&packed, &value)) {
      return absl::InternalError("CompareRanks: a rank's values are cut off");
    }
  }
  return out;
}

// A value as the message shows it; of a long one what lies around the first difference, which is
// `common` bytes behind its begin.
std::string Shown(const std::string* value, size_t common) {
  if (value == nullptr) return "unknown";
  if (value->empty()) return "\"\"";
  if (value->size() <= kValueBytesMax) return *value;
  const size_t begin = common < kValueBytesMax ? 0 : common - kValueBytesMax / 2;
  return absl::StrCat(begin == 0 ? "" : "...", value->substr(begin, kValueBytesMax),
                      value->size() - begin <= kValueBytesMax ? "" : "...");
}

// How many bytes all values begin with.
size_t CommonBytes(const std::vector<const std::string*>& values) {
  size_t common = std::string::npos;
  for (const std::string* const value : values) {
    const auto end =
        std::mismatch(value->begin(), value->end(), values[0]->begin(), values[0]->end());
    common = std::min(common, static_cast<size_t>(end.first - value->begin()));
  }
  return common;
}

const std::string* Find(const NamedValues& values, const std::string& name) {
  for (const auto& [key, value] : values) {
    if (key == name) return &value;
  }
  return nullptr;
}

// "--batch_size is 128 on ranks 0, 2 and 64 on rank 1"; empty where all are alike.
std::string DifferenceIn(const std::string& name, const std::vector<NamedValues>& ranks) {
  struct Group {
    const std::string* value;
    std::vector<size_t> ranks;
  };
  std::vector<Group> groups;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string* const value = Find(ranks[rank], name);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return (group.value == nullptr) == (value == nullptr) &&
             (value == nullptr || *group.value == *value);
    });
    if (same == groups.end()) {
      groups.push_back({value, {rank}});
    } else {
      same->ranks.push_back(rank);
    }
  }
  if (groups.size() < 2) return "";
  std::vector<const std::string*> values;
  for (const Group& group : groups) {
    if (group.value != nullptr) values.push_back(group.value);
  }
  const size_t common = CommonBytes(values);
  std::vector<std::string> words;
  for (const Group& group : groups) {
    words.push_back(absl::StrCat(Shown(group.value, common),
                                 group.ranks.size() == 1 ? " on rank " : " on ranks ",
                                 absl::StrJoin(group.ranks, ", ")));
  }
  return absl::StrCat(name, " is ", absl::StrJoin(words, " and "));
}

}  // namespace

absl::Status CompareRanks(Communicator& channel, const NamedValues& mine) {
  if (channel.world_size() == 1) return absl::OkStatus();
  const auto n = static_cast<size_t>(channel.world_size());
  const std::string packed = Pack(mine);
  const Hash128 hash = HashBytes(0, 0, std::as_bytes(std::span(packed)));
  const Digest own = {hash.hi, hash.lo, std::ssize(packed)};
  std::vector<Digest> digests(n);
  HOTROW_RETURN_IF_ERROR(channel.AllGather(std::as_bytes(std::span(&own, 1)),
                                           std::as_writable_bytes(std::span(digests))));
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const Digest& digest) { return digest == own; })) {
    return absl::OkStatus();
  }

  std::vector<int64_t> sizes;
  for (size_t p = 0; p < n; ++p) {
    if (digests[p].bytes < 0 || digests[p].bytes > kTextBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("the ranks differ: the settings of rank ", p,
                                                     " take ", digests[p].bytes, " bytes, at most ",
                                                     kTextBytesMax, " can be compared"));
    }
    sizes.push_back(digests[p].bytes);
  }
  std::vector<int64_t> offsets(n);
  std::exclusive_scan(sizes.begin(), sizes.end(), offsets.begin(), int64_t{0});
  std::string all(static_cast<size_t>(offsets.back() + sizes.back()), '\0');
  HOTROW_RETURN_IF_ERROR(channel.AllGatherV(std::as_bytes(std::span(packed)), sizes, offsets,
                                            std::as_writable_bytes(std::span(all))));
  std::vector<NamedValues> ranks;
  std::vector<std::string> names;  // each once, in the order of the ranks
  for (size_t p = 0; p < n; ++p) {
    HOTROW_ASSIGN_OR_RETURN(ranks.emplace_back(),
                            Unpack(std::string_view(all).substr(static_cast<size_t>(offsets[p]),
                                                                static_cast<size_t>(sizes[p]))));
    for (const auto& [name, value] : ranks.back()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::vector<std::string> differences;
  size_t more = 0;
  for (const std::string& name : names) {
    std::string difference = DifferenceIn(name, ranks);
    if (difference.empty()) continue;
    if (differences.size() < kDifferencesMax) {
      differences.push_back(std::move(difference));
    } else {
      ++more;
    }
  }
  // The same values in another order, or a name twice: no caller does that.
  if (differences.empty()) differences.emplace_back("their settings come in different orders");
  if (more > 0) differences.push_back(absl::StrCat(more, " more"));
  return absl::InvalidArgumentError(absl::StrCat(
      "the ranks differ: ", absl::StrJoin(differences, "; "), "; start all ranks with the same"));
}

}  // namespace hotrow
