#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "models/data/sample_feed.h"
#include "models/serving/score_file.h"
#include "models/serving/scorer.h"
#include "tools/command.h"
#include "tools/scorer_flags.h"

namespace hotrow {
namespace {

enum class ScoreKind { kProbability, kLogit };

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ScorerOptions options = {.max_concurrency = 1};
  ScoreFileOptions file;
  ScoreKind kind = ScoreKind::kProbability;
  FlagSet flags("hotrow score");
  flags.Add(
      "score",
      WordFlag<ScoreKind>("WORD", &kind,
                          {{"probability", ScoreKind::kProbability}, {"logit", ScoreKind::kLogit}}),
      "what is printed");
  flags.AddInt("batch_size", 1, 1 << 24, &options.max_batch_size,
               "samples that are scored together; the same number in --batch_size of training "
               "gives the bits of its evaluation");
  flags.Add("reader_threads", IntFlag(&file.reader_threads, 1, kMaxReaderThreads),
            "threads that parse text; no result depends on them");
  ScorerFlags scorer_flags(&options, &flags);
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  HOTROW_RETURN_IF_ERROR(scorer_flags.Finish());
  options.model = operands[0];
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<Scorer> scorer, Scorer::Open(options));
  for (const std::string& note : scorer->notes()) {
    std::fprintf(stderr, "hotrow score: %s: %s\n", options.model.c_str(), note.c_str());
  }
  const auto num_tasks = static_cast<size_t>(scorer->num_tasks());
  std::string text;
  HOTROW_RETURN_IF_ERROR(
      ScoreFile(*scorer, operands[1], file, [&](std::span<const float> logits) -> absl::Status {
        text.clear();
        for (size_t i = 0; i < logits.size(); ++i) {
          const float score = kind == ScoreKind::kLogit ? logits[i] : ScoreProbability(logits[i]);
          // 9 digits bring the same float back.
          absl::StrAppendFormat(&text, "%.9g%c", score, (i + 1) % num_tasks == 0 ? '\n' : '\t');
        }
        if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) {
          return absl::OkStatus();
        }
        return absl::UnavailableError("standard output cannot be written");
      }));
  if (std::fflush(stdout) != 0) {
    return absl::UnavailableError("standard output cannot be written");
  }
  return kExitGood;
}

}  // namespace

const Command kScoreCommand = {
    .name = "score",
    .operands = "MODEL FILE",
    .summary = "scores each line of a text file with a trained model",
    .details =
        "MODEL is a model of --save_dir, a checkpoint, a directory of checkpoints (the newest\n"
        "counts), or a directory that hotrow export wrote. FILE is delimited text, plain or\n"
        "gzip, of the schema that the model was trained with; columns of labels are not read, and\n"
        "need not be there. Prints a line for each sample: the score of each task, separated by\n"
        "tabs. A blank line is a sample where there is one column; otherwise it is an error, "
        "unless\n"
        "nothing follows. docs/serving.md says what a score is.\n",
    .run = Run};

}  // namespace hotrow
