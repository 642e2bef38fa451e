#include "models/serving/score_file.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/ctr_batch.h"
#include "models/data/record_files.h"
#include "models/data/sample_block.h"
#include "models/data/sample_feed.h"

namespace hotrow {

absl::Status ScoreFile(const Scorer& scorer, const std::string& path,
                       const ScoreFileOptions& options,
                       absl::FunctionRef<absl::Status(std::span<const float> logits)> take) {
  const TableSchema* const schema = scorer.schema();
  if (schema == nullptr) return scorer.ScoreLines({}, {});  // says why
  if (options.reader_threads < 1 || options.reader_threads > kMaxReaderThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("ScoreFileOptions.reader_threads must lie in [1, ", kMaxReaderThreads,
                     "], is ", options.reader_threads));
  }
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  const auto feed =
      NewSampleFeed(schema, {path}, OpenTextFrom(env), scorer.vocabulary(), options.reader_threads);
  const auto num_features = static_cast<int32_t>(schema->categorical.size());
  const auto num_labels = static_cast<int32_t>(schema->labels.size());
  SampleBlock block(scorer.num_dense(), num_features, num_labels);
  std::vector<SampleRef> refs;
  CtrBatch batch;
  std::vector<float> logits;
  const auto score = [&]() -> absl::Status {
    if (block.size() == 0) return absl::OkStatus();
    refs.resize(static_cast<size_t>(block.size()));
    for (size_t i = 0; i < refs.size(); ++i) refs[i] = {&block, static_cast<int64_t>(i)};
    GatherSamples(refs, scorer.num_dense(), num_features, &batch, num_labels);
    logits.resize(static_cast<size_t>(batch.batch_size * scorer.num_tasks()));  // <= max_batch_size
    HOTROW_RETURN_IF_ERROR(scorer.Score({.sparse = batch.sparse(), .dense = batch.dense}, logits));
    block.Clear();
    return take(logits);
  };
  while (true) {
    HOTROW_ASSIGN_OR_RETURN(const ParsedSamples* const parsed, feed->Next());
    if (parsed == nullptr) return score();
    const int64_t size = parsed->samples.size();
    for (int64_t begin = 0; begin < size;) {
      const int64_t end = std::min(size, begin + scorer.max_batch_size() - block.size());
      block.Append(parsed->samples, begin, end);
      begin = end;
      if (block.size() == scorer.max_batch_size()) HOTROW_RETURN_IF_ERROR(score());
    }
  }
}

}  // namespace hotrow
