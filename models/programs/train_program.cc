#include "models/programs/train_program.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/atomic_file.h"
#include "base/device_stream.h"
#include "base/env.h"
#include "base/exec_context.h"
#include "base/flag_text.h"
#include "base/out_of_room.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "cache/cache_policy.h"
#include "comm/create_communicator.h"
#include "models/data/file_source.h"
#include "models/data/growing_source.h"
#include "models/data/open_data_source.h"
#include "models/programs/trainer_flags.h"
#include "models/saving/vocabulary_file.h"
#include "models/train/access_recorder.h"
#include "models/train/report.h"
#include "models/train/run_settings.h"
#include "models/train/run_start_impl.h"
#include "models/train/trainer.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;

// The number of the first signal that asks for an end. Static, since the thread that sets it is
// never joined.
std::atomic<int> stop_signal{0};

void AskForEnd(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
}

// The first signal asks for a clean end, a SIGINT or SIGTERM after it kills. Call this before any
// thread is started: they inherit that the signals are blocked.
//
// SIGPIPE comes when the reader of the output has died.
//
// A thread waits for the signals, and there is no handler: code after sigwait may do anything, a
// handler next to nothing. SIGPIPE has one, since it goes to the thread that writes. (Handlers of a
// program that embeds hotrow do no harm either: the threads that multiply matrices block signals
// while they do, see ops/products/gemm_impl.h.)
absl::Status CatchStopSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, AskForEnd);
  HOTROW_ASSIGN_OR_RETURN(std::thread waiting, StartThread("signals", [signals] {
                            int signal = 0;
                            do {
                              sigwait(&signals, &signal);
                              if (stop_signal != 0) continue;
                              AskForEnd(signal);
                              signal = 0;
                            } while (signal != SIGINT && signal != SIGTERM);
                            std::signal(signal, SIG_DFL);
                            pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
                            std::raise(signal);
                          }));
  waiting.detach();
  return absl::OkStatus();
}

std::string HelpText(const TrainProgram& program, const FlagSet& set) {
  std::string out = absl::StrCat(
      program.summary, "\nUsage: ", program.name, " [--flag=value ...]\n\n", program.examples,
      "\nCtrl-C ends training after the current step, with a checkpoint if there is a\n"
      "--checkpoint_dir; the report is written, test data is not evaluated. A second Ctrl-C ends\n"
      "the program at once. SIGTERM is as Ctrl-C; SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2 and SIGXCPU\n"
      "are as the first one. Exit status: 0 success, 1 failure, 2 wrong usage. [...] is the "
      "default.\n"
      "\n",
      set.Help(), "\nKinds of data\n");
  for (const std::string& line : WrapText(DataSourceHelp(), 96)) {
    absl::StrAppend(&out, "  ", line, "\n");
  }
  return out;
}

// Fails now rather than after hours of training if `path` cannot be written: opens what the writer
// will open, and removes it again if that made it. aside: the writer renames what it has written.
absl::Status CheckWritable(Env& env, const char* flag, const std::string& value,
                           const std::string& path, bool aside) {
  if (value.empty()) return absl::OkStatus();
  const auto explained = [&](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("--", flag, "=", value, ": ", std::string(why),
                     "; give a file in a directory that exists and that you may write to"));
  };
  if (env.ListDir(path).ok()) return explained("is a directory");
  const absl::StatusOr<OutputPlace> place = FindOutput(path);
  if (!place.ok()) return explained(place.status().message());
  // A reader of a FIFO would see its end once it is opened and closed.
  if (aside && place->in_place) return absl::OkStatus();
  const std::string opened_path = aside ? place->temporary() : place->path;
  const absl::StatusOr<bool> existed = env.Exists(opened_path);
  absl::StatusOr<std::unique_ptr<File>> file = env.Open(opened_path, OpenMode::kCreate);
  if (!file.ok()) return explained(file.status().message());
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  if (existed.ok() && !*existed) return env.Remove(opened_path);
  return absl::OkStatus();
}

void PrintTryNext(const TrainProgram& program, const FlagSet& set, const TrainerFlags& flags,
                  const TrainReport& report) {
  std::vector<std::pair<std::string, std::string>> ideas;
  const TrainerOptions& options = flags.options;
  const bool on_disk = FactsOf(options.store).on_disk;
  if (!options.checkpoint_dir.empty()) {
    if (report.stopped_by_signal != 0) {
      ideas.emplace_back(set.CommandLineWith("resume", "true"), "go on where this stopped");
    }
  } else if (on_disk) {
    // The store has rows now: the same command is refused.
  } else if (!report.has_digest()) {
    // Nothing says how many rows there are, or that they are the same.
  } else if (report.device_cache_bytes > 0) {
    ideas.emplace_back(set.CommandLineWith("device_cache_bytes", "min"),
                       "the smallest cache that works: same bits, see tables_hash");
  } else if (report.cache_bytes == 0) {
    const int64_t tenth_mib = std::max<int64_t>(report.row_bytes() / 10 >> 20, 1);
    ideas.emplace_back(set.CommandLineWith("cache_bytes", absl::StrCat(tenth_mib, "MiB")),
                       "through a cache for a tenth of the rows: same bits, see tables_hash");
  } else {
    ideas.emplace_back(set.CommandLineWith("cache_bytes", "min"),
                       "the smallest cache that works: same bits, see tables_hash");
    const bool lru = options.cache_policy == CachePolicy::kLru;
    if (lru && !flags.data.starts_with("synthetic") && options.record_trace.empty()) {
      ideas.emplace_back(set.CommandLineWith("record_trace", "accesses.trace"),
                         "what is looked up; `hotrow trace` tells what other caches would hit");
    } else if (lru && report.cache_bytes < report.row_bytes() / 10) {
      // Where it was measured to hit more often, see bench/results/cache_policies.md.
      ideas.emplace_back(
          set.CommandLineWith("cache_policy", std::string(CachePolicyName(CachePolicy::kSieve))),
          "what is used once leaves sooner: more hits in most small caches");
    }
  }
  const bool again = options.checkpoint_dir.empty() && !on_disk;
  if (flags.report.empty() && again) {
    ideas.emplace_back(set.CommandLineWith("report", "run.json"),
                       "hashes, metrics and figures of each tier as JSON");
  }
  if (flags.trace.empty() && again) {
    ideas.emplace_back(set.CommandLineWith("trace", "trace.json"),
                       "a timeline of every stage, for ui.perfetto.dev");
  }
  if (!flags.data.starts_with("packed:") && again) {
    ideas.emplace(ideas.begin() + (ideas.empty() ? 0 : 1),
                  set.CommandLineWith("data", "packed:clicks.packed"),
                  absl::StrCat("after `hotrow pack ", flags.data,
                               " clicks.packed`: samples are read many times faster"));
  }
  if (ideas.size() > 2) ideas.resize(2);
  ideas.emplace_back(absl::StrCat(program.name, " --help"), "all flags and kinds of data");
  std::printf("\n  try next\n");
  for (const auto& [command, what] : ideas) {
    std::printf("    %s\n        %s\n", command.c_str(), what.c_str());
  }
}

// Which values have their own rows in the model that training starts from; none: it merges none,
// or training starts from new parameters.
absl::StatusOr<std::optional<SavedVocabulary>> FindSavedVocabulary(const TrainerOptions& options,
                                                                   Env& env) {
  std::optional<SavedVocabulary> out;
  const absl::StatusOr<RunStart> start = FindStart(options, env);
  if (!start.ok()) return out;  // RunTraining says why, and what comes before it
  if (!start->saved.has_value() || !start->saved->vocabulary.has_value()) return out;
  HOTROW_ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadSavedVocabulary(env, *start->saved));
  out = {.vocabulary = std::move(vocabulary),
         .where = start->resumed ? absl::StrCat("--resume from ", start->saved->dir)
                                 : absl::StrCat("--init_from=", options.init_from),
         .final = start->resumed};
  return out;
}

ModelSettings SettingsOf(const TrainerFlags& flags) {
  return {.embedding_dim = flags.options.embedding_dim,
          .batch_size = flags.options.batch_size,
          .seed = flags.options.seed,
          .precision = flags.options.precision};
}

// What is left once the ranks know each other: all of a process that is alone.
absl::Status Train(const TrainProgram& program, const FlagSet& set, TrainerFlags& flags,
                   TrainerOptions options, Communicator& communicator) {
  const bool first = communicator.rank() == 0;
  Env& env = PosixEnv();
  if (first) {
    HOTROW_RETURN_IF_ERROR(
        CheckWritable(env, "report", flags.report, flags.report, /*aside=*/true));
    HOTROW_RETURN_IF_ERROR(CheckWritable(env, "trace", flags.trace, flags.trace, /*aside=*/false));
    HOTROW_RETURN_IF_ERROR(
        CheckWritable(env, "save_spec", options.save_spec, options.save_spec, /*aside=*/true));
  }
  HOTROW_RETURN_IF_ERROR(
      CheckWritable(env, "record_trace", options.record_trace,
                    AccessTracePath(options.record_trace, communicator.rank(),
                                    communicator.world_size(), /*resumed_step=*/-1),
                    /*aside=*/false));
  TraceRecorder trace(/*keep_events=*/first && !flags.trace.empty());
  ThreadPool pool(static_cast<int>(flags.threads));
  if (!pool.status().ok()) {
    return absl::Status(pool.status().code(),
                        absl::StrCat("--threads=", flags.threads, ": ", pool.status().message()));
  }
  options.out = first ? stdout : nullptr;
  options.notices = first ? stderr : nullptr;
  options.stop_signal = &stop_signal;
  options.communicator = &communicator;

  HOTROW_ASSIGN_OR_RETURN(const std::optional<SavedVocabulary> vocabulary,
                          FindSavedVocabulary(options, env));
  const bool follows = options.follow_seconds > 0;
  const auto open_data = [&](const SavedVocabulary* of_run) {
    const SavedVocabulary* const of_start = vocabulary ? &*vocabulary : nullptr;
    return OpenDataSource(flags.data, options.seed,
                          {.saved_vocabulary = of_run != nullptr ? of_run : of_start,
                           .threads = ChooseReaderThreads(flags),
                           // Text that is opened again and again is not parsed each time.
                           .shuffle_bytes = follows ? 0 : options.shuffle_bytes,
                           .in_order = options.window_seconds > 0});
  };
  std::unique_ptr<DataSource> data;
  if (follows) {
    HOTROW_ASSIGN_OR_RETURN(data, GrowingSource::Open(open_data));
  } else {
    HOTROW_ASSIGN_OR_RETURN(data, open_data(nullptr));
  }
  if (flags.data.starts_with("packed:") && options.window_seconds == 0) {
    // A pattern may stand for other packs than it did. Windows may become more.
    HOTROW_ASSIGN_OR_RETURN(const auto identity, data->Identity());
    std::string content;
    for (const auto& [what, value] : identity) {
      if (what == "form" || what == "order") continue;
      absl::StrAppend(&content, content.empty() ? "" : "; ", what, " ", value);
    }
    options.settings.emplace_back(kDataContent, content);
  }
  HOTROW_ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::Create(options.device));
  const ExecContext ctx = stream.On({.pool = &pool, .trace = &trace});
  const auto make_model = [&](const DataSchema& schema) {
    return program.make_model(SettingsOf(flags), schema, ctx);
  };
  HOTROW_ASSIGN_OR_RETURN(TrainReport report, RunTraining(options, *data, make_model, ctx));
  if (!first) return report.access_status;
  flags.options.cache_bytes = report.cache_bytes;
  flags.options.device_cache_bytes = report.device_cache_bytes;
  report.flags = set.Values();
  std::printf("\n%s", FormatSummary(report).c_str());
  if (report.saved_step >= 0) {
    std::printf("\n  model of step %s saved to %s\n", FormatCount(report.saved_step).c_str(),
                options.save_dir.c_str());
  }
  if (!report.checkpoint.empty()) {
    const bool none_left = report.resumed_step >= 0 && report.samples == report.resumed_samples &&
                           report.stopped_by_signal == 0;
    const char* const next = !options.resume        ? "; add --resume to go on from it"
                             : !none_left           ? ""
                             : report.stopped_early ? "; training had stopped early"
                             : options.window_seconds > 0
                                 ? "; nothing was left to train: add later data"
                                 : "; nothing was left to train: raise --epochs";
    std::printf("\n  checkpoint in %s%s\n", report.checkpoint.c_str(), next);
  }
  if (!flags.trace.empty()) {
    HOTROW_RETURN_IF_ERROR(trace.WriteChromeTrace(env, flags.trace));
    std::printf("\n  trace written to %s\n", flags.trace.c_str());
  }
  if (!flags.report.empty()) {
    const absl::Status written = WriteFileAtomically(env, flags.report, ReportToJson(report));
    if (!written.ok()) {
      return WithText(written, absl::StrCat("--report=", flags.report, ": ", written.message()));
    }
    std::printf("%s  report written to %s\n", flags.trace.empty() ? "\n" : "",
                flags.report.c_str());
  }
  if (!options.save_spec.empty()) {
    std::printf("\n  spec written to %s; `hotrow plan` reads it\n", options.save_spec.c_str());
  }
  if (!report.access_trace.empty() && report.access_status.ok()) {
    std::printf("\n  accesses recorded in %s; `hotrow trace` reads them\n",
                report.access_trace.c_str());
  }
  if (communicator.world_size() == 1) PrintTryNext(program, set, flags, report);
  // The model and the report are worth having without it.
  return report.access_status;
}

// The ranks of a machine take its GPUs in turn. An error is said by who needs the device first.
void UseDeviceOfRank(Device device, const RankEnvironment& ranks) {
  const absl::StatusOr<int> devices = NumDevices(device);
  if (!devices.ok()) return;
  UseDevice({.device = device, .device_index = ranks.local_rank % *devices}).IgnoreError();
}

absl::Status Run(const TrainProgram& program, int argc, const char* const* argv) {
  TrainerFlags flags;
  FlagSet set = MakeTrainerFlagSet(program.name, program.add_model_flags, &flags, program.presets);
  HOTROW_RETURN_IF_ERROR(set.Parse(argc, argv));
  if (set.help_requested()) {
    const bool of_topic = std::any_of(argv + 1, argv + argc, [](const char* argument) {
      return std::string_view(argument).starts_with("--help=");
    });
    std::fputs((of_topic ? set.Help() : HelpText(program, set)).c_str(), stdout);
    return absl::OkStatus();
  }
  const absl::StatusOr<CommKind> parsed_comm = ParseCommKind(flags.comm);
  if (!parsed_comm.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--comm=", flags.comm, ": ", parsed_comm.status().message()));
  }
  const CommKind comm = *parsed_comm;
  HOTROW_ASSIGN_OR_RETURN(const RankEnvironment ranks, DetectRankEnvironment());
  UseDeviceOfRank(flags.options.device, ranks);
  HOTROW_RETURN_IF_ERROR(
      ResolveTrainerFlags(&flags, comm == CommKind::kSingle ? 1 : ranks.local_world_size));
  if (program.resolve_model_flags != nullptr) program.resolve_model_flags(SettingsOf(flags));
  // The flags stay as the report shows them.
  TrainerOptions options = flags.options;
  if (program.table_columns != nullptr) {
    options.embedding_dim = static_cast<int32_t>(program.table_columns(SettingsOf(flags)));
  }
  options.shape = ModelShape(set);
  options.settings = RunSettings(set);
  // A launcher's library starts threads.
  HOTROW_RETURN_IF_ERROR(CatchStopSignals());
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                          CreateCommunicator(comm, {.timeout_seconds = flags.comm_timeout}));
  absl::Status status = Train(program, set, flags, std::move(options), *communicator);
  if (communicator->world_size() == 1) return status;
  // Nobody leaves while others still need it; who fails says why.
  if (status.ok()) {
    status = communicator->Barrier();
  } else {
    communicator->Abort(std::string(status.message()));
  }
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("rank ", communicator->rank(), ": ", status.message()));
}

int RunToExitStatus(const TrainProgram& program, int argc, const char* const* argv) {
  const absl::Status status = Run(program, argc, argv);
  if (status.ok()) return 0;
  std::fflush(stdout);
  // One line, so that it can be searched for in a log.
  const std::string line = absl::StrReplaceAll(status.message(), {{"\n", " "}});
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), line.c_str());
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ? kExitUsage : kExitError;
}

}  // namespace

int RunTrainProgram(const TrainProgram& program, int argc, const char* const* argv) {
  return RunMain(program.name.c_str(), [&] { return RunToExitStatus(program, argc, argv); });
}

}  // namespace hotrow
