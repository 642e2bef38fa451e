#include <array>
#include <string>
#include <string_view>

#include "capi/call_impl.h"

namespace hotrow::capi {
namespace {

struct Word {
  std::string_view ours;     // in the texts of models/
  std::string_view callers;  // in hotrow.h
};

// Longer ones stand before those that they begin with.
constexpr std::array kWords = {
    Word{"ScorerOptions.store_bytes", "options.store_memory_bytes"},
    Word{"ScorerOptions.", "options."},
    Word{"SparseOptimizerConfig", "optimizer"},
    Word{"--cache_bytes", "cache_bytes"},
    Word{"--checkpoint_dir", "checkpoint_dir"},
    Word{"--data", "spec"},
    Word{"--disk_bytes", "store_disk_bytes"},
    Word{"--edited", "edited"},
    Word{"--embedding_dim", "embedding_dim"},
    Word{"--init_from", "init_from"},
    Word{"--optimizer", "optimizer.kind"},
    Word{"--resume", "resume"},
    Word{"--save_dir", "a trainer's --save_dir"},
    Word{"--seed", "seed"},
    Word{"--shard_bytes", "shard_bytes"},
    Word{"--store_bytes", "store_memory_bytes"},
    Word{"--store_path", "store_path"},
    Word{"--threads", "threads"},
    Word{"--weights_precision", "weights_precision"},
};

// Whether a name at text[begin, end) stands for itself. As part of a path, of a longer name or of a
// quoted one it is somebody's own, and stays as it is.
bool ContinuesName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '/' || c == '"' || c == '\'';
}
bool NameBegins(std::string_view text, size_t begin) {
  return begin == 0 || !(ContinuesName(text[begin - 1]) || text[begin - 1] == '.');
}
bool NameEnds(std::string_view text, size_t end) {
  if (end == text.size()) return true;
  if (text[end] == '.') return end + 1 == text.size() || !ContinuesName(text[end + 1]);
  return !ContinuesName(text[end]);
}

const Word* WordAt(std::string_view text, size_t at) {
  if (!NameBegins(text, at)) return nullptr;
  for (const Word& word : kWords) {
    if (text.substr(at, word.ours.size()) != word.ours) continue;
    if (word.ours.ends_with('.') || NameEnds(text, at + word.ours.size())) return &word;
  }
  return nullptr;
}

}  // namespace

std::string InCallersWords(std::string_view message) {
  std::string out;
  for (size_t at = 0; at < message.size();) {
    const Word* const word = WordAt(message, at);
    if (word == nullptr) {
      out += message[at++];
    } else {
      out += word->callers;
      at += word->ours.size();
    }
  }
  return out;
}

}  // namespace hotrow::capi
