#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/delta/delta_damage_impl.h"
#include "models/delta/delta_merge_impl.h"

namespace hotrow {

absl::StatusOr<DeltaMerge> DeltaMerge::Create(std::vector<Source> sources) {
  DeltaMerge out(std::move(sources));
  for (size_t i = 0; i < out.sources_.size(); ++i) {
    if (!out.sources_[i].reader->done()) out.heap_.push_back(i);
  }
  for (size_t at = out.heap_.size() / 2; at-- > 0;) out.SiftDown(at);
  if (!out.heap_.empty()) HOTROW_RETURN_IF_ERROR(out.CheckFirst());
  return out;
}

// Whether the entry of source a comes first: the lower key, then the higher sequence.
bool DeltaMerge::IsBelow(size_t a, size_t b) const {
  const RowKey& key_a = sources_[a].reader->key();
  const RowKey& key_b = sources_[b].reader->key();
  if (key_a == key_b) return sources_[a].sequence > sources_[b].sequence;
  return ComesBefore(key_a, key_b);
}

void DeltaMerge::SiftDown(size_t at) {
  for (;;) {
    size_t least = at;
    for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < heap_.size(); ++child) {
      if (IsBelow(heap_[child], heap_[least])) least = child;
    }
    if (least == at) return;
    std::swap(heap_[at], heap_[least]);
    at = least;
  }
}

// Moves the source on top to its next entry.
absl::Status DeltaMerge::Advance() {
  DeltaRowsReader& reader = *sources_[heap_[0]].reader;
  HOTROW_RETURN_IF_ERROR(reader.Next());
  if (reader.done()) {
    heap_[0] = heap_.back();
    heap_.pop_back();
  }
  if (!heap_.empty()) SiftDown(0);
  return absl::OkStatus();
}

// One of two equal keys and sequences is on top and the other right below it.
absl::Status DeltaMerge::CheckFirst() const {
  for (size_t child = 1; child <= 2 && child < heap_.size(); ++child) {
    const Source& first = sources_[heap_[0]];
    const Source& other = sources_[heap_[child]];
    if (!(first.reader->key() == other.reader->key()) || first.sequence != other.sequence) continue;
    return DeltaDamaged(other.reader->path(), absl::StrCat("key ", first.reader->key().key,
                                                           " of table ", first.reader->key().table,
                                                           " is also in ", first.reader->path()));
  }
  return absl::OkStatus();
}

absl::Status DeltaMerge::Next() {
  const RowKey old = key();
  while (!heap_.empty() && key() == old) {
    HOTROW_RETURN_IF_ERROR(Advance());
    if (!heap_.empty()) HOTROW_RETURN_IF_ERROR(CheckFirst());
  }
  return absl::OkStatus();
}

}  // namespace hotrow
