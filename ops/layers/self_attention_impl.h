#ifndef HOTROW_OPS_LAYERS_SELF_ATTENTION_IMPL_H_
#define HOTROW_OPS_LAYERS_SELF_ATTENTION_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "ops/layers/self_attention.h"

namespace hotrow::internal {

// Samples that a thread takes at once. Each of some dozens of rows is tens of microseconds of work.
inline constexpr int64_t kSelfAttentionChunkSamples = 4;

absl::Status AppendTargetCpu(ThreadPool* pool, const AppendTargetArgs& args);
absl::Status AppendTargetGradCpu(ThreadPool* pool, const AppendTargetGradArgs& args);
absl::Status LastRowCpu(ThreadPool* pool, const LastRowArgs& args);
absl::Status LastRowGradCpu(ThreadPool* pool, const LastRowGradArgs& args);
absl::Status SelfAttentionCpu(ThreadPool* pool, const SelfAttentionArgs& args);
absl::Status SelfAttentionGradCpu(ThreadPool* pool, const SelfAttentionGradArgs& args);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_SELF_ATTENTION_IMPL_H_
