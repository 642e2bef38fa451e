#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/whole_name.h"
#include "capi/call_impl.h"
#include "store/store_facts.h"

namespace hotrow::capi {
namespace {

struct Word {
  std::string_view ours;     // in the texts of the engine and of the programs' flags
  std::string_view callers;  // in hotrow.h
};

// Longer ones stand before those that they begin with.
constexpr std::array kWords = {
    Word{"EmbeddingCollectionOptions.cache.bytes", "cache_bytes"},
    Word{"EmbeddingCollectionOptions.cache.device_bytes", "cache_device_bytes"},
    Word{"EmbeddingCollectionOptions.cache.device_index_bytes", "cache_device_index_bytes"},
    Word{"EmbeddingCollectionOptions.ranks.feedback_bytes", "exchange_feedback_bytes"},
    Word{"Admission::forget_steps", "admission \"lookups:N:STEPS\""},
    Word{"EmbeddingCollectionOptions.ranks.backward", "exchange_backward"},
    Word{"EmbeddingCollectionOptions.ranks.forward", "exchange_forward"},
    Word{"EmbeddingCollectionOptions.ranks.", ""},
    Word{"EmbeddingCollectionOptions.store: the memory_bytes", "store_memory_bytes: the budget"},
    Word{"EmbeddingCollectionOptions.store: the disk_bytes", "store_disk_bytes: the budget"},
    Word{"EmbeddingCollectionOptions.", ""},
    Word{"ScorerOptions.rows", "options.rows"},
    Word{"ScorerOptions.store_bytes", "options.store_memory_bytes"},
    Word{"ScorerOptions.", "options."},
    Word{"SnapshotReaderOptions.memory_budget_bytes", "options.store_memory_bytes"},
    Word{"SparseOptimizerConfig.", "optimizer."},
    Word{"SparseOptimizerConfig", "optimizer"},
    Word{"cache.bytes", "cache_bytes"},
    Word{"cache.device_bytes", "cache_device_bytes"},
    Word{"cache.device_index_bytes", "cache_device_index_bytes"},
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

// And the budgets of each kind of store.
std::vector<Word> AllWords() {
  std::vector<Word> words(kWords.begin(), kWords.end());
  for (const StoreKind kind : StoreKinds()) {
    const StoreFacts& facts = FactsOf(kind);
    words.push_back({facts.memory_option, "store_memory_bytes"});
    if (facts.on_disk) words.push_back({facts.disk_option, "store_disk_bytes"});
  }
  return words;
}

const Word* WordAt(std::string_view text, size_t at) {
  if (!NameBegins(text, at)) return nullptr;
  static const std::vector<Word> words = AllWords();
  for (const Word& word : words) {
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
