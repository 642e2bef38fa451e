// Tables that several ranks share, whose row caches lie on devices: on GPUs where there are enough,
// and everywhere as the same tiers in host memory, at once and late. What ranks on the host make of
// the same steps is what is expected, to the bit.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/rank_training.h"
#include "tests/embedding/trainer.h"
#include "tests/support/gpu_test.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_HAVE_CUDA
#include "tests/comm/device_ranks.h"
#endif

namespace hotrow::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct TablesKind {
  Device device = Device::kCpu;
  bool late = false;  // the tables' streams lag
  int world_size = 1;
};

std::string NameOfTablesKind(const testing::TestParamInfo<TablesKind>& info) {
  const TablesKind& kind = info.param;
  return absl::StrCat(kind.device == Device::kCuda ? "Gpu" : (kind.late ? "HostLate" : "Host"),
                      kind.world_size);
}

class DeviceRanksTest : public testing::TestWithParam<TablesKind> {
 protected:
  void SetUp() override {
    if (GetParam().device == Device::kCpu) return;
#if HOTROW_HAVE_CUDA
    const std::string why = WhyNotOnDevices(GetParam().world_size);
    if (!why.empty()) GTEST_SKIP() << why;
    // Ten seconds each.
    if (kEmulatedGpu && ranks() > 2 && !RunsSlowTests()) {
      GTEST_SKIP() << "HOTROW_SLOW_TESTS is not set";
    }
#else
    GTEST_SKIP() << "this build has no CUDA";
#endif
  }

  static bool on_gpu() { return GetParam().device == Device::kCuda; }
  static int ranks() { return GetParam().world_size; }

  static RankPlace Place() {
    RankPlace place = {.device = GetParam().device};
#if HOTROW_HAVE_CUDA
    if (on_gpu()) place.start = RunOnDevices;
#endif
    return place;
  }

  // A device cache of `factor` times what a step of one rank needs at most.
  static EmbeddingCollectionOptions WithDeviceCache(EmbeddingCollectionOptions options,
                                                    double factor) {
    options.cache.device_bytes = 1;
    const absl::StatusOr<int64_t> least =
        EmbeddingCollection::MinCacheBytes(options, GetParam().device);
    HOTROW_EXPECT_OK(least);
    options.cache.device_bytes = static_cast<int64_t>(static_cast<double>(*least) * factor);
    return options;
  }

  // A cache that is too small for all rows of a rank, but not for those of a step of batch_size
  // samples of all ranks, which are half of what there may be.
  static EmbeddingCollectionOptions WithSmallDeviceCache(EmbeddingCollectionOptions options,
                                                         int64_t batch_size) {
    EmbeddingCollectionOptions of_rank = options;
    of_rank.max_batch_size = batch_size / ranks();
    options.cache.device_bytes = WithDeviceCache(of_rank, 1).cache.device_bytes;
    for (TableConfig& table : options.tables) table.max_hotness = 0;
    return options;
  }

  // On the devices. What lags does so only here.
  static Outcome Train(const OptionsOfRank& options_of, const RankRun& run) {
    const Lag lag;
    return TrainOnRanksAt(Place(), ranks(), options_of, run);
  }
  static std::vector<absl::Status> Run(const OptionsOfRank& options_of, const DeviceRankBody& body,
                                       double timeout_seconds = 60) {
    const Lag lag;
    return OnRanksAt(Place(), ranks(), 1, options_of, body, timeout_seconds);
  }

  // The late streams of the kind that has them.
  class Lag {
   public:
    Lag() {
      if (GetParam().late) lagging_.emplace(std::chrono::microseconds(200));
    }

   private:
    std::optional<test::LaggingStreams> lagging_;
  };
};

INSTANTIATE_TEST_SUITE_P(
    Ranks, DeviceRanksTest,
    testing::Values(TablesKind{Device::kCpu, false, 1}, TablesKind{Device::kCpu, false, 2},
                    TablesKind{Device::kCpu, false, 4}, TablesKind{Device::kCpu, false, 8},
                    TablesKind{Device::kCpu, true, 2}, TablesKind{Device::kCpu, true, 4},
                    TablesKind{Device::kCuda, false, 1}, TablesKind{Device::kCuda, false, 2},
                    TablesKind{Device::kCuda, false, 4}, TablesKind{Device::kCuda, false, 8}),
    NameOfTablesKind);

// A store, a depth and an exchange each, so that every one of them meets some of the others.
TEST_P(DeviceRanksTest, TheBitsAreThoseOfRanksOnTheHost) {
  struct Case {
    StoreKind store;
    int64_t host_cache_bytes;
    bool small;  // device cache
    int32_t depth;
    bool halves;
    ExchangeType forward;
    ExchangeType backward;
    ExchangeRounding rounding;
  };
  const Case cases[] = {
      {StoreKind::kMemory, 0, true, 0, false, ExchangeType::kFp32, ExchangeType::kFp32,
       ExchangeRounding::kNearest},
      {StoreKind::kSsd, 0, true, 2, true, ExchangeType::kFp16, ExchangeType::kInt8,
       ExchangeRounding::kStochastic},
      {StoreKind::kSsd, kMiB, true, 0, false, ExchangeType::kInt8, ExchangeType::kBf16,
       ExchangeRounding::kNearest},
      {StoreKind::kMemory, 0, false, 3, true, ExchangeType::kFp32, ExchangeType::kFp16,
       ExchangeRounding::kStochastic},
  };
  RankRun run;
  run.steps = on_gpu() ? ForGpu(6, 4) : 6;
  run.rows = 4000;
  run.read_rows = on_gpu() ? ForGpu(400, 80) : 400;
  for (const Case& c : cases) {
    if (kEmulatedGpu && on_gpu() && c.forward == ExchangeType::kInt8) continue;
    SCOPED_TRACE(testing::Message()
                 << StoreKindName(c.store) << " host cache " << c.host_cache_bytes << " small "
                 << c.small << " depth " << c.depth << " halves " << c.halves << " "
                 << ExchangeTypeName(c.forward) << " " << ExchangeTypeName(c.backward));
    const auto on_host = [&](int) {
      EmbeddingCollectionOptions out = TwoWidths(SparseOptimizerKind::kRowWiseAdagrad);
      if (c.halves) out = InHalves(out);
      out.ranks.forward = c.forward;
      out.ranks.backward = c.backward;
      out.ranks.rounding = c.rounding;
      return out;
    };
    const Outcome want = TrainOnRanks(ranks(), on_host, run);
    const std::string dir = TempDir();
    const auto on_device = [&](int rank) {
      EmbeddingCollectionOptions out = on_host(rank);
      PutStore(c.store, absl::StrCat(dir, "/", rank), &out);
      out.cache.bytes = c.host_cache_bytes;
      out = c.small ? WithSmallDeviceCache(out, run.batch_size) : WithDeviceCache(out, 4);
      if (c.store == StoreKind::kMemory && c.small) out.cache.device_index_bytes = kMiB;
      out.prefetch_depth = c.depth;
      out.evaluation_staging_bytes = 64 << 10;
      return out;
    };
    RankRun same = run;
    same.threads = c.depth == 0 ? 1 : 2;
    same.begin_early = c.depth != 2;
    same.evaluate_every = 3;
    const Outcome got = Train(on_device, same);
    EXPECT_EQ(got.digest.hash, want.digest.hash);
    EXPECT_EQ(got.values, want.values);
    EXPECT_EQ(got.stats.steps, want.stats.steps);
    EXPECT_EQ(got.stats.unique_keys, want.stats.unique_keys);
    EXPECT_EQ(got.stats.initialised_rows, want.stats.initialised_rows);
    EXPECT_EQ(got.stats.exchange_forward_bytes, want.stats.exchange_forward_bytes);
    EXPECT_EQ(got.stats.exchange_backward_bytes, want.stats.exchange_backward_bytes);
    EXPECT_GT(got.stats.transfer_device_bytes, 0);
    if (ranks() > 1) {
      EXPECT_GT(got.stats.exchange_ids_bytes, 0);
    }
    if (c.small) {
      EXPECT_GT(got.stats.tiers[0].evictions, 0);
    }
  }
}

// Some of them begun, and dropped in another order on each rank.
TEST_P(DeviceRanksTest, CancelledStepsLeaveTheRanksInStep) {
  RankRun run;
  run.steps = 3;
  const auto plain = [](int) { return TwoWidths(); };
  const Outcome want = TrainOnRanks(ranks(), plain, run);
  Hash128 hash;
  ExpectAllOk(Run(
      [&](int rank) {
        EmbeddingCollectionOptions out = WithDeviceCache(plain(rank), 3);
        out.prefetch_depth = 3;
        return out;
      },
      [&](EmbeddingCollection& tables, int rank, const DeviceStream& stream) -> absl::Status {
        for (const bool updates : {false, true}) {
          std::vector<EmbeddingStep> dropped;
          for (int i = 0; i < 4; ++i) {
            const Batch batch = RandomBatch(static_cast<uint64_t>(i * 3 + rank) + 7000, 4, 8, 3,
                                            400, /*weighted=*/false);
            HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
            dropped.push_back(std::move(step));
          }
          RankFloats floats(stream);
          if (updates) {
            HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput output,
                                    floats.Output(tables, dropped[0].batch_size()));
            HOTROW_RETURN_IF_ERROR(dropped[0].Lookup(output));
            HOTROW_RETURN_IF_ERROR(dropped[0].BeginUpdate({.pooled = output.pooled}));
          } else {
            HOTROW_RETURN_IF_ERROR(dropped[0].BeginLookup());
          }
          if (rank == 1) std::reverse(dropped.begin(), dropped.end());
          for (EmbeddingStep& step : dropped) step = EmbeddingStep();
        }
        HOTROW_RETURN_IF_ERROR(TrainSteps(tables, 3, rank, ranks(), run, stream));
        HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
        if (rank == 0) hash = digest.hash;
        return absl::OkStatus();
      }));
  EXPECT_EQ(hash, want.digest.hash);
}

// What each rank serves, in the order in which the others asked.
TEST_P(DeviceRanksTest, KeysAreToldAndCountedAsOnTheHost) {
  struct Told {
    uint32_t table;
    std::vector<RowKey> keys;
    std::vector<int32_t> counts;
    bool operator==(const Told&) const = default;
  };
  const auto telling = [&](std::vector<std::vector<Told>>* told, bool on_device) {
    told->resize(static_cast<size_t>(ranks()));
    return [told, on_device](int rank) {
      EmbeddingCollectionOptions out = TwoWidths();
      if (on_device) {
        out = WithDeviceCache(out, 8);
      } else {
        out.cache.bytes = 8 * kMiB;
      }
      out.prefetch_depth = 1;
      out.on_update = [own = &(*told)[static_cast<size_t>(rank)]](uint32_t table,
                                                                  std::span<const RowKey> keys,
                                                                  std::span<const int32_t> counts) {
        own->push_back({table, {keys.begin(), keys.end()}, {counts.begin(), counts.end()}});
      };
      return out;
    };
  };
  RankRun run;
  run.steps = 4;
  std::vector<std::vector<Told>> want_told;
  std::vector<std::vector<Told>> told;
  const Outcome want = TrainOnRanks(ranks(), telling(&want_told, false), run);
  const Outcome got = Train(telling(&told, true), run);
  EXPECT_EQ(got.digest.hash, want.digest.hash);
  EXPECT_TRUE(told == want_told);
  ASSERT_FALSE(told[0].empty());
  EXPECT_EQ(got.stats.tiers[0].unique_keys, want.stats.tiers[0].unique_keys);
  EXPECT_EQ(got.stats.tiers[0].lookups, want.stats.tiers[0].lookups);
}

TEST_P(DeviceRanksTest, RowsAreReadWrittenAndErasedByKey) {
  struct Seen {
    std::vector<float> rows;
    std::vector<uint8_t> found;
    Hash128 hash;
  };
  RankRun run;
  run.steps = 2;
  run.rows = 100;
  const auto body = [&](std::vector<Seen>* seen) {
    seen->resize(static_cast<size_t>(ranks()));
    return [run, seen](EmbeddingCollection& tables, int rank,
                       const DeviceStream& stream) -> absl::Status {
      HOTROW_RETURN_IF_ERROR(TrainSteps(tables, 0, rank, ranks(), run, stream));
      std::vector<uint64_t> keys;
      for (uint64_t i = 0; i < 20 + static_cast<uint64_t>(rank) * 9; ++i) keys.push_back(i * 7);
      // Its own keys, which any rank may keep.
      std::vector<uint64_t> written;
      for (uint64_t i = 0; i < 10; ++i) {
        written.push_back(50 + i * static_cast<uint64_t>(ranks()) + static_cast<uint64_t>(rank));
      }
      std::vector<float> weights(written.size() * 24);
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<float>(i) * 0.25f + static_cast<float>(rank);
      }
      HOTROW_RETURN_IF_ERROR(
          tables.WriteRows("wide", written, {weights.data(), std::ssize(written), 24}));
      HOTROW_RETURN_IF_ERROR(tables.Erase("wide", std::span(keys).first(5)));
      HOTROW_RETURN_IF_ERROR(
          tables.EraseIf("narrow", [](const StoredRow& row) { return row.key % 3 == 0; }).status());
      Seen& own = (*seen)[static_cast<size_t>(rank)];
      own.rows.resize(keys.size() * 24);
      own.found.resize(keys.size());
      const auto found = std::make_unique<bool[]>(keys.size());
      HOTROW_RETURN_IF_ERROR(tables.ReadRows("wide", keys, {own.rows.data(), std::ssize(keys), 24},
                                             {found.get(), keys.size()}));
      for (size_t i = 0; i < keys.size(); ++i) own.found[i] = found[i] ? 1 : 0;
      RankRun more = run;
      more.first_step = 2;
      HOTROW_RETURN_IF_ERROR(TrainSteps(tables, 0, rank, ranks(), more, stream));
      HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
      own.hash = digest.hash;
      return absl::OkStatus();
    };
  };
  std::vector<Seen> want;
  std::vector<Seen> got;
  const auto plain = [](int) {
    EmbeddingCollectionOptions out = InHalves(TwoWidths());
    out.evaluation_staging_bytes = 16 << 10;
    return out;
  };
  ExpectAllOk(OnRanksAt({}, ranks(), 1, plain, body(&want)));
  ExpectAllOk(Run([&](int rank) { return WithDeviceCache(plain(rank), 1); }, body(&got)));
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(got[r].rows, want[r].rows) << rank;
    EXPECT_EQ(got[r].found, want[r].found) << rank;
    EXPECT_EQ(got[r].hash, want[r].hash) << rank;
  }
}

// From devices to devices and to the host, on as many ranks and on another number.
TEST_P(DeviceRanksTest, SnapshotsOpenOnDevicesAndOnTheHost) {
  if (kEmulatedGpu && on_gpu() && ranks() > 2) GTEST_SKIP() << "too large for the emulated GPU";
  const std::string dir = TempDir();
  const auto plain = [&](const char* where) {
    return [&dir, where](int rank) {
      EmbeddingCollectionOptions out = TwoWidths(SparseOptimizerKind::kAdam);
      PutStore(StoreKind::kSsd, absl::StrCat(dir, "/", where, "/", rank), &out);
      return out;
    };
  };
  const auto on_device = [&](const char* where) {
    return [&, options_of = plain(where)](int rank) {
      EmbeddingCollectionOptions out = WithDeviceCache(options_of(rank), 2);
      out.prefetch_depth = 1;
      return out;
    };
  };
  const auto on_host = [&](const char* where) {
    return [options_of = plain(where)](int rank) {
      EmbeddingCollectionOptions out = options_of(rank);
      out.cache.bytes = 4 * kMiB;
      return out;
    };
  };
  RankRun first;
  first.steps = 3;
  RankRun rest = first;
  rest.first_step = 3;
  RankRun whole = first;
  whole.steps = 6;
  const Outcome want = TrainOnRanks(ranks(), on_host("reference"), whole);
  Hash128 written;
  ExpectAllOk(
      Run(on_device("saved"),
          [&](EmbeddingCollection& tables, int rank, const DeviceStream& stream) -> absl::Status {
            HOTROW_RETURN_IF_ERROR(TrainSteps(tables, 1, rank, ranks(), first, stream));
            HOTROW_RETURN_IF_ERROR(tables.snapshots().Begin(7));
            HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables.Digest());
            if (rank == 0) written = digest.hash;
            HOTROW_RETURN_IF_ERROR(tables.snapshots().Wait());
            HOTROW_RETURN_IF_ERROR(tables.snapshots().Commit(7));
            // Not part of it.
            HOTROW_RETURN_IF_ERROR(TrainSteps(tables, 1, rank, ranks(), rest, stream));
            return tables.Close();
          }));
  const auto from_saved = [&](const OptionsOfRank& options_of) {
    return [&, options_of](int rank) {
      EmbeddingCollectionOptions out = options_of(rank);
      for (int part = 0; part < ranks(); ++part) {
        out.start.from.push_back({.snapshot = 7, .dir = absl::StrCat(dir, "/saved/", part)});
      }
      out.start.steps = 3;
      return out;
    };
  };
  EXPECT_EQ(Train(from_saved(on_device("again")), rest).digest.hash, want.digest.hash);
  EXPECT_EQ(TrainOnRanks(ranks(), from_saved(on_host("host")), rest).digest.hash, want.digest.hash);
  RankRun none;
  none.steps = 0;
  EXPECT_EQ(TrainOnRanks(3, from_saved(on_host("three")), none).digest.hash, written);
}

// --- Errors

TEST_P(DeviceRanksTest, ARankThatDiesBetweenStepsIsNamed) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  double timeout_seconds = 0.5;
  if (kEmulatedGpu && on_gpu()) {
    // On a busy machine eight of them compute for longer than that.
    timeout_seconds = 2 * ranks();
  }
  const int silent = ranks() - 1;
  for (const int32_t depth : {0, 2}) {
    SCOPED_TRACE(depth);
    std::atomic<int> left = ranks() - 1;
    const auto statuses = Run(
        [&](int) {
          EmbeddingCollectionOptions out = WithDeviceCache(TwoWidths(), 3);
          out.prefetch_depth = depth;
          return out;
        },
        [&](EmbeddingCollection& tables, int rank, const DeviceStream& stream) -> absl::Status {
          RankRun run;
          run.steps = 2;
          HOTROW_RETURN_IF_ERROR(TrainSteps(tables, depth, rank, ranks(), run, stream));
          if (rank == silent) {
            // It says nothing, and is not gone either, until the others have ended.
            for (int i = 0; i < 12000 && left > 0; ++i) {
              std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
            return absl::OkStatus();
          }
          run.first_step = 2;
          const absl::Status status = TrainSteps(tables, depth, rank, ranks(), run, stream);
          --left;
          return status;
        },
        timeout_seconds);
    for (int rank = 0; rank < silent; ++rank) {
      EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr(absl::StrCat("no answer from rank ", silent))))
          << rank;
    }
  }
}

TEST_P(DeviceRanksTest, ARankWithoutRoomEndsTheJobAndIsNamed) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  if (kEmulatedGpu && on_gpu() && ranks() > 2) GTEST_SKIP() << "too large for the emulated GPU";
  const auto statuses = Run(
      [&](int rank) {
        EmbeddingCollectionOptions out = TwoWidths();
        for (TableConfig& table : out.tables) table.max_hotness = 0;
        // The cache of one rank is for a few rows.
        out = WithDeviceCache(out, 1);
        if (rank != 1) out.cache.device_bytes = 8 * kMiB;
        return out;
      },
      [](EmbeddingCollection& tables, int rank, const DeviceStream& stream) {
        RankRun run;
        run.batch_size = 64 * ranks();
        run.rows = 4000;
        return TrainSteps(tables, 0, rank, ranks(), run, stream);
      });
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("device cache budget"), HasSubstr("those of other ranks"))));
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == 1) continue;
    EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("rank 1 ended the job"),
                                                               HasSubstr("device cache budget"))));
  }
}

TEST_P(DeviceRanksTest, NoEvaluationWhileRowsTravel) {
  if (ranks() != 2) GTEST_SKIP() << "two ranks are enough";
  // Both are behind the call before: what one is refused then ends the job.
  std::barrier<> both(2);
  ExpectAllOk(
      Run([](int) { return WithDeviceCache(TwoWidths(), 2); },
          [&both](EmbeddingCollection& tables, int, const DeviceStream& stream) -> absl::Status {
            const Batch batch = RandomBatch(1, 4, 8, 3, 50, false);
            RankFloats floats(stream);
            HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables.Prefetch(batch.view()));
            HOTROW_ASSIGN_OR_RETURN(const EmbeddingOutput output, floats.Output(tables, 8));
            const absl::Status begun = step.BeginLookup();
            both.arrive_and_wait();
            HOTROW_RETURN_IF_ERROR(begun);
            EXPECT_THAT(tables.Evaluate(batch.view(), output),
                        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("BeginLookup")));
            return absl::OkStatus();  // an error of several ranks is final
          }));
}

TEST_P(DeviceRanksTest, ResidualsAreRefused) {
  if (ranks() != 2) GTEST_SKIP() << "two ranks are enough";
  const auto statuses = Run(
      [](int) {
        EmbeddingCollectionOptions out = WithDeviceCache(TwoWidths(), 2);
        out.ranks.backward = ExchangeType::kInt8;
        out.ranks.feedback_bytes = kMiB;
        return out;
      },
      [](EmbeddingCollection&, int, const DeviceStream&) { return absl::OkStatus(); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("ranks.feedback_bytes"), HasSubstr("set it to 0"))));
  }
}

}  // namespace
}  // namespace hotrow::test
