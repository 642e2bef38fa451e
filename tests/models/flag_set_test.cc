#include "base/flag_set.h"

#include <algorithm>
#include <sstream>

#include "base/env.h"
#include "gtest/gtest.h"
#include "models/programs/trainer_flags.h"
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
  for (const std::string name :
       {"store_bytes", "cache_bytes", "device_cache_bytes", "exchange_feedback"}) {
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
    const bool is_switch = name == "mllog" || name == "resume" || name == "mrc";
    EXPECT_THAT(help, HasSubstr("\n  --" + name + (is_switch ? " " : "=")));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(TrainerFlagsTest, ResolvesWhatIsLeftOpen) {
  TrainerFlags flags;
  flags.embedding_dim = 24;
  flags.learning_rate = 0.125;
  flags.dense_learning_rate = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainerOptions options, ResolveTrainerFlags(&flags));
  EXPECT_EQ(options.embedding_dim, 24);
  EXPECT_EQ(options.dense_optimizer.learning_rate, 0.125f);
  EXPECT_GE(flags.threads, 1);
  EXPECT_GT(options.store_bytes, 1 << 20);
  EXPECT_LT(options.store_bytes, UsableMemoryBytes());
  EXPECT_FALSE(options.initializer.has_value());
  // Of one share of the memory.
  TrainerFlags feedback;
  feedback.exchange_backward = "int8";
  feedback.exchange_feedback = 1 << 20;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainerOptions less, ResolveTrainerFlags(&feedback));
  EXPECT_EQ(less.store_bytes, options.store_bytes - (1 << 20));
}

TEST(TrainerFlagsTest, StoresOnADiskGetBudgetsOfTheirOwn) {
  TrainerFlags flags;
  flags.store = "ssd";
  flags.store_path = test::TempDir() + "/not/there/yet";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainerOptions options, ResolveTrainerFlags(&flags));
  EXPECT_EQ(options.store, StoreKind::kSsd);
  EXPECT_EQ(options.store_path, flags.store_path);
  // The cache is what speed comes from.
  EXPECT_GT(options.cache_bytes, 4 * options.store_bytes);
  EXPECT_LT(options.cache_bytes + options.store_bytes, UsableMemoryBytes());
  EXPECT_GT(options.store_bytes, 1 << 20);
  EXPECT_GT(options.disk_bytes, 1 << 20);
  EXPECT_LT(options.disk_bytes, UsableDiskBytes(flags.store_path));
  // Files that are there already count as room.
  const std::string dir = test::TempDir();
  const int64_t before = UsableDiskBytes(dir);
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir + "/deep"));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/deep/file", std::string(1 << 20, 'x')));
  EXPECT_GT(UsableDiskBytes(dir) - *PosixEnv().FreeBytes(dir), (1 << 20) - 1);
  EXPECT_GT(before, 0);
  EXPECT_GT(UsableDiskBytes("/"), 0);
}

TEST(TrainerFlagsTest, UnknownWordsNameTheirFlagAndTheKnownWords) {
  const auto error = [](auto change) {
    TrainerFlags flags;
    change(&flags);
    const absl::Status status = ResolveTrainerFlags(&flags).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(error([](TrainerFlags* f) { f->optimizer = "sdg"; }),
              AllOf(HasSubstr("--optimizer=sdg"), HasSubstr("rowwise_adagrad")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->weights_precision = "fp8"; }),
              AllOf(HasSubstr("--weights_precision=fp8"), HasSubstr("fp32, fp16 or bf16")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->dense_optimizer = "ftrl"; }),
              AllOf(HasSubstr("--dense_optimizer=ftrl"), HasSubstr("adam")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->store = "tape"; }),
              AllOf(HasSubstr("--store=tape"), HasSubstr("memory"), HasSubstr("ssd")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->store = "ssd"; }),
              AllOf(HasSubstr("--store=ssd"), HasSubstr("--store_path=DIR")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->store_path = "/rows"; }),
              AllOf(HasSubstr("--store_path"), HasSubstr("--store=ssd")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->resume = true; }),
              AllOf(HasSubstr("--resume"), HasSubstr("--checkpoint_dir=DIR")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->exchange_feedback = 4096; }),
              AllOf(HasSubstr("--exchange_feedback=4096"), HasSubstr("--exchange_backward=fp32")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->cache_policy = "fifo"; }),
              AllOf(HasSubstr("--cache_policy=fifo"), HasSubstr("lru or lfu")));
  EXPECT_THAT(error([](TrainerFlags* f) { f->pooling = "none"; }), HasSubstr("--pooling=none"));
  EXPECT_THAT(error([](TrainerFlags* f) { f->initializer = "uniform"; }),
              HasSubstr("--initializer=uniform"));
  EXPECT_THAT(error([](TrainerFlags* f) { f->initializer = "normal:x"; }),
              HasSubstr("--initializer=normal:x"));
  EXPECT_THAT(error([](TrainerFlags* f) { f->device = "tpu"; }), HasSubstr("--device=tpu"));
  EXPECT_THAT(error([](TrainerFlags* f) { f->device = "cuda"; }),
              HasSubstr(test::UsableGpu().ok() ? "--device_cache_bytes=BYTES" : "--device=cpu"));
}

TEST(TrainerFlagsTest, InitializersBecomeWhatTheySay) {
  TrainerFlags flags;
  flags.initializer = "constant:0.5";
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainerOptions options, ResolveTrainerFlags(&flags));
  ASSERT_TRUE(options.initializer.has_value());
  EXPECT_EQ(options.initializer->kind, InitializerKind::kConstant);
  EXPECT_EQ(options.initializer->value, 0.5f);
}

TEST(TrainerFlagsTest, EveryFlagReachesItsOption) {
  TrainerFlags flags;
  FlagSet set = MakeTrainerFlagSet("learner", nullptr, &flags);
  const std::vector<const char*> argv = {"learner",
                                         "--lr_warmup_steps=1",
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
  HOTROW_ASSERT_OK(set.Parse(static_cast<int>(argv.size()), argv.data()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainerOptions options, ResolveTrainerFlags(&flags));
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
