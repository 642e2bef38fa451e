// One file of 940 lines on purpose: a slot's bits, the search of buckets and the rebuild of a
// partition rest on one scheme of quotients, and each is read with the others at hand.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/host_pages.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "store/host/host_index_impl.h"
#include "store/host/host_lock_impl.h"
#include "store/ssd/ssd_index_impl.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hotrow::internal {
namespace {

static_assert(std::endian::native == std::endian::little);  // slots are read as 128-bit words

using Uint128 = unsigned __int128;

constexpr int64_t kRowsPerPartition = 65536;
constexpr int kPartitionBitsMin = 1;  // Q <= 63, so that 2^Q fits 64 bits
constexpr int kPartitionBitsMax = 20;

constexpr int64_t kBucketBytes = 128;
constexpr int kOccupancyBits = 16;
constexpr int kTagBits = 8;
constexpr int kWaysMax = 16;
constexpr int kWordBytes = 16;  // a slot is read as one word

// Buckets looked at when both buckets of a key are full. At load 0.98 about one in four has a free
// slot, so nearly all searches end at the first one.
constexpr int kSearchMax = 256;

// Smaller partitions grow by a quarter instead of a sixteenth: an index of several is then far from
// the size it was made for, and rows are moved less often on the way there.
constexpr uint64_t kSmallBuckets = 1024;
// Growing partitions step through their own sizes from here on, so that they do not all grow at
// once.
constexpr uint64_t kStaggerFromBuckets = 2048;
// A partition this large and less than half full in which a row finds no room holds rows that share
// both buckets, by design or because the seed is bad luck. It would not stop growing; it is given
// another salt. Chance does not come here: below 0.78 of the slots Search fails hardly ever.
constexpr uint64_t kCollisionBucketsMin = 16;
// Tries for one row. Each fails with a probability that nobody meets; a limit all the same.
constexpr int kSaltsMax = 16;

constexpr int kFindBlock = 4096;       // keys that Find sorts by partition at a time
constexpr int kFindSortFrom = 64;      // fewer are taken as they come
constexpr int kSortBitsMax = 8;        // of the partition
constexpr size_t kPrefetchAhead = 16;  // keys between prefetch and use
constexpr int kKeysPerLock = 64;       // a writer lets readers in after as many

// The largest n of a partition. With n <= d = ceil(2^Q / n) the last bucket is at most one n-th
// short of the others.
uint64_t BucketsMax(int q_bits) { return uint64_t{1} << std::min(31, q_bits / 2); }

int PartitionBits(int64_t rows) {
  const auto partitions = static_cast<uint64_t>(
      std::clamp<int64_t>(rows / kRowsPerPartition + (rows % kRowsPerPartition != 0),
                          int64_t{1} << kPartitionBitsMin, int64_t{1} << kPartitionBitsMax));
  return std::bit_width(partitions - 1);
}

uint64_t HashOf(const RowKey& key, uint64_t seed) {
  return Mix64(key.key ^ SsdIndexTableSeed(seed, key.table));
}

// So many buckets that they end with the last page, which is counted whole.
uint64_t ToPageEnd(uint64_t num_buckets) {
  const int64_t bytes = static_cast<int64_t>(num_buckets) * kBucketBytes + kBufferAlignment;
  return static_cast<uint64_t>((HostBytesReserved(bytes, HugePages::kTry) - kBufferAlignment) /
                               kBucketBytes);
}

// What lookups in a partition without buckets read.
alignas(kBucketBytes) constinit std::byte empty_bucket[kBucketBytes] = {};

}  // namespace

// The buckets of one partition. Not thread safe.
//
// A bucket, 1024 bits:
//   [0, 16)          occupancy: bit i is set when way i is taken
//   [16, 16 + 8 w)   tags of the w ways: the low 8 bits of the remainder
//   then w fields:   from the low bits up: location, choice (0: the bucket is that of the row's
//                    first number, 1: of Scramble of it), table, the rest of the remainder
// Bits of free ways mean nothing. See FirstOf for the first number.
class SsdIndex::Buckets {
 public:
  struct Position {
    std::byte* bucket = nullptr;
    int way = -1;  // -1: not found
  };
  // The bucket of a number x, and what is left of x there.
  struct Home {
    uint64_t number;
    uint64_t remainder;
  };
  // One of a row's two places: where, and what a slot there would hold but for the location.
  struct Candidate {
    std::byte* bucket;
    uint8_t tag;
    Uint128 identity;
  };

  Buckets() = default;

  // No buckets: nothing is found.
  Buckets(const SsdIndexOptions& options, int q_bits)
      : q_bits_(q_bits),
        table_bits_(std::bit_width(static_cast<uint64_t>(options.num_tables - 1))),
        location_bits_(options.location_bits),
        location_mask_((uint64_t{1} << options.location_bits) - 1) {
    SetNumBuckets(1);
    base_ = empty_bucket;
  }

  // `like` with `num_buckets` >= 1 empty ones and its own salt.
  static absl::StatusOr<Buckets> Create(const Buckets& like, uint64_t num_buckets, uint64_t salt,
                                        MemoryBudget& budget) {
    Buckets result;
    result.salt_ = salt;
    result.q_bits_ = like.q_bits_;
    result.table_bits_ = like.table_bits_;
    result.location_bits_ = like.location_bits_;
    result.location_mask_ = like.location_mask_;
    result.SetNumBuckets(num_buckets);
    HOTROW_ASSIGN_OR_RETURN(result.memory_, BudgetedBuffer<std::byte>::Create(
                                                BytesFor(num_buckets), {budget, HugePages::kTry}));
    const auto address = reinterpret_cast<uintptr_t>(result.memory_.data());
    result.base_ = result.memory_.data() + (address % kBucketBytes == 0 ? 0 : kBufferAlignment);
    return result;
  }

  // Buffers are aligned to half a bucket.
  static int64_t BytesFor(uint64_t num_buckets) {
    return static_cast<int64_t>(num_buckets) * kBucketBytes + kBufferAlignment;
  }

  // How many buckets keep so many rows with some room to spare.
  static uint64_t BucketsFor(const Buckets& like, uint64_t rows) {
    Buckets sized;
    sized.q_bits_ = like.q_bits_;
    sized.table_bits_ = like.table_bits_;
    sized.location_bits_ = like.location_bits_;
    // More buckets have more ways each, so that this takes a few rounds, and ends.
    for (uint64_t n = 1;; n += std::max<uint64_t>(1, n / 64)) {
      sized.SetNumBuckets(n);
      const auto ways = static_cast<uint64_t>(sized.ways_);
      if (n * ways - n * ways / 50 >= rows) return n;
      n = std::max(n, rows / kWaysMax);
    }
  }

  uint64_t num_buckets() const { return memory_.size() == 0 ? 0 : num_buckets_; }
  uint64_t slots() const { return num_buckets() * static_cast<uint64_t>(ways_); }
  // Finding room gets dear above.
  uint64_t rows_max() const { return slots() - slots() / 50; }
  uint64_t rows() const { return rows_; }
  int ways() const { return ways_; }
  uint64_t salt() const { return salt_; }
  int64_t reserved_bytes() const { return memory_.memory().ReservedFor(memory_.bytes()); }
  std::byte* base() const { return base_; }
  std::span<std::byte> bytes() const {
    return {base_, static_cast<size_t>(num_buckets()) * kBucketBytes};
  }

  Position Find(uint64_t q, uint32_t table) const {
    const uint64_t x1 = FirstOf(q, table);
    const Candidate candidates[2] = {CandidateAt(x1, 0, table),
                                     CandidateAt(SsdIndexScramble(q_bits_).Apply(x1), 1, table)};
    // Tags of both buckets at once, and mostly one of them is the same: fewer branches that depend
    // on which bucket it is.
    uint32_t ways = Match(candidates[0].bucket, candidates[0].tag) |
                    Match(candidates[1].bucket, candidates[1].tag) << kWaysMax;
    for (; ways != 0; ways &= ways - 1) {
      const int bit = std::countr_zero(ways);
      const Candidate& candidate = candidates[bit / kWaysMax];
      const int way = bit % kWaysMax;
      if (Field(candidate.bucket, way) >> location_bits_ == candidate.identity) {
        return {candidate.bucket, way};
      }
    }
    return {};
  }

  SsdLocation location(const Position& at) const { return LocationOf(Field(at.bucket, at.way)); }
  void set_location(const Position& at, SsdLocation location) {
    SetField(at.bucket, at.way,
             (Field(at.bucket, at.way) & ~Uint128{location_mask_}) | Uint128{location});
  }

  void Erase(const Position& at) {
    SetOccupancy(at.bucket, Occupancy(at.bucket) & ~(1u << at.way));
    --rows_;
  }

  // Makes sure that one of the two buckets of a row has a free way. False when none is found soon;
  // nothing has moved then.
  bool EnsureRoom(uint64_t q, uint32_t table) {
    const uint64_t x1 = FirstOf(q, table);
    const uint64_t b1 = HomeOf(x1).number;
    const uint64_t b2 = HomeOf(SsdIndexScramble(q_bits_).Apply(x1)).number;
    return FreeWays(bucket(b1)) != 0 || FreeWays(bucket(b2)) != 0 || Search(b1, b2);
  }

  // Adds a row that is not there, to the emptier of its two buckets. One of them has a free way.
  void Put(uint64_t q, uint32_t table, SsdLocation location) {
    const uint64_t x1 = FirstOf(q, table);
    const uint64_t x2 = SsdIndexScramble(q_bits_).Apply(x1);
    const Home homes[2] = {HomeOf(x1), HomeOf(x2)};
    const int choice = std::popcount(FreeWays(bucket(homes[1].number))) >
                       std::popcount(FreeWays(bucket(homes[0].number)));
    PutAt(homes[choice], Uint128{location} | Uint128{Low(choice, table)} << location_bits_);
  }

  // Copies all rows to other buckets, which are empty. False when one found no room there.
  bool CopyTo(Buckets& to) const {
    // Rows whose bucket was full wait here while their other one is fetched.
    constexpr size_t kWaiting = 16;
    std::array<Row, kWaiting> waiting;
    size_t begin = 0;
    size_t end = 0;
    const auto put_first = [&] {
      const Row row = waiting[begin++ % kWaiting];
      const uint64_t q = QOf(row);
      if (!to.EnsureRoom(q, TableOf(row))) return false;
      to.Put(q, TableOf(row), LocationOf(row.low));
      return true;
    };
    if (salt_ != to.salt_) {
      for (uint64_t b = 0; b < num_buckets(); ++b) {
        for (uint32_t taken = Occupancy(bucket(b)); taken != 0; taken &= taken - 1) {
          waiting[end++] = RowAt(b, std::countr_zero(taken));
          if (!put_first()) return false;
          begin = end = 0;
        }
      }
      return true;
    }
    for (uint64_t b = 0; b < num_buckets(); ++b) {
      for (uint32_t taken = Occupancy(bucket(b)); taken != 0; taken &= taken - 1) {
        const Row row = RowAt(b, std::countr_zero(taken));
        // In the same of its two buckets if it can be, which reads and writes front to back.
        const Home home = to.HomeOf(row.x);
        if (const uint32_t free_ways = to.FreeWays(to.bucket(home.number)); free_ways != 0) {
          to.SetSlot(to.bucket(home.number), std::countr_zero(free_ways), home.remainder, row.low);
          continue;
        }
        PrefetchWrite(to.bucket(to.HomeOf(OtherOf(row)).number));
        if (end - begin == kWaiting && !put_first()) return false;
        waiting[end++ % kWaiting] = row;
      }
    }
    while (begin != end) {
      if (!put_first()) return false;
    }
    return true;
  }

  // Calls visit(q, table, location, position) for all rows, until it returns false; whether it
  // never did.
  template <typename VisitRow>
  bool ForEach(const VisitRow& visit) const {
    for (uint64_t b = 0; b < num_buckets(); ++b) {
      for (uint32_t taken = Occupancy(bucket(b)); taken != 0; taken &= taken - 1) {
        const int way = std::countr_zero(taken);
        const Row row = RowAt(b, way);
        if (!visit(QOf(row), TableOf(row), LocationOf(row.low), Position{bucket(b), way})) {
          return false;
        }
      }
    }
    return true;
  }

  // Checks buckets whose bytes came from elsewhere: counts the rows. Errors: DataLoss.
  absl::Status Check(int64_t num_tables, uint64_t rows) {
    rows_ = 0;
    for (uint64_t b = 0; b < num_buckets(); ++b) {
      const uint32_t taken = Occupancy(bucket(b));
      if (taken >> ways_ != 0) {
        return absl::DataLossError(
            absl::StrCat("bucket ", b, " has rows in more than its ", ways_, " ways"));
      }
      rows_ += static_cast<uint64_t>(std::popcount(taken));
      for (uint32_t rest = taken; rest != 0; rest &= rest - 1) {
        // The last bucket is shorter than d.
        const int way = std::countr_zero(rest);
        const uint64_t remainder = RowAt(b, way).x - b * d_;
        if (remainder >= std::min(d_, (uint64_t{1} << q_bits_) - b * d_)) {
          return absl::DataLossError(absl::StrCat("bucket ", b, " has a row of another bucket"));
        }
      }
    }
    if (rows_ != rows) {
      return absl::DataLossError(absl::StrCat("the image says ", rows, " rows and holds ", rows_));
    }
    const bool ok = ForEach([&](uint64_t q, uint32_t table, SsdLocation, const Position& at) {
      if (table >= num_tables) return false;
      const Position first = Find(q, table);
      return first.bucket == at.bucket && first.way == at.way;
    });
    if (ok) return absl::OkStatus();
    return absl::DataLossError("a row is there twice, or belongs to no table");
  }

 private:
  void SetNumBuckets(uint64_t num_buckets) {
    num_buckets_ = num_buckets;
    d_ = ((uint64_t{1} << q_bits_) - 1) / num_buckets + 1;
    const int slot_bits = std::bit_width(d_ - 1) + 1 + table_bits_ + location_bits_;
    field_bits_ = slot_bits - kTagBits;
    field_mask_ = (Uint128{1} << field_bits_) - 1;
    low_mask_ = (Uint128{1} << low_bits()) - 1;
    ways_ = std::min<int>(kWaysMax, (8 * kBucketBytes - kOccupancyBits) / slot_bits);
  }

  std::byte* bucket(uint64_t number) const { return base_ + number * kBucketBytes; }

  // x * n / 2^Q is x / d or one more, because 0 <= x n / 2^Q - x / d < n / d <= 1.
  Home HomeOf(uint64_t x) const {
    auto number = static_cast<uint64_t>(Uint128{x} * num_buckets_ >> q_bits_);
    uint64_t begin = number * d_;
    if (begin > x) {
      --number;
      begin -= d_;
    }
    return {number, x - begin};
  }

  // Bits of a field's location, choice and table, which do not depend on the number of buckets.
  int low_bits() const { return location_bits_ + 1 + table_bits_; }
  uint32_t Low(int choice, uint32_t table) const {
    return static_cast<uint32_t>(choice) | table << 1;
  }

  Candidate CandidateAt(uint64_t x, int choice, uint32_t table) const {
    const Home home = HomeOf(x);
    return {bucket(home.number), static_cast<uint8_t>(home.remainder),
            Uint128{home.remainder >> kTagBits} << (table_bits_ + 1) | Low(choice, table)};
  }

  static uint32_t Occupancy(const std::byte* bucket) {
    uint16_t occupancy;
    std::memcpy(&occupancy, bucket, sizeof(occupancy));
    return occupancy;
  }
  static void SetOccupancy(std::byte* bucket, uint32_t value) {
    const auto occupancy = static_cast<uint16_t>(value);
    std::memcpy(bucket, &occupancy, sizeof(occupancy));
  }
  uint32_t FreeWays(const std::byte* bucket) const {
    return ~Occupancy(bucket) & ((1u << ways_) - 1);
  }
  static uint8_t Tag(const std::byte* bucket, int way) {
    return static_cast<uint8_t>(bucket[kOccupancyBits / 8 + way]);
  }

  // Bit i is set when way i is taken and has this tag.
  static uint32_t Match(const std::byte* bucket, uint8_t tag) {
    const std::byte* const tags = bucket + kOccupancyBits / 8;
#if defined(__SSE2__)
    // Reads 16 bytes; those behind the tags are masked away with the free ways.
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tags));
    const __m128i same = _mm_cmpeq_epi8(all, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<uint32_t>(_mm_movemask_epi8(same)) & Occupancy(bucket);
#else
    uint32_t mask = 0;
    for (int i = 0; i < kWaysMax; ++i) {
      mask |= static_cast<uint32_t>(static_cast<uint8_t>(tags[i]) == tag) << i;
    }
    return mask & Occupancy(bucket);
#endif
  }

  // A field has at most 120 bits. The word that holds it starts at its first byte, or is the last
  // word of the bucket.
  struct Word {
    int byte;
    int shift;
  };
  Word WordOf(int way) const {
    const int bit = kOccupancyBits + kTagBits * ways_ + field_bits_ * way;
    const int byte = std::min<int>(bit / 8, kBucketBytes - kWordBytes);
    return {byte, bit - 8 * byte};
  }
  Uint128 Field(const std::byte* bucket, int way) const {
    const Word at = WordOf(way);
    Uint128 word;
    std::memcpy(&word, bucket + at.byte, sizeof(word));
    return word >> at.shift & field_mask_;
  }
  void SetField(std::byte* bucket, int way, Uint128 field) {
    const Word at = WordOf(way);
    Uint128 word;
    std::memcpy(&word, bucket + at.byte, sizeof(word));
    word = (word & ~(field_mask_ << at.shift)) | field << at.shift;
    std::memcpy(bucket + at.byte, &word, sizeof(word));
  }

  // The row in a slot.
  struct Row {
    uint64_t x;   // its first number or Scramble of that
    Uint128 low;  // the low_bits() of the field
  };
  Row RowAt(uint64_t b, int way) const {
    const Uint128 field = Field(bucket(b), way);
    const uint64_t remainder =
        static_cast<uint64_t>(field >> low_bits()) << kTagBits | Tag(bucket(b), way);
    return {b * d_ + remainder, field & low_mask_};
  }
  SsdLocation LocationOf(Uint128 low) const { return static_cast<uint64_t>(low) & location_mask_; }
  bool IsSecond(const Row& row) const { return (row.low >> location_bits_ & 1) != 0; }
  uint32_t TableOf(const Row& row) const {
    return static_cast<uint32_t>(row.low >> (location_bits_ + 1));
  }
  uint64_t QOf(const Row& row) const {
    const uint64_t x1 = IsSecond(row) ? SsdIndexScramble(q_bits_).Invert(row.x) : row.x;
    return QOfFirst(x1, TableOf(row));
  }
  // A row's two numbers are its first one and Scramble of that; each has its bucket. The first one
  // is q, or where rows were found to share both buckets (MakeRoom) a permutation of q that the
  // salt and the table choose. The same q in many tables so has as many places.
  uint64_t FirstOf(uint64_t q, uint32_t table) const {
    if (salt_ == 0) [[likely]]
      return q;
    const uint64_t mask = (uint64_t{1} << q_bits_) - 1;
    const SsdIndexScramble scramble(q_bits_);
    const uint64_t key = SsdIndexTableSeed(salt_, table);
    return scramble.Apply(scramble.Apply(q ^ (key & mask)) ^ (Mix64(key) & mask));
  }
  uint64_t QOfFirst(uint64_t x1, uint32_t table) const {
    if (salt_ == 0) [[likely]]
      return x1;
    const uint64_t mask = (uint64_t{1} << q_bits_) - 1;
    const SsdIndexScramble scramble(q_bits_);
    const uint64_t key = SsdIndexTableSeed(salt_, table);
    return scramble.Invert(scramble.Invert(x1) ^ (Mix64(key) & mask)) ^ (key & mask);
  }
  // The x of its other place.
  uint64_t OtherOf(const Row& row) const {
    const SsdIndexScramble scramble(q_bits_);
    return IsSecond(row) ? scramble.Invert(row.x) : scramble.Apply(row.x);
  }

  // Fills a free way. `low` are the low_bits() of the field.
  void SetSlot(std::byte* bucket, int way, uint64_t remainder, Uint128 low) {
    const uint32_t occupancy = Occupancy(bucket);
    const Uint128 field = Uint128{remainder >> kTagBits} << low_bits() | low;
    if (const Word at = WordOf(way); occupancy >> way == 0 && at.shift < 8) {
      // No way behind it is taken, so only the byte it shares with the way before has to be kept.
      // A word read here would overlap the one just written there, and wait until that has left
      // the store buffer: a rebuild would do so for most rows.
      const Uint128 before = static_cast<uint32_t>(bucket[at.byte]) & ((1u << at.shift) - 1);
      const Uint128 word = field << at.shift | before;
      std::memcpy(bucket + at.byte, &word, sizeof(word));
    } else {
      SetField(bucket, way, field);
    }
    bucket[kOccupancyBits / 8 + way] = static_cast<std::byte>(remainder);
    SetOccupancy(bucket, occupancy | 1u << way);
    ++rows_;
  }
  // The bucket has a free way.
  void PutAt(const Home& home, Uint128 low) {
    const uint32_t free_ways = FreeWays(bucket(home.number));
    HOTROW_CHECK(free_ways != 0);
    SetSlot(bucket(home.number), std::countr_zero(free_ways), home.remainder, low);
  }

  // Looks breadth first for a row of two full buckets, or a row in the way of that, that can go to
  // its other bucket, and moves it.
  bool Search(uint64_t b1, uint64_t b2) {
    // A bucket that has room if row (nodes[parent].bucket, way) goes there, and its own row to
    // where it is heading.
    struct Node {
      uint64_t bucket;
      int parent;
      int way;
    };
    std::array<Node, kSearchMax> nodes;
    int count = 0;
    nodes[count++] = {b1, -1, 0};
    if (b2 != b1) nodes[count++] = {b2, -1, 0};
    const auto on_path = [&](int node, uint64_t number) {
      for (; node >= 0; node = nodes[node].parent) {
        if (nodes[node].bucket == number) return true;
      }
      return false;
    };
    constexpr int kGroup = 4;  // ways whose cache misses overlap
    std::array<uint64_t, kGroup> others;
    for (int i = 0; i < count; ++i) {
      for (int way = 0; way < ways_; ++way) {
        if (way % kGroup == 0) {
          for (int w = way; w < std::min(ways_, way + kGroup); ++w) {
            others[w % kGroup] = HomeOf(OtherOf(RowAt(nodes[i].bucket, w))).number;
            PrefetchRead(bucket(others[w % kGroup]));
          }
        }
        const uint64_t other = others[way % kGroup];
        if (FreeWays(bucket(other)) != 0) {
          Move(nodes[i].bucket, way);
          for (int j = i; nodes[j].parent >= 0; j = nodes[j].parent) {
            Move(nodes[nodes[j].parent].bucket, nodes[j].way);
          }
          return true;
        }
        // No bucket twice on a path: a row would be moved twice.
        if (count < kSearchMax && !on_path(i, other)) nodes[count++] = {other, i, way};
      }
    }
    return false;
  }

  // Moves a row to its other bucket, which has a free way.
  void Move(uint64_t b, int way) {
    const Row row = RowAt(b, way);
    Erase({bucket(b), way});
    PutAt(HomeOf(OtherOf(row)), row.low ^ Uint128{1} << location_bits_);
  }

  std::byte* base_ = empty_bucket;
  uint64_t salt_ = 0;
  uint64_t num_buckets_ = 1;
  uint64_t d_ = 1;
  int q_bits_ = 0;
  int table_bits_ = 0;
  int location_bits_ = 0;
  int field_bits_ = 0;
  int ways_ = 0;
  uint64_t location_mask_ = 0;
  Uint128 low_mask_ = 0;
  Uint128 field_mask_ = 0;
  uint64_t rows_ = 0;
  BudgetedBuffer<std::byte> memory_;
};

struct alignas(64) SsdIndex::Partition {
  // Copies for prefetches outside the lock, which may see one of them old: what they fetch then is
  // of no use, and no harm.
  std::atomic<uintptr_t> prefetch_base{0};
  std::atomic<uint64_t> prefetch_num_buckets{1};
  mutable WriterFirstMutex mutex;
  Buckets buckets;  // guarded by mutex
};

absl::Status SsdIndexOptions::Validate() const {
  if (num_tables < 1 || num_tables > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("SsdIndexOptions: num_tables must lie in [1, 65536], got ", num_tables));
  }
  if (location_bits < 1 || location_bits > 48) {
    return absl::InvalidArgumentError(
        absl::StrCat("SsdIndexOptions: location_bits must lie in [1, 48], got ", location_bits));
  }
  if (max_rows_hint < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("SsdIndexOptions: max_rows_hint must be at least 0, got ", max_rows_hint));
  }
  return absl::OkStatus();
}

SsdIndex::SsdIndex(const SsdIndexOptions& options, MemoryBudget& budget)
    : options_(options),
      budget_(budget),
      seed_(options.seed),
      partition_bits_(PartitionBits(options.max_rows_hint)),
      q_bits_(64 - partition_bits_),
      q_mask_((uint64_t{1} << q_bits_) - 1) {}

absl::StatusOr<std::unique_ptr<SsdIndex>> SsdIndex::Create(const SsdIndexOptions& options,
                                                           MemoryBudget& budget) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<SsdIndex> index(new SsdIndex(options, budget));
  const int64_t bytes = HostBytesReserved(
      index->num_partitions() * static_cast<int64_t>(sizeof(Partition)), HugePages::kNever);
  HOTROW_RETURN_IF_ERROR(budget.Reserve(bytes));
  index->partitions_bytes_ = bytes;  // from here on the destructor gives it back
  index->bytes_ = bytes;
  index->partitions_.reset(new (std::nothrow)
                               Partition[static_cast<size_t>(index->num_partitions())]);
  if (index->partitions_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host memory: cannot allocate ", bytes, " bytes"));
  }
  for (int64_t i = 0; i < index->num_partitions(); ++i) {
    index->partitions_[static_cast<size_t>(i)].buckets = Buckets(options, index->q_bits_);
  }
  return index;
}

SsdIndex::~SsdIndex() {
  partitions_.reset();
  budget_.Release(partitions_bytes_);
}

SsdIndex::Partition& SsdIndex::PartitionOf(uint64_t hash) const {
  return partitions_[hash >> q_bits_];
}

int64_t SsdIndex::partition_of(const RowKey& key) const {
  return static_cast<int64_t>(HashOf(key, seed_) >> q_bits_);
}

void SsdIndex::PrefetchBuckets(uint64_t hash) const {
  const Partition& partition = PartitionOf(hash);
  const uintptr_t base = partition.prefetch_base.load(std::memory_order_relaxed);
  const uint64_t n = partition.prefetch_num_buckets.load(std::memory_order_relaxed);
  const uint64_t q = hash & q_mask_;
  for (const uint64_t x : {q, SsdIndexScramble(q_bits_).Apply(q)}) {
    const auto b = static_cast<uint64_t>(Uint128{x} * n >> q_bits_);
    const uintptr_t address = base + b * kBucketBytes;
    PrefetchRead(reinterpret_cast<const void*>(address));
    PrefetchRead(reinterpret_cast<const void*>(address + kBucketBytes / 2));
  }
}

void SsdIndex::Find(std::span<const RowKey> keys, std::span<SsdLocation> locations) const {
  HOTROW_CHECK(keys.size() == locations.size());
  std::array<uint64_t, kFindBlock> hashes;
  std::array<uint16_t, kFindBlock> order;
  for (size_t begin = 0; begin < keys.size(); begin += kFindBlock) {
    const size_t count = std::min<size_t>(kFindBlock, keys.size() - begin);
    for (size_t i = 0; i < count; ++i) hashes[i] = HashOf(keys[begin + i], seed_);

    // The keys of a partition side by side, for one locking of all.
    if (count < kFindSortFrom) {
      for (size_t i = 0; i < count; ++i) order[i] = static_cast<uint16_t>(i);
    } else {
      const int shift = 64 - std::min(kSortBitsMax, partition_bits_);
      std::array<uint16_t, 1 << kSortBitsMax> next{};
      for (size_t i = 0; i < count; ++i) ++next[hashes[i] >> shift];
      uint16_t sum = 0;
      for (uint16_t& n : next) n = static_cast<uint16_t>(std::exchange(sum, sum + n));
      for (size_t i = 0; i < count; ++i) {
        order[next[hashes[i] >> shift]++] = static_cast<uint16_t>(i);
      }
    }

    const auto prefetch_partition = [&](size_t at) {
      if (at >= count) return;
      const auto* const partition =
          reinterpret_cast<const std::byte*>(&PartitionOf(hashes[order[at]]));
      PrefetchRead(partition);
      PrefetchRead(partition + 64);
      PrefetchRead(partition + 128);
    };
    const auto prefetch_buckets = [&](size_t at) {
      if (at < count) PrefetchBuckets(hashes[order[at]]);
    };
    for (size_t at = 0; at < 2 * kPrefetchAhead; ++at) prefetch_partition(at);
    for (size_t at = 0; at < kPrefetchAhead; ++at) prefetch_buckets(at);
    const Partition* partition = nullptr;
    std::shared_lock<WriterFirstMutex> lock;
    for (size_t at = 0; at < count; ++at) {
      prefetch_partition(at + 2 * kPrefetchAhead);
      prefetch_buckets(at + kPrefetchAhead);
      const size_t i = order[at];
      if (&PartitionOf(hashes[i]) != partition) {
        if (lock.owns_lock()) lock.unlock();
        partition = &PartitionOf(hashes[i]);
        lock = std::shared_lock(partition->mutex);
      }
      const Buckets::Position found =
          partition->buckets.Find(hashes[i] & q_mask_, keys[begin + i].table);
      locations[begin + i] = found.way < 0 ? kNoLocation : partition->buckets.location(found);
    }
  }
}

template <typename Body>
void SsdIndex::ForKeys(std::span<const RowKey> keys, const Body& body) {
  // The hashes of the keys from the current one on.
  std::array<uint64_t, 2 * kPrefetchAhead> hashes;
  const auto hash_of = [&](size_t i) -> uint64_t& { return hashes[i % hashes.size()]; };
  const auto prepare = [&](size_t i) {
    if (i >= keys.size()) return;
    hash_of(i) = HashOf(keys[i], seed_);
    const auto* const partition = reinterpret_cast<const std::byte*>(&PartitionOf(hash_of(i)));
    PrefetchRead(partition);
    PrefetchRead(partition + 64);
    PrefetchRead(partition + 128);
  };
  const auto prefetch_buckets = [&](size_t i) {
    if (i < keys.size()) PrefetchBuckets(hash_of(i));
  };
  for (size_t i = 0; i + 1 < hashes.size(); ++i) prepare(i);
  for (size_t i = 0; i < kPrefetchAhead; ++i) prefetch_buckets(i);
  Partition* partition = nullptr;
  std::unique_lock<WriterFirstMutex> lock;
  int keys_left = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    prepare(i + hashes.size() - 1);
    prefetch_buckets(i + kPrefetchAhead);
    const uint64_t hash = hash_of(i);
    if (&PartitionOf(hash) != partition || keys_left == 0) {
      if (lock.owns_lock()) lock.unlock();
      partition = &PartitionOf(hash);
      lock = std::unique_lock(partition->mutex);
      keys_left = kKeysPerLock;
    }
    --keys_left;
    if (!body(*partition, i, hash & q_mask_)) return;
  }
}

void SsdIndex::CheckLocation(SsdLocation location) const {
  HOTROW_CHECK(location >> options_.location_bits == 0);
}

SsdIndex::UpsertResult SsdIndex::Upsert(std::span<const RowKey> keys, Place place) {
  UpsertResult result;
  ForKeys(keys, [&](Partition& partition, size_t i, uint64_t q) {
    Buckets& buckets = partition.buckets;
    if (const Buckets::Position at = buckets.Find(q, keys[i].table); at.way >= 0) {
      const SsdLocation location = place(i, buckets.location(at));
      if (location != kNoLocation) {
        CheckLocation(location);
        buckets.set_location(at, location);
      }
    } else {
      result.status = MakeRoom(partition, q, keys[i].table);
      if (!result.status.ok()) return false;
      const SsdLocation location = place(i, kNoLocation);
      if (location != kNoLocation) {
        CheckLocation(location);
        buckets.Put(q, keys[i].table, location);
        rows_.fetch_add(1, std::memory_order_relaxed);
      }
    }
    ++result.done;
    return true;
  });
  return result;
}

int64_t SsdIndex::CompareAndSet(std::span<const RowKey> keys, std::span<const SsdLocation> expected,
                                PlaceAgain place) {
  HOTROW_CHECK(keys.size() == expected.size());
  int64_t moved = 0;
  ForKeys(keys, [&](Partition& partition, size_t i, uint64_t q) {
    Buckets& buckets = partition.buckets;
    const Buckets::Position at = buckets.Find(q, keys[i].table);
    if (at.way < 0 || buckets.location(at) != expected[i]) return true;
    if (const SsdLocation location = place(i); location != kNoLocation) {
      CheckLocation(location);
      buckets.set_location(at, location);
      ++moved;
    }
    return true;
  });
  return moved;
}

int64_t SsdIndex::Erase(std::span<const RowKey> keys, OnErase on_erase) {
  int64_t erased = 0;
  ForKeys(keys, [&](Partition& partition, size_t i, uint64_t q) {
    const Buckets::Position at = partition.buckets.Find(q, keys[i].table);
    if (at.way < 0) return true;
    on_erase(i, partition.buckets.location(at));
    partition.buckets.Erase(at);
    rows_.fetch_sub(1, std::memory_order_relaxed);
    ++erased;
    return true;
  });
  return erased;
}

int64_t SsdIndex::BytesMax(int64_t more_rows) const {
  // See Size in the header. Large partitions are of four sizes at any time, so that together they
  // are filled to their mean.
  constexpr int64_t kLargePartitionRows = 14000;
  constexpr double kFillLarge = 0.945;
  constexpr double kFillSmall = 0.78;
  constexpr int64_t kPageBytes = 4096;
  const int64_t rows = this->rows() + more_rows;
  const int64_t slots = this->slots();
  const int64_t buckets_bytes = bytes() - partitions_bytes_;
  // With the seven slots of the smallest bucket where there are none to go by.
  const double slot_bytes = slots == 0 ? static_cast<double>(kBucketBytes) / 7
                                       : static_cast<double>(buckets_bytes) / slots;
  const int64_t partitions = std::min(rows, num_partitions());  // with rows
  if (partitions == 0) return bytes();
  const double fill = rows / partitions > kLargePartitionRows ? kFillLarge : kFillSmall;
  const int64_t partition_bytes =
      RoundUp(static_cast<int64_t>(rows / fill * slot_bytes) / partitions + 1, kPageBytes);
  // One of them stands beside the one that takes its place. Below this fill none but that grows.
  constexpr double kFillNoneGrows = 0.95;
  if (static_cast<double>(rows) <= kFillNoneGrows * static_cast<double>(slots)) {
    return bytes() + partition_bytes;
  }
  return partitions_bytes_ + std::max(buckets_bytes, partitions * partition_bytes) +
         partition_bytes;
}

absl::Status SsdIndex::MakeRoom(Partition& partition, uint64_t q, uint32_t table) {
  const Buckets& buckets = partition.buckets;
  int salts = 0;
  while (buckets.rows() >= buckets.rows_max() || !partition.buckets.EnsureRoom(q, table)) {
    HOTROW_RETURN_IF_ERROR(Rebuild(partition, &salts));
  }
  return absl::OkStatus();
}

int64_t SsdIndex::EraseAt(std::span<const RowKey> keys, std::span<const SsdLocation> expected,
                          ShouldErase should_erase, OnEraseAt on_erase) {
  HOTROW_CHECK(keys.size() == expected.size());
  int64_t erased = 0;
  ForKeys(keys, [&](Partition& partition, size_t i, uint64_t q) {
    const Buckets::Position at = partition.buckets.Find(q, keys[i].table);
    if (at.way < 0 || partition.buckets.location(at) != expected[i]) return true;
    if (!should_erase(i)) return true;
    on_erase(i);
    partition.buckets.Erase(at);
    rows_.fetch_sub(1, std::memory_order_relaxed);
    ++erased;
    return true;
  });
  return erased;
}

absl::Status SsdIndex::Reserve(int64_t partition_number, int64_t more_rows) {
  HOTROW_CHECK(partition_number >= 0 && partition_number < num_partitions() && more_rows >= 0);
  Partition& partition = partitions_[static_cast<size_t>(partition_number)];
  std::unique_lock lock(partition.mutex);
  const Buckets& old = partition.buckets;
  const uint64_t rows = old.rows() + static_cast<uint64_t>(more_rows);
  if (rows <= old.rows_max()) return absl::OkStatus();
  // Not just enough, and not the same for all, so that they do not all grow soon, or at once.
  const uint64_t spare = rows / 64 * (1 + static_cast<uint64_t>(partition_number) % 4);
  const uint64_t n = std::min(ToPageEnd(Buckets::BucketsFor(old, rows + spare)),
                              std::max(old.num_buckets(), BucketsMax(q_bits_)));
  if (n <= old.num_buckets()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(Buckets larger, Buckets::Create(old, n, old.salt(), budget_));
  if (!old.CopyTo(larger)) return absl::OkStatus();  // a full one was copied: growing will do
  rebuilds_.fetch_add(1, std::memory_order_relaxed);
  Replace(partition, std::move(larger));
  return absl::OkStatus();
}

// A sixteenth larger (a quarter while small), or more when the rows do not fit that; or with
// another salt, see kCollisionBucketsMin. *salts counts those for one row.
absl::Status SsdIndex::Rebuild(Partition& partition, int* salts) {
  const Buckets& old = partition.buckets;
  const auto number = static_cast<uint64_t>(&partition - partitions_.get());
  uint64_t n = old.num_buckets();
  uint64_t salt = old.salt();
  for (;;) {
    if (n >= kCollisionBucketsMin && old.rows() < n * static_cast<uint64_t>(old.ways()) / 2) {
      if (++*salts > kSaltsMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("more rows have the same two buckets of the index than these hold, under ",
                         kSaltsMax, " salts"));
      }
      // As hard to foresee as the seed; never 0.
      salt = Mix64(seed_ ^ Mix64(num_salts_.fetch_add(1, std::memory_order_relaxed) + 1)) | 1;
    } else {
      uint64_t next = n + std::max<uint64_t>(1, n < kSmallBuckets ? n / 4 : n / 16);
      if (n < kStaggerFromBuckets && next >= kStaggerFromBuckets) {
        next = kStaggerFromBuckets + number % 4 * (kStaggerFromBuckets / 64);
      }
      n = ToPageEnd(next);
      if (n > BucketsMax(q_bits_)) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "a partition of the index has reached its ", old.num_buckets(),
            " buckets: the index needs a higher max_rows_hint than ", options_.max_rows_hint));
      }
    }
    HOTROW_ASSIGN_OR_RETURN(Buckets rebuilt, Buckets::Create(old, n, salt, budget_));
    if (!old.CopyTo(rebuilt)) continue;
    rebuilds_.fetch_add(1, std::memory_order_relaxed);
    Replace(partition, std::move(rebuilt));
    return absl::OkStatus();
  }
}

void SsdIndex::Replace(Partition& partition, Buckets buckets) {
  const Buckets old = std::exchange(partition.buckets, std::move(buckets));
  const Buckets& now = partition.buckets;
  rows_.fetch_add(static_cast<int64_t>(now.rows()) - static_cast<int64_t>(old.rows()),
                  std::memory_order_relaxed);
  slots_.fetch_add(static_cast<int64_t>(now.slots()) - static_cast<int64_t>(old.slots()),
                   std::memory_order_relaxed);
  bytes_.fetch_add(now.reserved_bytes() - old.reserved_bytes(), std::memory_order_relaxed);
  partition.prefetch_base.store(reinterpret_cast<uintptr_t>(now.base()), std::memory_order_relaxed);
  partition.prefetch_num_buckets.store(std::max<uint64_t>(1, now.num_buckets()),
                                       std::memory_order_relaxed);
}

void SsdIndex::ForEach(int64_t partition, Visit visit) const {
  HOTROW_CHECK(partition >= 0 && partition < num_partitions());
  const Partition& p = partitions_[static_cast<size_t>(partition)];
  std::shared_lock lock(p.mutex);
  const uint64_t top = static_cast<uint64_t>(partition) << q_bits_;
  p.buckets.ForEach([&](uint64_t q, uint32_t table, SsdLocation location, const auto&) {
    visit({Unmix64(top | q) ^ SsdIndexTableSeed(seed_, table), table}, location);
    return true;
  });
}

absl::Status SsdIndex::Save(int64_t partition, Sink sink) const {
  HOTROW_CHECK(partition >= 0 && partition < num_partitions());
  const Partition& p = partitions_[static_cast<size_t>(partition)];
  std::shared_lock lock(p.mutex);
  SsdIndexImageHeader header;
  header.partition = static_cast<uint32_t>(partition);
  header.partition_bits = static_cast<uint32_t>(partition_bits_);
  header.location_bits = static_cast<uint32_t>(options_.location_bits);
  header.num_tables = static_cast<uint64_t>(options_.num_tables);
  header.seed = seed_;
  header.salt = p.buckets.salt();
  header.num_buckets = p.buckets.num_buckets();
  header.rows = p.buckets.rows();
  HOTROW_RETURN_IF_ERROR(sink(std::as_bytes(std::span(&header, 1))));
  return sink(p.buckets.bytes());
}

absl::Status SsdIndex::Load(int64_t partition, Source source) {
  HOTROW_CHECK(partition >= 0 && partition < num_partitions());
  const auto image = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat("index image of partition ", partition, ": ", what...));
  };
  SsdIndexImageHeader header;
  HOTROW_RETURN_IF_ERROR(source(std::as_writable_bytes(std::span(&header, 1))));
  const auto expect = [&](const char* name, uint64_t got, uint64_t expected) {
    if (got == expected) return absl::OkStatus();
    return image(name, " is ", got, ", expected ", expected);
  };
  HOTROW_RETURN_IF_ERROR(expect("magic", header.magic, SsdIndexImageHeader::kMagic));
  HOTROW_RETURN_IF_ERROR(expect("partition", header.partition, static_cast<uint64_t>(partition)));
  HOTROW_RETURN_IF_ERROR(
      expect("partition_bits", header.partition_bits, static_cast<uint64_t>(partition_bits_)));
  HOTROW_RETURN_IF_ERROR(
      expect("location_bits", header.location_bits, static_cast<uint64_t>(options_.location_bits)));
  HOTROW_RETURN_IF_ERROR(
      expect("num_tables", header.num_tables, static_cast<uint64_t>(options_.num_tables)));
  if (rows() != 0) HOTROW_RETURN_IF_ERROR(expect("seed", header.seed, seed_));
  if (header.num_buckets > BucketsMax(q_bits_)) {
    return image("num_buckets is ", header.num_buckets, ", at most ", BucketsMax(q_bits_));
  }

  Buckets buckets(options_, q_bits_);
  if (header.num_buckets > 0) {
    HOTROW_ASSIGN_OR_RETURN(buckets,
                            Buckets::Create(buckets, header.num_buckets, header.salt, budget_));
  }
  HOTROW_RETURN_IF_ERROR(source(buckets.bytes()));
  if (const absl::Status status = buckets.Check(options_.num_tables, header.rows); !status.ok()) {
    return image(std::string(status.message()));
  }
  Partition& p = partitions_[static_cast<size_t>(partition)];
  std::unique_lock lock(p.mutex);
  if (rows() == 0) seed_ = header.seed;
  Replace(p, std::move(buckets));
  return absl::OkStatus();
}

}  // namespace hotrow::internal
