#include "models/train/run_start_impl.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/buffer.h"
#include "base/device_stream.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "comm/compare_ranks.h"
#include "comm/run_together.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/saved_model_fit.h"
#include "models/saving/saved_part.h"
#include "models/saving/training_state.h"
#include "models/saving/vocabulary_file.h"
#include "models/train/run_settings.h"
#include "ops/products/processor_kind.h"

namespace hotrow {
namespace {

// The hash of the model's parameters, wherever they are.
absl::StatusOr<std::string> HashOfParameters(CtrModel& model, const ExecContext& ctx) {
  std::span<const float> parameters = model.parameters();
  HostBuffer<float> copy;
  if (model.device() != Device::kCpu) {
    HOTROW_ASSIGN_OR_RETURN(copy, HostBuffer<float>::Create(std::ssize(parameters)));
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, copy.data(), parameters.data(), copy.bytes()));
    HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
    parameters = copy.span();
  }
  return HashBytes(0, 0, std::as_bytes(parameters)).ToHex();
}

}  // namespace

absl::StatusOr<RunStart> FindStart(const TrainerOptions& options, Env& env) {
  RunStart start;
  const std::string& dir = options.checkpoint_dir;
  if (!dir.empty()) {
    const absl::StatusOr<std::vector<std::string>> names = ListCheckpoints(env, dir);
    if (!names.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("--checkpoint_dir=", dir, ": ",
                                                        names.status().message(),
                                                        "; give a directory of its own"));
    }
    if (!options.resume && !names->empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--checkpoint_dir=", dir, ": it holds checkpoints, the newest is ", names->back(),
          "; add --resume to go on from it, or give another directory"));
    }
    if (!names->empty()) {
      HOTROW_ASSIGN_OR_RETURN(start.saved, ReadCheckpoint(env, dir));
      start.resumed = true;
    }
  }
  if (!start.resumed && !options.init_from.empty()) {
    HOTROW_ASSIGN_OR_RETURN(start.saved, ReadCheckpoint(env, options.init_from));
  }
  return start;
}

absl::Status CheckStart(const RunStart& start, const TrainerOptions& options,
                        const SavedModel& description) {
  if (!start.saved.has_value()) return absl::OkStatus();
  const SavedModel& saved = *start.saved;
  if (!start.resumed) {
    if (saved.training != nullptr && saved.training->rows_missed_steps()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--init_from=", options.init_from,
          ": its tables decay as a whole (--table_weight_decay_mode=table), and the rows of a "
          "checkpoint have not made up for the steps that they missed; give the model of a "
          "--save_dir, which --resume with that flag writes"));
    }
    return CheckSavedModelFits(saved, description,
                               {.flag = absl::StrCat("--init_from=", options.init_from),
                                .train_anew = "train anew without --init_from"});
  }
  const std::string flag = absl::StrCat("--resume from ", saved.dir);
  if (saved.training == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(flag,
                     ": it does not know where in the data its training stood; start from "
                     "it with --init_from=",
                     saved.dir, " and another --checkpoint_dir"));
  }
  if (saved.model != description.model) {
    return absl::FailedPreconditionError(absl::StrCat(flag, ": it holds a model \"", saved.model,
                                                      "\", this is ", description.model,
                                                      "; use the program ", saved.model));
  }
  HOTROW_RETURN_IF_ERROR(
      CompareWithCheckpoint(saved.training->settings, BitSettings(options), flag));
  return CheckSavedModelFits(
      saved, description, {.flag = flag, .train_anew = "train anew with another --checkpoint_dir"});
}

absl::Status CheckVocabulary(const RunStart& start, const TrainerOptions& options,
                             const Vocabulary* here, Env& env) {
  if (!start.saved.has_value()) return absl::OkStatus();
  const bool there = start.saved->vocabulary.has_value();
  if (!there && here == nullptr) return absl::OkStatus();
  const std::string flag = start.resumed ? absl::StrCat("--resume from ", start.saved->dir)
                                         : absl::StrCat("--init_from=", options.init_from);
  if (!there || here == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(flag, ": rare values are merged (min_count) ",
                     there ? "there, and not here" : "here, and not there",
                     "; use the schema that the model was trained with, or train anew"));
  }
  HOTROW_ASSIGN_OR_RETURN(const Vocabulary saved, ReadSavedVocabulary(env, *start.saved));
  Vocabulary wanted = saved;
  if (!start.resumed) {
    wanted = *here;
    HOTROW_RETURN_IF_ERROR(wanted.Join(saved, flag));
  }
  if (wanted.Encode() == here->Encode()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      flag,
      ": the values that have rows of their own (min_count) are not those of the model; use "
      "the schema that it was trained with, and open the data with the vocabulary of the "
      "model (ReadSavedVocabulary)"));
}

absl::Status CompareStarts(const RunStart& start, CtrModel& model, RunRanks& ranks,
                           const ExecContext& ctx) {
  if (!ranks.many()) return absl::OkStatus();
  // Where one fails, the others must not wait for it.
  std::string hash;
  HOTROW_RETURN_IF_ERROR(RunTogether(*ranks.channel(), [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(hash, HashOfParameters(model, ctx));
    return absl::OkStatus();
  }));
  NamedValues mine = {
      {"the model", absl::StrCat(std::string(model.name()), " of ", model.parameters().size(),
                                 " dense parameters")},
      {"the start", start.saved.has_value()
                        ? absl::StrFormat("%s of step %d, dense parameters of checksum %08x",
                                          start.resumed ? "a checkpoint" : "a model",
                                          start.saved->step, start.saved->dense_crc)
                        : "new parameters"},
      {"the hash of the first dense parameters", hash}};
  return CompareRanks(*ranks.channel(), mine);
}

absl::Status OpenTablesFrom(const RunStart& start, EmbeddingCollectionOptions* options) {
  if (!start.saved.has_value()) return absl::OkStatus();
  for (const SavedModel::Part& part : start.saved->parts) {
    HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
    options->start.from.push_back({.snapshot = part.snapshot,
                                   .identity = part.identity,
                                   .store = kind,
                                   .dir = part.tables_dir});
  }
  options->start.steps = start.saved->step;
  options->start.age_lines = AgeLinesOf(*start.saved);
  if (start.resumed) {
    options->start.learning_rates = start.saved->training->learning_rates;
    options->start.settled_steps = start.saved->training->first_step;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LoadResiduals(const RunStart& start, const RunRanks& ranks, Env& env,
                                          EmbeddingCollection* tables) {
  if (!start.resumed || !tables->residuals().kept()) return std::string();
  const SavedModel& saved = *start.saved;
  if (saved.residuals.empty()) return std::string("the checkpoint has none");
  if (std::ssize(saved.residuals) != ranks.world_size()) {
    return absl::StrCat("the checkpoint has those of ", saved.residuals.size(), " ranks");
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes, ReadSavedResiduals(env, saved, ranks.rank()));
  const absl::StatusOr<bool> loaded = tables->residuals().Load(std::as_bytes(std::span(bytes)));
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(),
                        absl::StrCat(saved.dir, "/", saved.residuals[ranks.rank()].file, ": ",
                                     loaded.status().message()));
  }
  return *loaded ? std::string() : std::string("the checkpoint has those of another budget");
}

absl::StatusOr<std::string> FindProcessor(const RunStart& start, Device device, RunRanks& ranks,
                                          std::FILE* notices) {
  if (device != Device::kCpu) return std::string();
  std::string processor = ProcessorKind();
  if (ranks.many()) {
    HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> kinds,
                            AllGatherTexts(*ranks.channel(), processor));
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
    processor = absl::StrJoin(kinds, ", ");
  }
  if (!start.resumed || notices == nullptr) return processor;
  const std::string& before = start.saved->training->processor;
  if (before.empty() || before == processor) return processor;
  std::fprintf(notices,
               "notice: --resume from %s: it was trained on another kind of processor (%s) than "
               "this one (%s); training goes on with other bits\n",
               start.saved->dir.c_str(), before.c_str(), processor.c_str());
  std::fflush(notices);
  return processor;
}

}  // namespace hotrow
