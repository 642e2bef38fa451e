#ifndef HOTROW_CACHE_BUCKET_H_
#define HOTROW_CACHE_BUCKET_H_

#include <cstddef>
#include <cstdint>

#include "base/macros.h"
#include "base/row_key.h"

// The logic of one bucket, written once over a Warp (base/warp.h): HostWarp on the CPU, CudaThread
// on the GPU. They touch one or two buckets and nothing else; who may call them when is up to the
// container.

namespace hotrow::cache {

// The metadata of 32 rows, 16 bytes a way. Plain data, so that a bucket may lie in host or device
// memory and all-zero bytes are an empty bucket.
//
// A probe reads the tags, 64 bytes, and then the record of the way that matched: 12 bytes that lie
// in one 32-byte sector of a GPU for three ways of four. What hits and placements change, states
// and scores, are the other 64 bytes of the first 128; picking a way for a new row reads no others.
struct alignas(64) Bucket {
  static constexpr int kWays = 32;

  // Whose row it is, in words of four bytes, so that 32 of them take 384 bytes.
  struct Record {
    uint32_t key_low;
    uint32_t key_high;
    uint32_t table;

    HOTROW_HOST_DEVICE RowKey key() const {
      return {static_cast<uint64_t>(key_high) << 32 | key_low, table};
    }
    // No short cut: the three words are loaded together.
    HOTROW_HOST_DEVICE bool Is(uint64_t key, uint32_t of_table) const {
      return ((key_low ^ static_cast<uint32_t>(key)) |
              (key_high ^ static_cast<uint32_t>(key >> 32)) | (table ^ of_table)) == 0;
    }
  };

  uint16_t tag[kWays];   // 16 bits of the hash, never 0; 0 = the way is empty
  uint8_t state[kWays];  // two bits of what the row is, and six that count its pins
  uint8_t score[kWays];  // higher stays
  Record record[kWays];
};
static_assert(sizeof(Bucket) == 512 && alignof(Bucket) == 64);
static_assert(offsetof(Bucket, tag) == 0 && offsetof(Bucket, state) == 64);
static_assert(offsetof(Bucket, score) == 96 && offsetof(Bucket, record) == 128);

// What a state says: one byte, so that placing a row is one change of it, and "may be evicted" is a
// test for no pins.
inline constexpr uint8_t kPinMask = 0x3f;
inline constexpr uint8_t kKindMask = 0xc0;
inline constexpr uint8_t kWaiting = 0x00;  // empty if it has no pins; else placed, but not filled
inline constexpr uint8_t kClean = 0x40;
inline constexpr uint8_t kDirty = 0xc0;  // differs from the tier below
// The row has changed since the tier below last saw it, and belongs to a snapshot that is being
// written: like kDirty, which it takes the place of, but on behalf of that snapshot.
inline constexpr uint8_t kMarked = 0x80;
// What tells the last three apart: the bits that change when a row is updated, and when it is
// marked.
inline constexpr uint8_t kDiffersBit = kDirty & ~kClean;
inline constexpr uint8_t kUnmarkedBit = kDirty & ~kMarked;

inline constexpr uint8_t kEmpty = 0;
inline constexpr uint8_t kPlaced = kWaiting | 1;  // the pin of who placed it
// One pin per step in flight that uses the row, so no more than 63 steps may be in flight.
inline constexpr int kMaxPins = 63;

HOTROW_HOST_DEVICE inline uint8_t KindOf(uint8_t state) { return state & kKindMask; }
HOTROW_HOST_DEVICE inline int PinsOf(uint8_t state) { return state & kPinMask; }
// Waits for its bytes.
HOTROW_HOST_DEVICE inline bool IsFilling(uint8_t state) {
  return KindOf(state) == kWaiting && state != kEmpty;
}

// How a policy moves scores when a row is placed and when it is touched: LRU jumps to 255 (an
// addition of 255 that saturates), LFU counts; a touch may also set bits.
struct ScoreRule {
  uint8_t placed = 255;
  uint8_t touch_add = 255;
  uint8_t touch_or = 0;
};

// One way of a pair of buckets.
struct PairWay {
  int bucket = -1;  // 0 or 1; -1 = there is none
  int way = -1;
};

// nvcc compiles the templates below for both sides with any Warp, and would warn that the
// device side of a HostWarp instance calls host functions. No such instance runs on a device.
#if defined(__CUDACC__)
#define HOTROW_WARP_TEMPLATE _Pragma("nv_exec_check_disable") template <typename Warp>
#else
#define HOTROW_WARP_TEMPLATE template <typename Warp>
#endif

// The way that holds {key, table}, or -1.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE int FindWay(const Bucket& bucket, uint16_t tag, uint64_t key, uint32_t table) {
  const uint32_t candidates = Warp::MatchTag(bucket.tag, tag);
  if (candidates == 0) return -1;
  const uint32_t hits =
      Warp::Ballot(candidates, [&](int way) { return bucket.record[way].Is(key, table); });
  return hits == 0 ? -1 : Warp::FirstLane(hits);
}

// Bit w is set when way w is empty.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE uint32_t FreeMask(const Bucket& bucket) {
  return Warp::MatchByte(bucket.state, kEmpty);
}

// Bit w is set when way w is empty or its row is not pinned; a row that waits for its bytes is.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE uint32_t UnpinnedMask(const Bucket& bucket) {
  return Warp::MatchByte(bucket.state, 0, kPinMask);
}

// A key goes to its first bucket while that has so many empty ways, and then to the emptier one. At
// a load of 0.5 one key of 70 lies in its second bucket, not one of three, and at 0.9 one of six:
// so many probes read the tags of two buckets. The price is 0.002 of the load at which the first
// key finds both full.
inline constexpr int kRoomyWays = 12;

// Which bucket of a pair an empty way comes from, by how many it has: 0 or 1, -1 where none has
// any. The first if that is roomy, else the emptier one; the first wins a tie.
HOTROW_HOST_DEVICE inline int BucketWithRoom(int free1, int free2) {
  if ((free1 | free2) == 0) return -1;
  return free1 < kRoomyWays && free2 > free1 ? 1 : 0;
}

// An empty way of the pair: the lowest of that bucket.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE PairWay PickFree(const Bucket& first, const Bucket& second) {
  const uint32_t free1 = FreeMask<Warp>(first);
  const uint32_t free2 = FreeMask<Warp>(second);
  const int bucket = BucketWithRoom(Warp::CountLanes(free1), Warp::CountLanes(free2));
  if (bucket < 0) return {};
  return {bucket, Warp::FirstLane(bucket == 0 ? free1 : free2)};
}

// Below this many unpinned ways in either bucket, room matters more than scores.
inline constexpr int kScarceWays = 16;

// Which bucket of a pair a row leaves when no way is empty, by how many unpinned ways they have and
// the lowest scores of those: 0 or 1, -1 where all are pinned. That of the lower score; the first
// wins a tie.
//
// Where pins leave little room, the victim comes from the bucket with more unpinned ways instead. A
// cache that holds little beside its pinned rows is full of old unpinned ones, so PickFree has no
// say; were victims taken by score alone, pins would pile up as if a row had one choice. With 8 of
// 9 ways pinned by each step, 0.65 % of the rows would need the overflow; this way none does.
HOTROW_HOST_DEVICE inline int BucketOfVictim(int room1, int room2, int score1, int score2) {
  if ((room1 < kScarceWays || room2 < kScarceWays) && room1 != room2) return room1 < room2 ? 1 : 0;
  if (room1 == 0 && room2 == 0) return -1;
  return score1 <= score2 ? 0 : 1;
}

// Who leaves: the lowest way of the lowest score in that bucket.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE PairWay PickVictim(const Bucket& first, const Bucket& second) {
  const uint32_t lanes1 = UnpinnedMask<Warp>(first);
  const uint32_t lanes2 = UnpinnedMask<Warp>(second);
  const auto victim1 = Warp::MinByte(first.score, lanes1);
  const auto victim2 = Warp::MinByte(second.score, lanes2);
  const int bucket = BucketOfVictim(Warp::CountLanes(lanes1), Warp::CountLanes(lanes2),
                                    victim1.score, victim2.score);
  if (bucket < 0) return {};
  return {bucket, bucket == 0 ? victim1.way : victim2.way};
}

// Writes down whose row a way has, in place of what was there: all but the state. One lane.
HOTROW_HOST_DEVICE inline void SetRow(Bucket& bucket, int way, uint16_t tag, uint64_t key,
                                      uint32_t table, ScoreRule rule) {
  bucket.tag[way] = tag;
  bucket.score[way] = rule.placed;
  bucket.record[way] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), table};
}

// Puts {key, table} into a way, in place of what was there: pinned once and waiting for its bytes.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE void Place(Bucket& bucket, int way, uint16_t tag, uint64_t key, uint32_t table,
                              ScoreRule rule) {
  Warp::Once([&] {
    bucket.state[way] = kPlaced;
    SetRow(bucket, way, tag, key, table, rule);
  });
}

// Raises the score of a way that a step uses and pins it once more. The caller has made sure that
// it has fewer than kMaxPins pins.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE void TouchAndPin(Bucket& bucket, int way, ScoreRule rule) {
  Warp::Once([&] {
    const int score = bucket.score[way] + rule.touch_add;
    bucket.score[way] = static_cast<uint8_t>((score > 255 ? 255 : score) | rule.touch_or);
    bucket.state[way] = static_cast<uint8_t>(bucket.state[way] + 1);
  });
}

// Makes a way empty.
HOTROW_WARP_TEMPLATE
HOTROW_HOST_DEVICE void Clear(Bucket& bucket, int way) {
  Warp::Once([&] {
    bucket.tag[way] = 0;
    bucket.state[way] = kEmpty;
    bucket.score[way] = 0;
    bucket.record[way] = {};
  });
}

// Four neighbouring states at once, for passes over whole buckets. The high bit of each state whose
// row differs from the tier below, and of each that is marked; and all that do, marked or dirty.
HOTROW_HOST_DEVICE inline uint32_t DirtyOrMarkedOf(uint32_t states) { return states & 0x80808080u; }
HOTROW_HOST_DEVICE inline uint32_t MarkedOf(uint32_t states) {
  return states & ~(states << 1) & 0x80808080u;
}
HOTROW_HOST_DEVICE inline uint32_t ToMarked(uint32_t states) {
  return states & ~(DirtyOrMarkedOf(states) >> 1);
}
HOTROW_HOST_DEVICE inline uint32_t ToDirty(uint32_t states) {
  return states | DirtyOrMarkedOf(states) >> 1;
}
static_assert(kDiffersBit == 0x80 && kUnmarkedBit == 0x40, "what the four above shift");

// Lowers four neighbouring scores by one, without a loop over bytes: a loop over the words of a
// bucket becomes vector instructions on the CPU, and on a GPU a lane does four ways.
HOTROW_HOST_DEVICE inline uint32_t AgeFourByOne(uint32_t scores) {
  // The high bit of each byte that is not 0, moved to its low bit.
  const uint32_t nonzero = (((scores & 0x7f7f7f7fu) + 0x7f7f7f7fu) | scores) & 0x80808080u;
  return scores - (nonzero >> 7);
}

// Takes an eighth off each, rounded up, so that a score ends at 0.
HOTROW_HOST_DEVICE inline uint32_t AgeFourByDecay(uint32_t scores) {
  // (s + 7) >> 3 is s >> 3, and one more when the low three bits are not all 0.
  const uint32_t eighths = (scores >> 3) & 0x1f1f1f1fu;
  const uint32_t rest = (((scores & 0x07070707u) + 0x07070707u) >> 3) & 0x01010101u;
  return scores - (eighths + rest);
}

#undef HOTROW_WARP_TEMPLATE

}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_BUCKET_H_
