#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/row_key.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_pacer_impl.h"
#include "store/ssd/ssd_room_impl.h"
#include "store/ssd/ssd_tables_impl.h"
#include "store/ssd/ssd_victims_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

// Parts of an SsdStore that need no disk.
namespace hotrow {
namespace {

using internal::ChooseSsdVictims;
using internal::SsdCleanOrder;
using internal::SsdLog;
using internal::SsdPacer;
using internal::SsdSegment;
using internal::SsdTables;
using internal::SsdVictimOptions;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kCapacity = 1000;

// --- Victims -------------------------------------------------------------------------------------

SsdLog::SegmentView Sealed(uint32_t slot, uint64_t base, uint64_t newest, int64_t live_bytes,
                           int64_t tombstone_bytes = 0) {
  return {.slot = slot,
          .epoch = slot + 1,
          .base_sequence = base,
          .newest_sequence = newest,
          .end_offset = kCapacity,
          .live_bytes = live_bytes,
          .tombstone_bytes = tombstone_bytes,
          .state = SsdSegment::State::kSealed,
          .snapshots = 0,
          .written = true,
          .damaged = false};
}

std::vector<uint32_t> Choose(const std::vector<SsdLog::SegmentView>& segments,
                             SsdVictimOptions options) {
  options.next_sequence = 1000;
  options.segment_capacity = kCapacity;
  std::vector<uint32_t> slots;
  for (const SsdLog::SegmentView& s : ChooseSsdVictims(segments, options)) slots.push_back(s.slot);
  return slots;
}

TEST(SsdVictimsTest, CostBenefitPrefersOldGarbageAndTheEmptiestOrderDoesNot) {
  // Too full together, so that one alone is chosen.
  const std::vector<SsdLog::SegmentView> segments = {
      Sealed(0, 100, 199, 700), Sealed(1, 800, 899, 600), Sealed(2, 900, 999, 950)};
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kCostBenefit}), ElementsAre(0));
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest}), ElementsAre(1));
}

TEST(SsdVictimsTest, TakesWhatFitsIntoTheRoomTheOlderFirst) {
  const std::vector<SsdLog::SegmentView> segments = {
      Sealed(0, 300, 399, 400), Sealed(1, 200, 299, 300), Sealed(2, 100, 199, 500)};
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest}), ElementsAre(1, 0));
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest, .room = 1.25}),
              ElementsAre(2, 1, 0));
  // The first one counts for nothing, so that a round always has something to do.
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest, .room = 0}), ElementsAre(1));
}

TEST(SsdVictimsTest, LeavesAloneWhatCannotBeCleaned) {
  std::vector<SsdLog::SegmentView> segments(6, Sealed(0, 100, 199, 10));
  for (uint32_t slot = 0; slot < segments.size(); ++slot) segments[slot].slot = slot;
  segments[0].state = SsdSegment::State::kOpen;
  segments[1].written = false;
  segments[2].damaged = true;
  segments[3].live_bytes = kCapacity * 98 / 100;
  segments[4].snapshots = 1;
  segments[5].state = SsdSegment::State::kRetained;
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest}), IsEmpty());
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kPinned}), ElementsAre(4));
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kAny}), ElementsAre(4));
  segments[4].live_bytes = kCapacity * 6 / 10;  // more than half: its rows stay
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kPinned}), IsEmpty());
}

TEST(SsdVictimsTest, TombstonesCountAsLongAsSomethingOlderStays) {
  // The oldest one's tombstones speak of nothing; the other's may.
  const std::vector<SsdLog::SegmentView> segments = {Sealed(0, 100, 199, 0, 990),
                                                     Sealed(1, 200, 299, 0, 990)};
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest}), ElementsAre(0));
}

TEST(SsdVictimsTest, ACycleTakesTheOldestAloneHoweverFull) {
  const std::vector<SsdLog::SegmentView> segments = {Sealed(0, 200, 299, 0),
                                                     Sealed(1, 100, 199, kCapacity)};
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kOldest, .cycle_until = 1000}),
              ElementsAre(1));
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kOldest, .cycle_until = 100}), IsEmpty());
}

TEST(SsdVictimsTest, TakesAtMostEight) {
  std::vector<SsdLog::SegmentView> segments;
  for (uint32_t slot = 0; slot < 20; ++slot) segments.push_back(Sealed(slot, slot, slot, 0));
  EXPECT_THAT(Choose(segments, {.order = SsdCleanOrder::kEmptiest}), SizeIs(8));
}

// --- Pacer ---------------------------------------------------------------------------------------

// A writer that is in Wait, or has left it.
class Waiting {
 public:
  explicit Waiting(SsdPacer& pacer)
      : pacer_(pacer), stalls_(pacer.stalls()), thread_([this] {
          pacer_.Wait();
          done_ = true;
        }) {}
  ~Waiting() { thread_.join(); }
  void AwaitStall() const {
    while (pacer_.stalls() == stalls_) std::this_thread::yield();
  }
  bool done() const { return done_; }

 private:
  SsdPacer& pacer_;
  const int64_t stalls_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

TEST(SsdPacerTest, WritersWaitInARoundThatIsShortOfRoomUntilTheyArePaidFor) {
  SsdPacer pacer(/*segment_bytes=*/kCapacity);
  pacer.Wait();  // between rounds nobody waits
  pacer.BeginRound(/*short_of_room=*/false);
  pacer.Wait();
  pacer.EndRound();
  EXPECT_EQ(pacer.stalls(), 0);

  pacer.BeginRound(/*short_of_room=*/true);
  {
    const Waiting writer(pacer);
    writer.AwaitStall();
    EXPECT_FALSE(writer.done());
    pacer.Grant(100, /*segments_available=*/internal::kSsdLowWater);
  }
  pacer.Wait();
  pacer.Charge(100);
  {
    const Waiting writer(pacer);
    writer.AwaitStall();
    EXPECT_FALSE(writer.done());
    pacer.EndRound();
    pacer.Wake();
  }
  EXPECT_EQ(pacer.stalls(), 2);
}

TEST(SsdPacerTest, GrantsLessTheFewerSegmentsAreLeftAndNeverMoreThanASegment) {
  SsdPacer pacer(/*segment_bytes=*/kCapacity);
  pacer.BeginRound(/*short_of_room=*/true);
  pacer.Grant(400, /*segments_available=*/1);
  pacer.Charge(99);
  pacer.Wait();
  pacer.Charge(1);
  {
    const Waiting writer(pacer);
    writer.AwaitStall();
    pacer.Grant(100 * kCapacity, /*segments_available=*/100);
  }
  pacer.Charge(kCapacity - 1);
  pacer.Wait();
  pacer.Charge(1);
  const Waiting writer(pacer);
  writer.AwaitStall();
  pacer.EndRound();
}

TEST(SsdPacerTest, NoWriterPassesAHold) {
  SsdPacer pacer(/*segment_bytes=*/kCapacity);
  std::optional<SsdPacer::Hold> first(pacer);
  std::optional<SsdPacer::Hold> second(pacer);
  const Waiting writer(pacer);
  writer.AwaitStall();
  first.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(writer.done());
  second.reset();
}

// --- Tables --------------------------------------------------------------------------------------

TEST(SsdTablesTest, KnowsTablesByNumberAndByPlaceInTheManifest) {
  const std::vector<StoreTable> asked = {{.table = 7, .row_bytes = 8},
                                         {.table = 3, .row_bytes = 100}};
  const std::vector<StoreTable> stored = {asked[1], asked[0]};
  const SsdTables tables(asked, stored);
  EXPECT_EQ(tables.size(), 2);
  EXPECT_EQ(tables.IndexOf(7), 1);
  EXPECT_EQ(tables.IndexOf(4), std::nullopt);
  EXPECT_EQ(tables.number(0), 3);
  EXPECT_EQ(tables.row_bytes(1), 8);
  EXPECT_EQ(tables.row_bytes_longest(), 100);

  std::vector<RowKey> index_keys;
  HOTROW_ASSERT_OK(tables.ToIndexKeys(
      std::vector<RowKey>{{.key = 5, .table = 7}, {.key = 6, .table = 3}}, &index_keys));
  EXPECT_THAT(index_keys, ElementsAre(RowKey{5, 1}, RowKey{6, 0}));
  EXPECT_EQ(tables.ToStoreKey(index_keys[0]), (RowKey{5, 7}));
  EXPECT_THAT(tables.ToIndexKeys(std::vector<RowKey>{{.key = 5, .table = 0}}, &index_keys),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of table 0")));
  // Counts come in the caller's order.
  internal::SsdSnapshot snapshot;
  snapshot.table_rows = {30, 70};
  EXPECT_THAT(tables.Describe(snapshot).table_rows, ElementsAre(70, 30));
}

}  // namespace
}  // namespace hotrow
