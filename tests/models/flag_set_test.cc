#include "base/flag_set.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

#include "base/env.h"
#include "base/flag_text.h"
#include "base/machine_limits.h"
#include "gtest/gtest.h"
#include "models/data/file_source.h"
#include "models/programs/trainer_flags.h"
#include "models/train/run_settings.h"
#include "models/train/trainer_settings.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Fields {
  int64_t batch_size = 16;
  double rate = 0.5;
  std::string word = "one";
  int64_t cache_bytes = 0;
  std::vector<int32_t> sizes = {4, 2};
};

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() {
    set_.Group("First");
    set_.AddInt("batch_size", 1, 100, &fields_.batch_size, "samples");
    set_.AddReal("rate", 0, 1, &fields_.rate, "speed");
    set_.Group("Second");
    set_.AddString("word", "WORD", &fields_.word, "a word");
    set_.AddBytes("cache_bytes", &fields_.cache_bytes, "bytes", -1);
    set_.AddSizes("sizes", &fields_.sizes, "layers");
  }
  absl::Status Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "prog");
    return set_.Parse(static_cast<int>(arguments.size()), arguments.data());
  }

  Fields fields_;
  FlagSet set_{"prog"};
};

TEST_F(FlagSetTest, ReadsEveryKindInEveryForm) {
  HOTROW_ASSERT_OK(Parse({"--batch_size=7", "--rate", "0.25", "-word=two", "--cache_bytes=2KiB",
                          "--sizes", "8-4,1", "--"}));
  EXPECT_EQ(fields_.batch_size, 7);
  EXPECT_EQ(fields_.rate, 0.25);
  EXPECT_EQ(fields_.word, "two");
  EXPECT_EQ(fields_.cache_bytes, 2048);
  EXPECT_EQ(fields_.sizes, (std::vector<int32_t>{8, 4, 1}));
  EXPECT_FALSE(set_.help_requested());
  HOTROW_ASSERT_OK(Parse({"--cache_bytes=min", "--help"}));
  EXPECT_EQ(fields_.cache_bytes, -1);
  EXPECT_TRUE(set_.help_requested());
}

TEST_F(FlagSetTest, ErrorsNameTheFlagTheValueAndWhatItTakes) {
  const auto error = [this](std::vector<const char*> arguments) {
    const absl::Status status = Parse(std::move(arguments));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(error({"--batch_sise=7"}), AllOf(HasSubstr("unknown flag --batch_sise"),
                                               HasSubstr("did you mean --batch_size")));
  EXPECT_THAT(error({"--qqqqqqqq=7"}), AllOf(HasSubstr("--qqqqqqqq"), Not(HasSubstr("mean"))));
  EXPECT_THAT(error({"--batch_size=-5"}),
              HasSubstr("--batch_size=-5: takes a whole number from 1 to 100"));
  EXPECT_THAT(error({"--batch_size", "-5"}), HasSubstr("--batch_size=-5"));
  EXPECT_THAT(error({"--batch_size=1e3"}), HasSubstr("--batch_size=1e3"));
  EXPECT_THAT(error({"--batch_size="}), HasSubstr("--batch_size="));
  EXPECT_THAT(error({"--batch_size=99999999999999999999"}), HasSubstr("--batch_size"));
  EXPECT_THAT(error({"--rate=nan"}), HasSubstr("--rate=nan: takes a number from 0 to 1"));
  EXPECT_THAT(error({"--rate=1.5"}), HasSubstr("--rate"));
  EXPECT_THAT(error({"--word"}), HasSubstr("--word needs a value"));
  EXPECT_THAT(error({"--word", "--rate=1"}), HasSubstr("--word needs a value"));
  EXPECT_THAT(error({"--cache_bytes=12XB"}), HasSubstr("--cache_bytes=12XB"));
  EXPECT_THAT(error({"--sizes=8--4"}), HasSubstr("--sizes=8--4"));
  EXPECT_THAT(error({"--sizes="}), HasSubstr("--sizes"));
  EXPECT_THAT(error({"stray"}), HasSubstr("unexpected argument \"stray\""));
  EXPECT_THAT(error({"-"}), HasSubstr("unexpected argument \"-\""));
  EXPECT_THAT(error({"--=3"}), HasSubstr("unknown flag --"));
}

TEST_F(FlagSetTest, FieldsHaveTypesOfTheirOwn) {
  enum class Color { kRed, kGreen, kBlue };
  int32_t dim = 8;
  uint64_t seed = 5;
  float rate = 0.02f;
  Color color = Color::kRed;
  set_.Add("dim", IntFlag(&dim, 1, 64), "columns");
  set_.Add("seed", IntFlag(&seed, 0, INT64_MAX), "of all");
  set_.Add("speed", RealFlag(&rate, 0, 1), "a float");
  set_.Add(
      "color",
      WordFlag<Color>("WORD", &color,
                      {{"red", Color::kRed}, {"green", Color::kGreen}, {"blue", Color::kBlue}}),
      "a word");
  EXPECT_THAT(set_.Help(), AllOf(HasSubstr("a float [0.02]"), HasSubstr("a word [red]")));
  HOTROW_ASSERT_OK(
      Parse({"--dim=16", "--seed=9223372036854775807", "--speed=1e-3", "--color=green"}));
  EXPECT_EQ(dim, 16);
  EXPECT_EQ(seed, uint64_t{INT64_MAX});
  EXPECT_EQ(rate, 1e-3f);
  EXPECT_EQ(color, Color::kGreen);
  const auto values = set_.Values();
  EXPECT_EQ(values[5].second, FlagValue(int64_t{16}));
  EXPECT_EQ(values[7].second, FlagValue(1e-3));  // and not the float's own digits
  EXPECT_EQ(values[8].second, FlagValue(std::string("green")));
  EXPECT_THAT(Parse({"--color=pink"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--color=pink: takes red, green or blue")));
  EXPECT_EQ(color, Color::kGreen);
  seed = UINT64_MAX;  // as only code can set it
  EXPECT_EQ(FlagText(set_.Values()[6].second), "18446744073709551615");
}

TEST_F(FlagSetTest, HelpOfATopicIsThatOfAGroupOrOfNames) {
  const auto help = [this](const char* argument) {
    FlagSet set = set_;
    HOTROW_EXPECT_OK(set.Parse(2, std::array{"prog", argument}.data()));
    EXPECT_TRUE(set.help_requested());
    return set.Help();
  };
  EXPECT_THAT(help("--help=second"),
              AllOf(HasSubstr("Second\n  --word"), Not(HasSubstr("First")), HasSubstr("--sizes")));
  EXPECT_THAT(help("--help=size"), AllOf(HasSubstr("First\n  --batch_size"), HasSubstr("Second\n"),
                                         HasSubstr("--sizes"), Not(HasSubstr("--rate"))));
  EXPECT_EQ(help("--help="), help("--help"));
  EXPECT_THAT(Parse({"--help=weather"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--help=weather: no group of flags has this name"),
                             HasSubstr("; groups: first, second; "))));
}

// Groups may be filled in turns.
TEST_F(FlagSetTest, AGroupGoesOnWhereItIsNamedAgain) {
  set_.Group("First");
  bool fast = false;
  set_.AddSwitch("fast", &fast, "go");
  const std::string help = set_.Help();
  EXPECT_LT(help.find("--rate"), help.find("--fast"));
  EXPECT_LT(help.find("--fast"), help.find("Second\n"));
  EXPECT_EQ(help.find("First\n"), help.rfind("First\n"));
}

TEST_F(FlagSetTest, ValuesAreThoseOfTheFields) {
  fields_.batch_size = 3;
  const auto values = set_.Values();
  ASSERT_EQ(values.size(), 5u);
  EXPECT_EQ(values[0].first, "batch_size");
  EXPECT_EQ(std::get<int64_t>(values[0].second), 3);
  EXPECT_EQ(std::get<double>(values[1].second), 0.5);
  EXPECT_EQ(std::get<std::string>(values[4].second), "4-2");
}

TEST_F(FlagSetTest, CommandLineReplacesAndQuotes) {
  HOTROW_ASSERT_OK(Parse({"--word=it's here", "--rate", "1"}));
  EXPECT_EQ(set_.CommandLineWith("rate", "0.5"), "prog '--word=it'\\''s here' --rate=0.5");
  EXPECT_EQ(set_.CommandLineWith("batch_size", "2"),
            "prog '--word=it'\\''s here' --rate=1 --batch_size=2");
}

TEST_F(FlagSetTest, SwitchesNeedNoValue) {
  bool fast = false;
  bool quiet = true;
  set_.AddSwitch("fast", &fast, "go");
  set_.AddSwitch("quiet", &quiet, "say nothing");
  HOTROW_ASSERT_OK(Parse({"--fast", "--quiet=false", "--batch_size=3"}));
  EXPECT_TRUE(fast);
  EXPECT_FALSE(quiet);
  EXPECT_EQ(set_.Values()[5].second, FlagValue(std::string("true")));
  EXPECT_THAT(Parse({"--fast=yes"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--fast=yes: takes true")));
  EXPECT_THAT(Parse({"--fast", "true"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unexpected argument")));
  EXPECT_THAT(set_.Help(), AllOf(HasSubstr("--fast "), Not(HasSubstr("--fast="))));
}

class PresetTest : public FlagSetTest {
 protected:
  PresetTest() {
    set_.AddPresets({{"small", "AUC 0.7 on a toy", {"--batch_size=2", "--sizes=3-1"}},
                     {"large", "AUC 0.8 on a toy", {"--batch_size=90", "--rate=0.125"}}});
  }
};

TEST_F(PresetTest, SetsItsFlags) {
  HOTROW_ASSERT_OK(Parse({"--preset=large"}));
  EXPECT_EQ(fields_.batch_size, 90);
  EXPECT_EQ(fields_.rate, 0.125);
  EXPECT_EQ(fields_.sizes, (std::vector<int32_t>{4, 2}));
  EXPECT_EQ(set_.Values().back(),
            std::make_pair(std::string("preset"), FlagValue(std::string("large"))));
  EXPECT_EQ(set_.CommandLineWith("rate", "1"), "prog --preset=large --rate=1");
}

TEST_F(PresetTest, GivenFlagsWinWhereverTheyStand) {
  HOTROW_ASSERT_OK(Parse({"--batch_size=5", "--preset", "small", "--rate=1"}));
  EXPECT_EQ(fields_.batch_size, 5);
  EXPECT_EQ(fields_.rate, 1);
  EXPECT_EQ(fields_.sizes, (std::vector<int32_t>{3, 1}));
}

TEST_F(PresetTest, AnUnknownOneListsTheKnown) {
  EXPECT_THAT(Parse({"--preset=medium"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--preset=medium: takes small or large")));
  EXPECT_EQ(fields_.batch_size, 16);
}

TEST_F(PresetTest, TwoAreRefused) {
  EXPECT_THAT(Parse({"--preset=small", "--preset=large"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--preset=small")));
}

TEST_F(PresetTest, HelpSaysWhatTheyReproduce) {
  EXPECT_THAT(set_.Help(), AllOf(HasSubstr("small or large"), HasSubstr("--preset=small"),
                                 HasSubstr("AUC 0.7 on a toy"), HasSubstr("--batch_size=2")));
}

// A set may move after its flags were added.
TEST_F(PresetTest, OutlivesAMove) {
  FlagSet moved = std::move(set_);
  const char* const argv[] = {"prog", "--preset=large"};
  HOTROW_ASSERT_OK(moved.Parse(2, argv));
  EXPECT_EQ(moved.Values().back().second, FlagValue(std::string("large")));
}

TEST(ParseBytesTest, KnowsUnits) {
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"0", 0},
      {"123", 123},
      {"9007199254740993", 9007199254740993},  // more digits than a double has
      {"1k", 1000},
      {"1KB", 1000},
      {"1KiB", 1024},
      {"64MiB", int64_t{64} << 20},
      {"1.5G", 1'500'000'000},
      {"2gib", int64_t{2} << 30},
      {"1TiB", int64_t{1} << 40},
      {"2PiB", int64_t{2} << 50},
      {"1EiB", int64_t{1} << 60},
      {"12b", 12}};
  for (const auto& [text, bytes] : cases) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t parsed, ParseBytes(text));
    EXPECT_EQ(parsed, bytes) << text;
  }
  for (const char* const text :
       {"", "-1", "MiB", "1.2.3", "1 MiB x", "64MiBs", "1i", "9999999999999999999", "inf", "."}) {
    EXPECT_THAT(ParseBytes(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bytes")))
        << text;
  }
  for (const char* const text : {"1152921504606846977", "9223372036854775807", "8EiB", "2000PB"}) {
    EXPECT_THAT(ParseBytes(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("at most 1152921504606846976 bytes")))
        << text;
  }
}

TEST(TrainerFlagsTest, BudgetsAboveWhatAddressesHoldAreRefusedByName) {
  for (const std::string name : {"store_bytes", "cache_bytes", "device_cache_bytes",
                                 "device_index_bytes", "exchange_feedback"}) {
    for (const std::string value : {"129TiB", "1EiB", "8EiB", "9223372036854775807"}) {
      TrainerFlags flags;
      FlagSet set = MakeTrainerFlagSet("dlrm", nullptr, &flags);
      const std::string argument = absl::StrCat("--", name, "=", value);
      const char* const argv[] = {"dlrm", argument.c_str()};
      EXPECT_THAT(set.Parse(2, argv), StatusIs(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr(argument), HasSubstr("at most"))));
    }
  }
}

// Manifests and reports are JSON, which holds no other texts.
TEST(TrainerFlagsTest, PathsThatAreNotUtf8AreRefusedByName) {
  for (const std::string name : {"store_path", "checkpoint_dir", "save_dir", "data"}) {
    TrainerFlags flags;
    FlagSet set = MakeTrainerFlagSet("dlrm", nullptr, &flags);
    const std::string argument = absl::StrCat("--", name, "=/data/bad\xff");
    const char* const argv[] = {"dlrm", argument.c_str()};
    EXPECT_THAT(set.Parse(2, argv),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat("--", name, "=/data/bad\\xff")),
                               HasSubstr("UTF-8"))));
  }
}

TEST(TrainerFlagsTest, HelpDescribesEveryFlagWithinTheScreen) {
  TrainerFlags flags;
  int64_t width = 3;
  const auto add_model_flags = [&](FlagSet* set) {
    set->AddInt("width", 1, 9, &width, "of the model");
  };
  const FlagSet set = MakeTrainerFlagSet("learner", add_model_flags, &flags);
  const std::string help = set.Help();
  EXPECT_THAT(help, HasSubstr("--width="));
  for (const auto& [name, value] : set.Values()) {
    const bool is_switch = name == "mllog" || name == "resume" || name == "mrc" ||
                           name == "keep_best" || name == "delta_weights_only" ||
                           name == "cuda_graph" || name == "fuse_lookup" || name == "digest";
    EXPECT_THAT(help, HasSubstr("\n  --" + name + (is_switch ? " " : "=")));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(TrainerFlagsTest, ResolvesWhatIsLeftOpen) {
  TrainerFlags flags;
  TrainerOptions& options = flags.options;
  options.embedding_dim = 24;
  options.table_optimizer.learning_rate = 0.125f;
  options.table_optimizer.eps = 0.25f;
  options.dense_optimizer.learning_rate = 0;
  HOTROW_ASSERT_OK(ResolveTrainerFlags(&flags));
  EXPECT_EQ(options.embedding_dim, 24);
  EXPECT_EQ(options.dense_optimizer.learning_rate, 0.125f);
  EXPECT_EQ(options.dense_optimizer.eps, 0.25f);
  EXPECT_GE(flags.threads, 1);
  EXPECT_GT(options.store_bytes, 1 << 20);
  EXPECT_LT(options.store_bytes, UsableMemoryBytes());
  EXPECT_FALSE(options.initializer.has_value());
  // With one share of the memory.
  TrainerFlags feedback;
  feedback.options.exchange_backward = ExchangeType::kInt8;
  feedback.options.exchange_feedback_bytes = 1 << 20;
  HOTROW_ASSERT_OK(ResolveTrainerFlags(&feedback));
  EXPECT_EQ(feedback.options.store_bytes, options.store_bytes - (1 << 20));
}

// Training on a CPU has the cores to itself; opening the data comes before it.
TEST(TrainerFlagsTest, ReaderThreadsAreChosenByWhatRunsBesideThem) {
  TrainerFlags flags;
  const auto chosen = [&](int64_t threads, Device device) {
    flags.threads = threads;
    flags.options.device = device;
    const ReaderThreads out = ChooseReaderThreads(flags);
    return std::pair(out.opening, out.reading);
  };
  EXPECT_EQ(chosen(1, Device::kCpu), std::pair(1, 1));
  EXPECT_EQ(chosen(6, Device::kCpu), std::pair(6, 1));
  EXPECT_EQ(chosen(64, Device::kCpu), std::pair(16, 1));
  EXPECT_EQ(chosen(1, Device::kCuda), std::pair(1, 1));
  EXPECT_EQ(chosen(6, Device::kCuda), std::pair(6, 3));
  EXPECT_EQ(chosen(64, Device::kCuda), std::pair(16, 4));
  flags.reader_threads = 1;
  EXPECT_EQ(chosen(64, Device::kCuda), std::pair(1, 1));
  flags.reader_threads = 5;
  EXPECT_EQ(chosen(2, Device::kCpu), std::pair(5, 5));
}

TEST(TrainerFlagsTest, StoresOnADiskGetBudgetsOfTheirOwn) {
  TrainerFlags flags;
  TrainerOptions& options = flags.options;
  options.store = StoreKind::kSsd;
  options.store_path = test::TempDir() + "/not/there/yet";
  HOTROW_ASSERT_OK(ResolveTrainerFlags(&flags));
  // The cache is what speed comes from.
  EXPECT_GT(options.cache_bytes, 4 * options.store_bytes);
  EXPECT_LT(options.cache_bytes + options.store_bytes, UsableMemoryBytes());
  EXPECT_GT(options.store_bytes, 1 << 20);
  EXPECT_GT(options.disk_bytes, 1 << 20);
  EXPECT_LT(options.disk_bytes, UsableDiskBytes({options.store_path}));
  // Files that are there already count as room.
  const std::string dir = test::TempDir();
  const int64_t before = UsableDiskBytes({dir});
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir + "/deep"));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/deep/file", std::string(1 << 20, 'x')));
  EXPECT_GT(UsableDiskBytes({dir}) - *PosixEnv().FreeBytes(dir), (1 << 20) - 1);
  EXPECT_GT(before, 0);
  EXPECT_GT(UsableDiskBytes({"/"}), 0);
  // The room of one file system, however many directories lie there.
  EXPECT_LT(UsableDiskBytes({dir, test::TempDir()}), before + before / 2);
}

// Parses these flags into `flags` and resolves them.
absl::Status ParseAndResolve(std::vector<const char*> arguments, TrainerFlags* flags) {
  arguments.insert(arguments.begin(), "learner");
  FlagSet set = MakeTrainerFlagSet("learner", nullptr, flags);
  const absl::Status parsed = set.Parse(static_cast<int>(arguments.size()), arguments.data());
  return parsed.ok() ? ResolveTrainerFlags(flags) : parsed;
}

TEST(TrainerFlagsTest, UnknownWordsNameTheirFlagAndTheKnownWords) {
  const auto error = [](std::vector<const char*> arguments) {
    TrainerFlags flags;
    const absl::Status status = ParseAndResolve(std::move(arguments), &flags);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(error({"--optimizer=sdg"}),
              AllOf(HasSubstr("--optimizer=sdg"), HasSubstr("rowwise_adagrad")));
  EXPECT_THAT(error({"--weights_precision=fp8"}),
              AllOf(HasSubstr("--weights_precision=fp8"), HasSubstr("fp32, fp16, bf16")));
  EXPECT_THAT(error({"--dense_optimizer=ftrl"}),
              AllOf(HasSubstr("--dense_optimizer=ftrl"), HasSubstr("adam")));
  EXPECT_THAT(error({"--precision=fp8"}),
              AllOf(HasSubstr("--precision=fp8"), HasSubstr("fp32, tf32, bf16, fp16")));
  EXPECT_THAT(error({"--precision=int8"}),
              AllOf(HasSubstr("--precision=int8"), HasSubstr("is for scoring")));
  EXPECT_THAT(error({"--store=tape"}),
              AllOf(HasSubstr("--store=tape"), HasSubstr("memory"), HasSubstr("ssd")));
  EXPECT_THAT(error({"--store=ssd"}),
              AllOf(HasSubstr("--store=ssd"), HasSubstr("--store_path=DIR")));
  EXPECT_THAT(error({"--store=ssd", "--store_path=/a,"}),
              AllOf(HasSubstr("--store_path=/a,"), HasSubstr("empty path")));
  EXPECT_THAT(error({"--store_path=/rows"}),
              AllOf(HasSubstr("--store_path"), HasSubstr("--store=ssd")));
  EXPECT_THAT(error({"--resume"}), AllOf(HasSubstr("--resume"), HasSubstr("--checkpoint_dir=DIR")));
  EXPECT_THAT(error({"--exchange_feedback=4096"}), AllOf(HasSubstr("--exchange_feedback is 4096"),
                                                         HasSubstr("--exchange_backward is fp32")));
  EXPECT_THAT(error({"--cache_policy=fifo"}),
              AllOf(HasSubstr("--cache_policy=fifo"), HasSubstr("lru, lfu")));
  EXPECT_THAT(error({"--pooling=none"}), HasSubstr("--pooling=none: takes sum or mean"));
  EXPECT_THAT(error({"--initializer=uniform"}), HasSubstr("--initializer=uniform"));
  EXPECT_THAT(error({"--initializer=normal:x"}), HasSubstr("--initializer=normal:x"));
  EXPECT_THAT(error({"--device=tpu"}), HasSubstr("--device=tpu: takes cpu or cuda"));
  EXPECT_THAT(error({"--device=cuda"}),
              HasSubstr(test::UsableGpu().ok() ? "--device_cache_bytes=BYTES" : "--device=cpu"));
}

TEST(TrainerFlagsTest, ErrorsOfTheTablesNameFlags) {
  DataSchema schema;
  schema.features = {{.name = "item", .table = "items", .max_hotness = 1}};
  TrainerOptions options;
  options.batch_size = 8;
  options.embedding_dim = 4;
  options.store_bytes = 1 << 20;
  options.cache_bytes = 3;
  const auto error = [&] {
    return EmbeddingCollection::Create(CollectionOptions(options, schema), {}).status();
  };
  EXPECT_THAT(error().message(), AllOf(HasSubstr("--cache_bytes: the cache budget is 3 bytes"),
                                       HasSubstr("raise --cache_bytes")));
  options.max_table_gradient_norm = -1;
  EXPECT_THAT(error().message(),
              HasSubstr("--max_table_gradient_norm=-1: takes a number of at least 0"));
  options.max_table_gradient_norm = 0;
  options.ttl_steps = -1;
  EXPECT_THAT(error().message(), HasSubstr("table \"items\": --ttl_steps=-1: takes a whole"));
  EXPECT_EQ(FlagOfOption("evaluation_staging_bytes"), "evaluation_staging_bytes");
}

TEST(TrainerFlagsTest, InitializersBecomeWhatTheySay) {
  TrainerFlags flags;
  HOTROW_ASSERT_OK(ParseAndResolve({"--initializer=constant:0.50"}, &flags));
  ASSERT_TRUE(flags.options.initializer.has_value());
  EXPECT_EQ(flags.options.initializer->kind, InitializerKind::kConstant);
  EXPECT_EQ(flags.options.initializer->value, 0.5f);
  EXPECT_EQ(FindTrainerSetting("initializer")->Text(flags.options), "constant:0.5");
  HOTROW_ASSERT_OK(ParseAndResolve({"--initializer=uniform_rows"}, &flags));
  EXPECT_FALSE(flags.options.initializer.has_value());
}

TEST(TrainerFlagsTest, EveryFlagReachesItsOption) {
  TrainerFlags flags;
  const std::vector<const char*> argv = {"--lr_warmup_steps=1",
                                         "--lr_decay_start=2",
                                         "--lr_decay_steps=3",
                                         "--lr_plateau_factor=0.25",
                                         "--lr_plateau_patience=4",
                                         "--early_stop_patience=5",
                                         "--weight_decay=0.5",
                                         "--weights_precision=bf16",
                                         "--table_weight_decay=0.125",
                                         "--max_gradient_norm=6",
                                         "--save_dir=a",
                                         "--init_from=b",
                                         "--store=ssd",
                                         "--store_path=c",
                                         "--cache_bytes=min",
                                         "--disk_bytes=7MiB",
                                         "--exchange_backward=int8",
                                         "--exchange_feedback=10MiB",
                                         "--checkpoint_dir=d",
                                         "--checkpoint_every=8",
                                         "--keep_checkpoints=9",
                                         "--resume",
                                         "--mllog"};
  HOTROW_ASSERT_OK(ParseAndResolve(argv, &flags));
  const TrainerOptions& options = flags.options;
  EXPECT_EQ(options.schedule.lr_warmup_steps, 1);
  EXPECT_EQ(options.schedule.lr_decay_start, 2);
  EXPECT_EQ(options.schedule.lr_decay_steps, 3);
  EXPECT_EQ(options.schedule.lr_plateau_factor, 0.25);
  EXPECT_EQ(options.schedule.lr_plateau_patience, 4);
  EXPECT_EQ(options.schedule.early_stop_patience, 5);
  EXPECT_EQ(options.dense_optimizer.weight_decay, 0.5f);
  EXPECT_EQ(options.weights_precision, WeightsPrecision::kBf16);
  EXPECT_EQ(options.table_optimizer.weight_decay, 0.125f);
  EXPECT_EQ(options.max_gradient_norm, 6);
  EXPECT_EQ(options.save_dir, "a");
  EXPECT_EQ(options.init_from, "b");
  EXPECT_EQ(options.store, StoreKind::kSsd);
  EXPECT_EQ(options.store_path, "c");
  EXPECT_EQ(options.cache_bytes, kSmallestCache);
  EXPECT_EQ(options.disk_bytes, int64_t{7} << 20);
  EXPECT_EQ(options.exchange_backward, ExchangeType::kInt8);
  EXPECT_EQ(options.exchange_feedback_bytes, int64_t{10} << 20);
  EXPECT_EQ(options.checkpoint_dir, "d");
  EXPECT_EQ(options.checkpoint_every, 8);
  EXPECT_EQ(options.keep_checkpoints, 9);
  EXPECT_TRUE(options.resume);
  EXPECT_TRUE(options.mllog);
}

// What an argument of this flag may be that is not its default.
std::string AnotherValue(const TrainerSetting& row) {
  static const auto* const kWords =
      new std::map<std::string, std::string>{{"weights_precision", "bf16"},
                                             {"precision", "bf16"},
                                             {"loss_scale", "1024"},
                                             {"pooling", "mean"},
                                             {"initializer", "zeros"},
                                             {"admission", "lookups:3"},
                                             {"serve_rows", "int8"},
                                             {"optimizer", "adam"},
                                             {"dense_optimizer", "adam"},
                                             {"store", "ssd"},
                                             {"cache_policy", "lfu"},
                                             {"delta_rows", "fp16"},
                                             {"exchange_forward", "fp16"},
                                             {"exchange_backward", "int8"},
                                             {"device", "cuda"},
                                             {"window", "12h"},
                                             {"follow", "30m"},
                                             {"exchange_rounding", "stochastic"},
                                             {"table_optimizer.weight_decay_mode", "decoupled"}};
  const auto word = kWords->find(row.name);
  if (word != kWords->end()) return word->second;
  TrainerFlags flags;
  const FlagField field = row.bind(flags.options);
  if (field.is_switch) return FlagText(field.get()) == "true" ? "false" : "true";
  return field.hint == "X" ? "0.5" : "7";
}

// Each row of the table is a flag with its own field: another value for it changes this setting and
// no other, and reads back as it was written.
TEST(TrainerSettingsTest, EachRowIsOneFieldThatReadsBackAsItIsWritten) {
  std::set<std::string> names;
  for (const TrainerSetting& row : TrainerSettings()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second);
    const TrainerFlags before;
    TrainerFlags after;
    const std::string value = AnotherValue(row);
    HOTROW_ASSERT_OK(row.bind(after.options).set(value));
    EXPECT_EQ(row.Text(after.options), value);
    for (const TrainerSetting& other : TrainerSettings()) {
      EXPECT_EQ(other.Text(after.options) != other.Text(before.options), &other == &row)
          << other.name;
    }
    // What a checkpoint that does not say it stands for is a value of it.
    if (row.older.value != nullptr) {
      HOTROW_ASSERT_OK(row.bind(after.options).set(row.older.value));
      EXPECT_EQ(row.Text(after.options), row.older.value);
    }
    if (row.older.same_as != nullptr) {
      EXPECT_NE(FindTrainerSetting(row.older.same_as), nullptr);
    }
    EXPECT_EQ(row.is_flag(), row.help != nullptr);
  }
  EXPECT_EQ(FindTrainerSetting("no_such_setting"), nullptr);
}

TEST(TrainerSettingsTest, RolesDecideWhoMustHaveASettingAlike) {
  const Settings bits = BitSettings(TrainerFlags().options);
  for (const TrainerSetting& row : TrainerSettings()) {
    EXPECT_EQ(std::any_of(bits.begin(), bits.end(),
                          [&](const auto& setting) { return setting.first == row.name; }),
              row.role == SettingRole::kBits)
        << row.name;
  }
}

// A version that kept the words of --initializer as typed.
TEST(TrainerSettingsTest, SettingsAreComparedByWhatTheySay) {
  TrainerOptions options;
  options.initializer = Initializer{InitializerKind::kNormal, 0.1f};
  const Settings here = BitSettings(options);
  const auto compare = [&](const std::string& saved_as) {
    Settings saved = here;
    for (auto& [name, value] : saved) {
      if (name == "initializer") value = saved_as;
    }
    return CompareWithCheckpoint(saved, here, "--resume");
  };
  HOTROW_EXPECT_OK(compare("normal:0.1"));
  HOTROW_EXPECT_OK(compare("normal:1e-1"));
  EXPECT_THAT(compare("normal:0.2"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--initializer was normal:0.2 and is normal:0.1; use "
                                 "--initializer=normal:0.2")));
}

// Checkpoints from before dlrm had --interaction, and dcn --dcn_num_experts.
TEST(TrainerSettingsTest, AYoungerFlagOfAModelHasItsOlderValue) {
  const Settings saved = BitSettings(TrainerOptions());
  const auto compare = [&](const char* flag, const char* value) {
    Settings here = saved;
    here.emplace_back(flag, value);
    return CompareWithCheckpoint(saved, here, "--resume");
  };
  HOTROW_EXPECT_OK(compare("interaction", "dot"));
  EXPECT_THAT(compare("interaction", "cat"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--interaction was dot and is cat; use --interaction=dot")));
  HOTROW_EXPECT_OK(compare("dcn_num_experts", "1"));
  EXPECT_THAT(compare("dcn_num_experts", "2"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--dcn_num_experts was 1 and is 2; use --dcn_num_experts=1")));
}

TEST(TrainerSettingsTest, ARunThatGoesOnHasTheDataOfThen) {
  Settings saved = BitSettings(TrainerOptions());
  Settings here = saved;
  here.emplace_back(kDataContent, "b");
  HOTROW_EXPECT_OK(CompareWithCheckpoint(saved, here, "--resume"));  // of before it was kept
  saved.emplace_back(kDataContent, "a");
  EXPECT_THAT(
      CompareWithCheckpoint(saved, here, "--resume"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("what --data names held a and holds b; use the data of then, or")));
}

TEST(TrainerSettingsTest, LowerBoundsAreThoseOfTheFlags) {
  TrainerFlags flags;
  flags.options.store_bytes = 1;
  HOTROW_EXPECT_OK(CheckLowerBounds(flags.options));
  flags.options.cache_bytes = kSmallestCache;
  HOTROW_EXPECT_OK(CheckLowerBounds(flags.options));
  flags.options.cache_bytes = -2;
  EXPECT_THAT(CheckLowerBounds(flags.options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--cache_bytes must be at least 0, is -2")));
  flags.options.cache_bytes = 0;
  flags.options.keep_checkpoints = 0;
  EXPECT_THAT(CheckLowerBounds(flags.options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--keep_checkpoints must be at least 1, is 0")));
}

TEST(TrainerFlagsTest, ModelShapeIsWhatASavedModelMustAgreeIn) {
  TrainerFlags flags;
  int64_t width = 3;
  double dropout = 0;
  const auto add_model_flags = [&](FlagSet* set) {
    set->AddInt("width", 1, 9, &width, "of the model");
    set->AddReal("dropout", 0, 1, &dropout, "of the model");
  };
  const FlagSet set = MakeTrainerFlagSet("learner", add_model_flags, &flags);
  EXPECT_EQ(ModelShape(set),
            (std::vector<std::pair<std::string, std::string>>{{"width", "3"}, {"pooling", "sum"}}));
  // A run depends on all of them, and on its data.
  const auto settings = RunSettings(set);
  for (const char* const flag : {"data", "seed", "width", "dropout", "initializer", "pooling"}) {
    EXPECT_TRUE(std::any_of(settings.begin(), settings.end(), [flag](const auto& setting) {
      return setting.first == flag;
    })) << flag;
  }
}

}  // namespace
}  // namespace hotrow
