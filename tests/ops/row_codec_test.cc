#include "ops/rows/row_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "ops/keys/partition.h"
#include "ops/rows/row_codec_convert_impl.h"
#include "ops/rows/row_codec_impl.h"
#include "tests/ops/half_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using internal::RowCodecPath;
using test::kBf16Largest;
using test::kFp16Largest;
using test::StatusIs;
using testing::Each;
using testing::HasSubstr;
using Type = ExchangeType;
using Rounding = ExchangeRounding;

constexpr Type kTypes[] = {Type::kFp32, Type::kFp16, Type::kBf16, Type::kInt8};
constexpr Rounding kRoundings[] = {Rounding::kNearest, Rounding::kStochastic};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kMin = std::numeric_limits<float>::min();  // the smallest normal one
constexpr float kDenormMin = std::numeric_limits<float>::denorm_min();

std::string Name(Type type, Rounding rounding) {
  return std::string(ExchangeTypeName(type)) + " " + std::string(ExchangeRoundingName(rounding));
}

// The reference: the definition of each type in double, where all of it is exact. The formulas
// share nothing with the library but the random words.

WeightsPrecision HalfOf(Type type) {
  return type == Type::kFp16 ? WeightsPrecision::kFp16 : WeightsPrecision::kBf16;
}
uint16_t HalfBelow(Type type, double x) { return test::HalfBelow(HalfOf(type), x); }
double HalfValue(Type type, uint16_t bits) { return test::HalfValue(HalfOf(type), bits); }
uint16_t LargestHalf(Type type) { return test::LargestHalf(HalfOf(type)); }
uint16_t ReferenceHalf(Type type, Rounding rounding, float x, uint32_t word) {
  return test::ReferenceHalf(HalfOf(type), rounding == Rounding::kStochastic, x, word);
}

float ReferenceScale(const std::vector<float>& row) {
  double largest = 0;
  for (const float x : row) {
    if (!std::isfinite(x)) return kNaN;
    largest = std::max(largest, std::fabs(static_cast<double>(x)));
  }
  // In the range of subnormals the next multiple of 2^-149, so that no q is beyond 127.
  if (largest / 127 < static_cast<double>(kMin)) {
    return static_cast<float>(std::ldexp(std::ceil(std::ldexp(largest, 149) / 127), -149));
  }
  float scale = static_cast<float>(largest) / 127.0f;
  while (std::isinf(scale * 127.0f)) scale = std::nextafter(scale, 0.0f);
  return scale;
}

int8_t ReferenceInt8(Rounding rounding, float x, float scale, uint32_t word) {
  const double steps = static_cast<double>(x / scale);  // rounded to a float: so it is defined
  double q;
  if (rounding == Rounding::kNearest) {
    q = std::floor(steps + 0.5);
    if (q - steps == 0.5 && std::fmod(q, 2) != 0) --q;
  } else {
    const double magnitude = std::fabs(steps);
    q = std::floor(magnitude);
    if ((word >> 1) < std::floor((magnitude - q) * 0x1p31)) ++q;
    if (steps < 0) q = -q;
  }
  return static_cast<int8_t>(std::clamp(q, -127.0, 127.0));
}

uint32_t ReferenceWord(const StochasticKey& random, uint32_t table, uint64_t key, int64_t column) {
  const PhiloxBlock outer =
      RandomBlock(random.seed, RandomPurpose::kRounding, random.step + 0x100000000ull * random.rank,
                  random.direction, 1);
  const uint64_t seed = outer.v[0] + 0x100000000ull * outer.v[1];
  return RandomBlock(seed, RandomPurpose::kRounding, key, table, static_cast<uint32_t>(column / 4))
      .v[column % 4];
}

template <typename T>
void Append(std::vector<std::byte>& bytes, T value) {
  const auto* const p = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof(T));
}

std::vector<std::byte> ReferenceBytes(Type type, Rounding rounding, const StochasticKey& random,
                                      uint32_t table, uint64_t key, const std::vector<float>& row) {
  std::vector<std::byte> bytes;
  const float scale = type == Type::kInt8 ? ReferenceScale(row) : 0;
  if (type == Type::kInt8) Append(bytes, scale);
  for (size_t d = 0; d < row.size(); ++d) {
    const uint32_t word = ReferenceWord(random, table, key, static_cast<int64_t>(d));
    if (type == Type::kFp32) {
      Append(bytes, row[d]);
    } else if (type == Type::kInt8) {
      Append(bytes, scale > 0 ? ReferenceInt8(rounding, row[d], scale, word) : int8_t{0});
    } else {
      Append(bytes, ReferenceHalf(type, rounding, row[d], word));
    }
  }
  return bytes;
}

float ReferenceValue(Type type, const std::byte* row, int64_t column) {
  if (type == Type::kFp32) {
    float x;
    std::memcpy(&x, row + 4 * column, 4);
    return x;
  }
  if (type == Type::kInt8) {
    float scale;
    std::memcpy(&scale, row, 4);
    return static_cast<float>(std::to_integer<int8_t>(row[4 + column])) * scale;
  }
  uint16_t half;
  std::memcpy(&half, row + 2 * column, 2);
  const auto magnitude = static_cast<uint16_t>(half & 0x7fff);
  if (magnitude <= LargestHalf(type)) {
    const auto x = static_cast<float>(HalfValue(type, magnitude));
    return half == magnitude ? x : -x;
  }
  const uint32_t sign = (half & 0x8000u) << 16;
  if (type == Type::kBf16) return std::bit_cast<float>(sign | (uint32_t{magnitude} << 16));
  const uint32_t fraction = magnitude & 0x3ff;
  return std::bit_cast<float>(sign | 0x7f800000 | (fraction == 0 ? 0 : 0x400000) |
                              (fraction << 13));
}

// Rows of many widths, each in its own memory that ends where it does, at any alignment of
// floats; their bytes lie at odd places with a byte between runs.
struct Batch {
  std::vector<RowRun> runs;
  std::vector<uint64_t> keys;
  std::vector<std::vector<float>> rows;

  void Add(int32_t dim, uint32_t table, const std::vector<std::vector<float>>& of_run) {
    const auto begin = static_cast<int64_t>(rows.size());
    for (const std::vector<float>& row : of_run) {
      keys.push_back(Mix(rows.size()));
      rows.push_back(row);
    }
    runs.push_back({begin, static_cast<int64_t>(rows.size()), dim, table, 0});
  }
  // Sets the offsets; returns the size of the buffer.
  int64_t Place(Type type) {
    int64_t at = 1;
    for (RowRun& run : runs) {
      run.byte_offset = at;
      at += (run.end - run.begin) * ExchangeRowBytes(type, run.dim) + 1;
    }
    return at;
  }
  static uint64_t Mix(uint64_t i) { return i * 0x9e3779b97f4a7c15ull; }
};

constexpr std::byte kGuard{0xee};

struct Coding {
  Type type = Type::kFp32;
  Rounding rounding = Rounding::kNearest;
  StochasticKey random = {};
};

// Copies of rows, and where they lie.
class Copies {
 public:
  explicit Copies(const std::vector<std::vector<float>>& rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t front = i % 3;
      memory_.emplace_back(front, 77.0f);
      memory_.back().insert(memory_.back().end(), rows[i].begin(), rows[i].end());
      fronts_.push_back(front);
    }
    for (size_t i = 0; i < rows.size(); ++i) pointers_.push_back(memory_[i].data() + fronts_[i]);
  }
  float* const* data() { return pointers_.data(); }
  std::vector<std::vector<float>> Get() const {
    std::vector<std::vector<float>> rows;
    for (size_t i = 0; i < memory_.size(); ++i) {
      rows.emplace_back(memory_[i].begin() + static_cast<int64_t>(fronts_[i]), memory_[i].end());
    }
    return rows;
  }

 private:
  std::vector<std::vector<float>> memory_;
  std::vector<size_t> fronts_;
  std::vector<float*> pointers_;
};

enum class Path { kOp, kPlain };  // EncodeRows, or the loops for machines without AVX2

std::vector<std::byte> Encode(Batch& batch, const Coding& coding, Path path = Path::kOp,
                              ThreadPool* pool = nullptr,
                              std::vector<std::vector<float>>* residual = nullptr) {
  std::vector<std::byte> out(static_cast<size_t>(batch.Place(coding.type)), kGuard);
  Copies rows(batch.rows);
  Copies residuals(residual == nullptr ? std::vector<std::vector<float>>{} : *residual);
  // An empty one stands for none.
  std::vector<float*> residual_rows;
  for (size_t i = 0; residual != nullptr && i < residual->size(); ++i) {
    residual_rows.push_back((*residual)[i].empty() ? nullptr : residuals.data()[i]);
  }
  const EncodeRowsArgs args = {.type = coding.type,
                               .rounding = coding.rounding,
                               .random = coding.random,
                               .runs = batch.runs,
                               .keys = batch.keys.data(),
                               .rows = rows.data(),
                               .out = out.data(),
                               .residual = residual == nullptr ? nullptr : residual_rows.data()};
  const ExecContext ctx = {.pool = pool};
  HOTROW_EXPECT_OK(path == Path::kOp ? EncodeRows(ctx, args)
                                     : internal::EncodeRowsCpu(ctx, args, RowCodecPath::kPlain));
  if (residual != nullptr) *residual = residuals.Get();
  return out;
}

// What was in the rows before is `before`, or -1 everywhere.
std::vector<std::vector<float>> Decode(Batch& batch, Type type, const std::vector<std::byte>& bytes,
                                       Path path = Path::kOp, ThreadPool* pool = nullptr,
                                       const std::vector<std::vector<float>>* before = nullptr) {
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), batch.Place(type));
  std::vector<std::vector<float>> start;
  for (const std::vector<float>& row : batch.rows) start.emplace_back(row.size(), -1.0f);
  Copies rows(before == nullptr ? start : *before);
  const DecodeRowsArgs args = {.type = type,
                               .runs = batch.runs,
                               .in = bytes.data(),
                               .rows = rows.data(),
                               .add = before != nullptr};
  const ExecContext ctx = {.pool = pool};
  HOTROW_EXPECT_OK(path == Path::kOp ? DecodeRows(ctx, args)
                                     : internal::DecodeRowsCpu(ctx, args, RowCodecPath::kPlain));
  return rows.Get();
}

// One row there and back.
std::vector<float> RoundTrip(const std::vector<float>& row, const Coding& coding) {
  Batch batch;
  batch.Add(static_cast<int32_t>(row.size()), 0, {row});
  return Decode(batch, coding.type, Encode(batch, coding))[0];
}

std::vector<std::vector<uint32_t>> Bits(const std::vector<std::vector<float>>& rows) {
  std::vector<std::vector<uint32_t>> bits;
  for (const std::vector<float>& row : rows) {
    bits.emplace_back();
    for (const float x : row) bits.back().push_back(std::bit_cast<uint32_t>(x));
  }
  return bits;
}

float Signed(RandomStream& random, float x) { return random.Below(2) == 0 ? x : -x; }

// Numbers of the kinds that matter: as weights are, of every magnitude, half-way between two
// halves, at the borders of a type, none at all.
constexpr int kKinds = 7;
float DrawOfKind(RandomStream& random, int kind) {
  static constexpr float kBorders[] = {
      0,        65504,    65519,        65519.996f,   65520,      65536,    1e9f,
      kMax,     0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-24f,   0x1p-25f, 0x1.8p-25f,
      0x1p-26f, kMin,     kDenormMin,   0x1.fep127f,  0x1.ffp127f};
  switch (kind) {
    case 0:
      return 0.05f * random.Normal();
    case 1: {
      const float x = std::bit_cast<float>(random.Next32());
      return std::isfinite(x) ? x : 1;
    }
    case 2: {
      const auto half = static_cast<uint16_t>(random.Below(kFp16Largest));
      return Signed(random,
                    static_cast<float>(
                        (HalfValue(Type::kFp16, half) + HalfValue(Type::kFp16, half + 1)) / 2));
    }
    case 3: {
      const auto half = static_cast<uint16_t>(random.Below(kBf16Largest));
      return Signed(random, std::bit_cast<float>((uint32_t{half} << 16) + 0x8000));
    }
    case 4:
      return Signed(random, kBorders[random.Below(std::size(kBorders))]);
    case 5:  // subnormals, so that int8's scale is one
      return Signed(random, std::bit_cast<float>(static_cast<uint32_t>(random.Below(1 << 20))));
    default:
      return Signed(random, 0);
  }
}

Batch DrawBatch(uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<int32_t> dims(67);
  std::iota(dims.begin(), dims.end(), 1);
  dims.insert(dims.end(), {128, 1000});
  Batch batch;
  for (const int32_t dim : dims) {
    std::vector<std::vector<float>> rows;
    for (int kind = 0; kind <= kKinds; ++kind) {
      rows.emplace_back();
      for (int32_t d = 0; d < dim; ++d) {
        rows.back().push_back(
            DrawOfKind(random, kind < kKinds ? kind : static_cast<int>(random.Below(kKinds))));
      }
    }
    // And rows with one number that is none.
    static constexpr uint32_t kNotFinite[] = {0x7f800000, 0xff800000, 0x7fc00000,
                                              0xffc12345, 0x7f800001, 0xff812345};
    rows.push_back(rows[0]);
    rows.back()[random.Below(static_cast<uint64_t>(dim))] =
        std::bit_cast<float>(kNotFinite[random.Below(std::size(kNotFinite))]);
    batch.Add(dim, static_cast<uint32_t>(random.Below(5)), rows);
    batch.Add(dim, 9, {});  // an empty run
  }
  return batch;
}

TEST(RowCodecTest, EveryPathEqualsTheReference) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    Batch batch = DrawBatch(seed);
    for (const Type type : kTypes) {
      for (const Rounding rounding : kRoundings) {
        SCOPED_TRACE(Name(type, rounding));
        const Coding coding = {
            type, rounding, {.seed = seed, .step = 7, .direction = 1, .rank = 3}};
        std::vector<std::byte> want(static_cast<size_t>(batch.Place(type)), kGuard);
        std::vector<std::vector<float>> want_rows;
        for (const RowRun& run : batch.runs) {
          int64_t at = run.byte_offset;
          for (int64_t i = run.begin; i < run.end; ++i) {
            const std::vector<std::byte> bytes = ReferenceBytes(
                type, rounding, coding.random, run.table, batch.keys[i], batch.rows[i]);
            std::copy(bytes.begin(), bytes.end(), want.begin() + at);
            at += static_cast<int64_t>(bytes.size());
            want_rows.emplace_back();
            for (int64_t d = 0; d < run.dim; ++d) {
              want_rows.back().push_back(ReferenceValue(type, bytes.data(), d));
            }
          }
        }
        for (const Path path : {Path::kOp, Path::kPlain}) {
          for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &one, &four}) {
            SCOPED_TRACE(path == Path::kOp ? "op" : "plain");
            const std::vector<std::byte> got = Encode(batch, coding, path, pool);
            const auto [at, unused] = std::mismatch(got.begin(), got.end(), want.begin());
            EXPECT_TRUE(got == want) << "first difference at byte " << at - got.begin();
            EXPECT_TRUE(Bits(Decode(batch, type, want, path, pool)) == Bits(want_rows));
          }
        }
      }
    }
  }
}

TEST(RowCodecTest, AnyBytesDecodeAlikeOnEveryPath) {
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest, 1);
    Batch batch = DrawBatch(seed);
    for (const Type type : kTypes) {
      SCOPED_TRACE(std::string(ExchangeTypeName(type)));
      std::vector<std::byte> bytes(static_cast<size_t>(batch.Place(type)));
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next32());
      EXPECT_TRUE(Bits(Decode(batch, type, bytes)) ==
                  Bits(Decode(batch, type, bytes, Path::kPlain)));
    }
  }
}

TEST(RowCodecTest, FindRunNeverFindsAnEmptyOne) {
  internal::RunChunk chunk;
  const RowRun runs[] = {{5, 5, 1}, {5, 8, 1}, {8, 8, 1}, {8, 9, 1}, {9, 9, 1}};
  chunk.size = 5;
  std::copy(std::begin(runs), std::end(runs), chunk.v);
  for (int64_t i = 5; i < 9; ++i) EXPECT_EQ(internal::FindRange(chunk, i), i < 8 ? 1 : 3) << i;
}

TEST(RowCodecTest, OneWideRunTakesWholeWarps) {
  internal::RunChunk chunk;
  chunk.size = 3;
  chunk.v[0] = {0, 1, 32};
  chunk.v[1] = {1, 1, 33};  // empty
  chunk.v[2] = {1, 2, 1};
  EXPECT_EQ(internal::CodecThreadsPerRow(chunk), internal::kCodecThreadsNarrow);
  chunk.v[1].end = chunk.v[2].begin = 2;
  EXPECT_EQ(internal::CodecThreadsPerRow(chunk), internal::kCodecThreadsWide);
}

#if defined(__x86_64__)
TEST(RowCodecTest, NansAreTheProcessorsOwn) {
  const float numbers[] = {0.0f, -1.5f, kInf, -kInf, kMax};
  std::vector<std::pair<float, float>> pairs = {{kInf, -kInf}, {-kInf, kInf}, {0, kInf}};
  for (const uint32_t bits : {0x7fc00000u, 0xffc12345u, 0x7f800001u, 0xff812345u}) {
    for (const float x : numbers) {
      pairs.emplace_back(std::bit_cast<float>(bits), x);
      pairs.emplace_back(x, std::bit_cast<float>(bits));
    }
  }
  for (const auto& pair : pairs) {
    // Volatile: the processor shall add, not the compiler.
    const volatile float a = pair.first;
    const volatile float b = pair.second;
    EXPECT_EQ(std::bit_cast<uint32_t>(internal::SumWithNan(a, b)), std::bit_cast<uint32_t>(a + b))
        << a << " + " << b;
    EXPECT_EQ(std::bit_cast<uint32_t>(internal::ProductWithNan(a, b)),
              std::bit_cast<uint32_t>(a * b))
        << a << " * " << b;
    EXPECT_EQ(std::isnan(internal::NanOf(a, b)), true);
  }
}
#endif

TEST(RowCodecTest, EveryHalfComesBackAndNeighboursAreSplitInTheMiddle) {
  for (const Type type : {Type::kFp16, Type::kBf16}) {
    SCOPED_TRACE(std::string(ExchangeTypeName(type)));
    std::vector<float> halves;
    std::vector<float> below;
    std::vector<float> middle;
    std::vector<float> above;
    std::vector<float> next;
    for (uint16_t h = 0; h < LargestHalf(type); ++h) {
      const double low = HalfValue(type, h);
      const double high = HalfValue(type, h + 1);
      // Between the subnormals of bf16 are those of fp32; all middles are floats.
      const auto m = static_cast<float>((low + high) / 2);
      halves.push_back(static_cast<float>(low));
      below.push_back(std::nextafter(m, 0.0f));
      middle.push_back(m);
      above.push_back(std::nextafter(m, kInf));
      next.push_back(static_cast<float>(high));
    }
    EXPECT_EQ(RoundTrip(halves, {type, Rounding::kNearest}), halves);
    EXPECT_EQ(RoundTrip(halves, {type, Rounding::kStochastic}), halves);
    EXPECT_EQ(RoundTrip(below, {type, Rounding::kNearest}), halves);
    EXPECT_EQ(RoundTrip(above, {type, Rounding::kNearest}), next);
    const std::vector<float> split = RoundTrip(middle, {type, Rounding::kNearest});
    for (size_t h = 0; h < split.size(); ++h) {
      EXPECT_EQ(split[h], h % 2 == 0 ? halves[h] : next[h]) << h;
    }
  }
}

TEST(RowCodecTest, ErrorsAreBounded) {
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<float> row;
    for (int d = 0; d < 500; ++d) {
      row.push_back(Signed(
          random, std::ldexp(1 + random.Uniform(), static_cast<int>(random.Below(28)) - 14)));
    }
    for (const Rounding rounding : kRoundings) {
      const bool nearest = rounding == Rounding::kNearest;
      const std::vector<float> fp16 = RoundTrip(row, {Type::kFp16, rounding, {.seed = seed}});
      const std::vector<float> bf16 = RoundTrip(row, {Type::kBf16, rounding, {.seed = seed}});
      const std::vector<float> int8 = RoundTrip(row, {Type::kInt8, rounding, {.seed = seed}});
      const float scale = ReferenceScale(row);
      for (size_t d = 0; d < row.size(); ++d) {
        const float x = std::fabs(row[d]);
        EXPECT_LE(std::fabs(fp16[d] - row[d]), x * (nearest ? 0x1p-11f : 0x1p-10f));
        EXPECT_LE(std::fabs(bf16[d] - row[d]), x * (nearest ? 0x1p-8f : 0x1p-7f));
        // x / scale and q * scale are rounded too, each to 2^-24 of at most 127 scales.
        EXPECT_LE(std::fabs(int8[d] - row[d]), scale * (nearest ? 0.50002f : 1.00002f));
      }
    }
  }
}

// Where x lies between the two numbers that may stand for it.
struct Step {
  double below;
  double size;
};
Step StepOf(Type type, double x, double scale) {
  if (type == Type::kInt8) return {std::floor(x / scale) * scale, scale};
  const uint16_t below = HalfBelow(type, std::fabs(x));
  const double low = HalfValue(type, below);
  const double size = HalfValue(type, below + 1) - low;
  return {x < 0 ? -low - size : low, size};
}

TEST(RowCodecTest, StochasticRoundingIsUnbiasedOverKeysAndSteps) {
  constexpr int kKeys = 64;
  constexpr int kSteps = 64;
  RandomStream random(1, RandomPurpose::kTest);
  std::vector<float> row;
  for (int d = 0; d < 48; ++d) row.push_back(random.Normal());
  for (int d = 0; d < 16; ++d) row.push_back(1e-5f * random.Normal());  // fp16's subnormals
  row.push_back(0x1.8p-30f);                                            // hardly ever up
  const float scale = ReferenceScale(row);
  Batch batch;
  batch.Add(static_cast<int32_t>(row.size()), 4, std::vector(kKeys, row));
  for (const Type type : {Type::kFp16, Type::kBf16, Type::kInt8}) {
    SCOPED_TRACE(std::string(ExchangeTypeName(type)));
    std::vector<double> sums(row.size());
    for (uint32_t step = 0; step < kSteps; ++step) {
      const Coding coding = {type, Rounding::kStochastic, {.seed = 3, .step = step}};
      for (const auto& decoded : Decode(batch, type, Encode(batch, coding))) {
        for (size_t d = 0; d < row.size(); ++d) sums[d] += decoded[d];
      }
    }
    double chi_square = 0;
    int moved = 0;
    for (size_t d = 0; d < row.size(); ++d) {
      const double x = row[d];
      const Step step = StepOf(type, x, scale);
      const double p = std::max(0.0, (x - step.below) / step.size);
      const double sigma = step.size * std::sqrt(std::max(0.0, p * (1 - p)) / (kKeys * kSteps));
      // A few units in the last place of decoded int8, and below one expected step up in all.
      const double exact = std::fabs(x) * 1e-6 + step.size / (kKeys * kSteps);
      const double off = sums[d] / (kKeys * kSteps) - x;
      EXPECT_LE(std::fabs(off), 4 * sigma + exact) << "column " << d << ": " << x;
      if (p > 0.01 && p < 0.99) {
        chi_square += off * off / (sigma * sigma);
        ++moved;
      }
    }
    // Neither further off nor nearer than chance has it: a chi-square of `moved` degrees within
    // four of its standard deviations.
    EXPECT_GE(moved, 30);
    EXPECT_NEAR(chi_square, moved, 4 * std::sqrt(2.0 * moved));
  }
}

TEST(RowCodecTest, StochasticRoundingDependsOnEveryPartOfItsKeyAndOnNothingElse) {
  RandomStream random(1, RandomPurpose::kTest);
  std::vector<std::vector<float>> rows(300, std::vector<float>(40));
  for (auto& row : rows) {
    for (float& x : row) x = random.Normal();
  }
  for (const Type type : {Type::kFp16, Type::kBf16, Type::kInt8}) {
    SCOPED_TRACE(std::string(ExchangeTypeName(type)));
    const auto encode = [&](const StochasticKey& key, uint32_t table, uint64_t row_key,
                            const std::vector<float>& row) {
      Batch batch;
      batch.Add(static_cast<int32_t>(row.size()), table, {row});
      batch.keys[0] = row_key;
      return Encode(batch, {type, Rounding::kStochastic, key});
    };
    constexpr uint64_t kHigh = uint64_t{1} << 32;
    std::set<std::vector<std::byte>> all;
    size_t count = 0;
    for (const StochasticKey& key :
         {StochasticKey{.seed = 5, .step = 6, .direction = 0, .rank = 7},
          StochasticKey{.seed = 4, .step = 6, .direction = 0, .rank = 7},
          StochasticKey{.seed = 5 + kHigh, .step = 6, .direction = 0, .rank = 7},
          StochasticKey{.seed = 5, .step = 7, .direction = 0, .rank = 7},
          StochasticKey{.seed = 5, .step = 0xffffffff, .direction = 0, .rank = 7},
          StochasticKey{.seed = 5, .step = 6, .direction = 1, .rank = 7},
          StochasticKey{.seed = 5, .step = 6, .direction = 0, .rank = 6},
          StochasticKey{.seed = 5, .step = 7, .direction = 0, .rank = 6}}) {
      for (const uint32_t table : {0u, 1u, 0x80000000u}) {
        for (const uint64_t row_key : {uint64_t{0}, uint64_t{1}, kHigh, ~uint64_t{0}}) {
          all.insert(encode(key, table, row_key, rows[0]));
          EXPECT_EQ(all.size(), ++count);
          EXPECT_TRUE(all.contains(encode(key, table, row_key, rows[0])));
        }
      }
    }
    // By column too: a row of equal numbers, but for the one that sets int8's scale.
    std::vector<float> equal(200, 0.3f);
    equal[199] = 100;
    const std::vector<float> split = RoundTrip(equal, {type, Rounding::kStochastic, {.seed = 5}});
    EXPECT_EQ(std::set<float>(split.begin(), split.end() - 1).size(), 2);
    // A wider row begins with the columns of a narrower one.
    std::vector<float> narrow = equal;
    std::rotate(narrow.begin(), narrow.end() - 1, narrow.end());
    std::vector<float> wide = narrow;
    narrow.resize(17);
    const std::vector<float> wide_split = RoundTrip(wide, {type, Rounding::kStochastic});
    EXPECT_EQ(RoundTrip(narrow, {type, Rounding::kStochastic}),
              std::vector<float>(wide_split.begin(), wide_split.begin() + 17));

    // Order, runs and threads: the same rows the other way round, in runs of 1 to 7, on a pool.
    const Coding coding = {type, Rounding::kStochastic, {.seed = 5, .step = 1}};
    Batch forward;
    forward.Add(40, 3, rows);
    const auto want = Decode(forward, type, Encode(forward, coding));
    Batch backward;
    for (auto i = static_cast<int64_t>(rows.size()); i > 0;) {
      const int64_t n = std::min<int64_t>(i, 1 + static_cast<int64_t>(random.Below(7)));
      std::vector<std::vector<float>> some;
      for (int64_t k = 1; k <= n; ++k) some.push_back(rows[i - k]);
      backward.Add(40, 3, some);
      i -= n;
    }
    backward.keys.assign(forward.keys.rbegin(), forward.keys.rend());
    ThreadPool four(4);
    auto got = Decode(backward, type, Encode(backward, coding, Path::kOp, &four));
    std::reverse(got.begin(), got.end());
    EXPECT_TRUE(got == want);
  }
}

TEST(RowCodecTest, ErrorFeedbackLosesNothingInTheLongRun) {
  constexpr int kSteps = 300;
  for (const Rounding rounding : kRoundings) {
    for (const Type type : kTypes) {
      SCOPED_TRACE(Name(type, rounding));
      RandomStream random(1, RandomPurpose::kTest);
      Batch batch;
      for (const int32_t dim : {1, 19, 64}) batch.Add(dim, 0, {std::vector<float>(dim)});
      std::vector<std::vector<float>> residual = batch.rows;
      std::vector<std::vector<double>> sent;
      for (const auto& row : batch.rows) sent.emplace_back(row.size());
      std::vector<std::vector<double>> received = sent;
      for (uint32_t step = 0; step < kSteps; ++step) {
        for (auto& row : batch.rows) {
          // Always the same tiny number in column 1: without feedback it never arrives.
          for (size_t d = 0; d < row.size(); ++d) row[d] = d == 1 ? 0x1p-27f : random.Normal();
        }
        const Coding coding = {type, rounding, {.seed = 1, .step = step}};
        const auto bytes = Encode(batch, coding, Path::kOp, nullptr, &residual);
        const auto decoded = Decode(batch, type, bytes);
        for (size_t i = 0; i < sent.size(); ++i) {
          for (size_t d = 0; d < sent[i].size(); ++d) {
            sent[i][d] += batch.rows[i][d];
            received[i][d] += decoded[i][d];
          }
        }
      }
      for (size_t i = 0; i < sent.size(); ++i) {
        for (size_t d = 0; d < sent[i].size(); ++d) {
          // What is on its way, but for the rounding of 300 sums in fp32.
          EXPECT_NEAR(received[i][d] + residual[i][d], sent[i][d], d == 1 ? 1e-9 : 1e-5);
          // That is less than a step of the type: of numbers up to 8, or of int8's largest scale.
          const double step = type == Type::kFp32   ? 0
                              : type == Type::kFp16 ? 0x1p-8
                              : type == Type::kBf16 ? 0x1p-5
                                                    : 8.0 / 127;
          EXPECT_LE(std::fabs(residual[i][d]), step) << "row " << i << " column " << d;
        }
      }
      if (type == Type::kFp16 && rounding == Rounding::kNearest) {
        EXPECT_EQ(RoundTrip({1, 0x1p-27f}, {type, rounding})[1], 0);
        EXPECT_GE(received[1][1], kSteps * 0x1p-27 - 0x1p-24);
      }
    }
  }
}

TEST(RowCodecTest, ErrorFeedbackHasTheSameBitsOnEveryPath) {
  ThreadPool four(4);
  Batch batch = DrawBatch(1);
  std::vector<std::vector<float>> start;
  RandomStream random(2, RandomPurpose::kTest);
  for (const auto& row : batch.rows) {
    const bool has_none = start.size() % 4 == 3;
    start.emplace_back();
    for (size_t d = 0; d < row.size() && !has_none; ++d) {
      start.back().push_back(0.01f * random.Normal());
    }
  }
  for (const Type type : kTypes) {
    for (const Rounding rounding : kRoundings) {
      SCOPED_TRACE(Name(type, rounding));
      const Coding coding = {type, rounding, {.seed = 8}};
      // The same rows with the residual already in them.
      Batch sums = batch;
      for (size_t i = 0; i < sums.rows.size(); ++i) {
        for (size_t d = 0; d < start[i].size(); ++d) sums.rows[i][d] += start[i][d];
      }
      const std::vector<std::byte> want = Encode(sums, coding);
      const auto decoded = Decode(sums, type, want);
      std::vector<std::vector<float>> lost;
      for (size_t i = 0; i < sums.rows.size(); ++i) {
        lost.emplace_back();
        for (size_t d = 0; d < start[i].size(); ++d) {
          const float x = sums.rows[i][d] - decoded[i][d];
          lost.back().push_back(std::isfinite(x) ? x : 0);
        }
      }
      for (const Path path : {Path::kOp, Path::kPlain}) {
        for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &four}) {
          std::vector<std::vector<float>> residual = start;
          EXPECT_TRUE(Encode(batch, coding, path, pool, &residual) == want);
          EXPECT_TRUE(residual == lost);
        }
      }
    }
  }
}

TEST(RowCodecTest, AddsToTheRows) {
  ThreadPool four(4);
  for (const Type type : kTypes) {
    SCOPED_TRACE(std::string(ExchangeTypeName(type)));
    RandomStream random(1, RandomPurpose::kTest);
    Batch batch;
    std::vector<std::vector<float>> before;
    for (const int32_t dim : {1, 7, 8, 9, 64}) {
      std::vector<std::vector<float>> rows(60, std::vector<float>(dim));
      for (auto& row : rows) {
        before.emplace_back();
        for (float& x : row) {
          x = random.Normal();
          before.back().push_back(random.Normal());
        }
      }
      batch.Add(dim, 0, rows);
    }
    const std::vector<std::byte> bytes = Encode(batch, {type});
    auto want = Decode(batch, type, bytes);
    for (size_t i = 0; i < want.size(); ++i) {
      for (size_t d = 0; d < want[i].size(); ++d) want[i][d] = before[i][d] + want[i][d];
    }
    for (const Path path : {Path::kOp, Path::kPlain}) {
      EXPECT_TRUE(Decode(batch, type, bytes, path, nullptr, &before) == want);
      EXPECT_TRUE(Decode(batch, type, bytes, path, &four, &before) == want);
    }
  }
}

// Each of four ranks asks for some rows; what the third one adds has not travelled.
TEST(RowCodecTest, SumsAreThoseOfDecodingRankByRank) {
  constexpr size_t kRanks = 4;
  ThreadPool four(4);
  for (const Type type : kTypes) {
    SCOPED_TRACE(std::string(ExchangeTypeName(type)));
    RandomStream random(5, RandomPurpose::kTest);
    std::vector<RowRun> sums;
    int64_t num_sums = 0;
    for (const int32_t dim : {1, 7, 8, 9, 64}) {
      sums.push_back({num_sums, num_sums + 300, dim});
      num_sums += 300;
    }
    std::vector<std::vector<float>> want(static_cast<size_t>(num_sums));
    for (const RowRun& run : sums) {
      for (int64_t s = run.begin; s < run.end; ++s) want[s].assign(run.dim, 0.0f);
    }
    std::vector<std::vector<float>> floats;  // [contributions]
    std::vector<std::vector<std::byte>> messages(kRanks);
    std::vector<const std::byte*> rows;
    std::vector<int32_t> sum_of;
    SumEncodedRowsArgs args = {.type = type, .runs = sums};
    floats.reserve(kRanks * want.size());
    for (size_t p = 0; p < kRanks; ++p) {
      std::vector<RowRun> runs;
      std::vector<const float*> from;
      std::vector<float*> to;
      int64_t bytes = 0;
      if (p == 2) args.plain_begin = std::ssize(rows);
      for (const RowRun& run : sums) {
        RowRun of_rank = {std::ssize(from), std::ssize(from), run.dim, 0, bytes};
        for (int64_t s = run.begin; s < run.end; ++s) {
          if (random.Below(3) == 0) continue;
          floats.emplace_back();
          // A lone -0 becomes 0, as it does when it is added to zeros.
          for (int32_t d = 0; d < run.dim; ++d) {
            floats.back().push_back(s % 50 == 0 ? -0.0f : random.Normal());
          }
          from.push_back(floats.back().data());
          to.push_back(want[s].data());
          sum_of.push_back(static_cast<int32_t>(s));
          ++of_rank.end;
        }
        bytes += (of_rank.end - of_rank.begin) * ExchangeRowBytes(type, run.dim);
        runs.push_back(of_rank);
      }
      messages[p].resize(static_cast<size_t>(bytes));
      HOTROW_ASSERT_OK(EncodeRows(
          {}, {.type = type, .runs = runs, .rows = from.data(), .out = messages[p].data()}));
      for (const RowRun& run : runs) {
        for (int64_t i = run.begin; i < run.end; ++i) {
          rows.push_back(messages[p].data() + run.byte_offset +
                         (i - run.begin) * ExchangeRowBytes(type, run.dim));
          if (p != 2) continue;
          rows.back() = reinterpret_cast<const std::byte*>(from[i]);
          for (int32_t d = 0; d < run.dim; ++d) to[i][d] += from[i][d];
        }
      }
      if (p == 2) {
        args.plain_end = std::ssize(rows);
        continue;
      }
      HOTROW_ASSERT_OK(DecodeRows(
          {},
          {.type = type, .runs = runs, .in = messages[p].data(), .rows = to.data(), .add = true}));
    }
    std::vector<int64_t> offsets(want.size() + 1);
    std::vector<int32_t> order(rows.size());
    HOTROW_ASSERT_OK(Partition({}, {.part = sum_of.data(),
                                    .num_items = std::ssize(sum_of),
                                    .num_parts = num_sums,
                                    .offsets = offsets.data(),
                                    .order = order.data()}));
    std::vector<std::vector<float>> got = want;
    std::vector<float*> got_rows;
    for (std::vector<float>& row : got) {
      std::fill(row.begin(), row.end(), 77.0f);
      got_rows.push_back(row.data());
    }
    args.offsets = offsets.data();
    args.order = order.data();
    args.rows = rows.data();
    args.sums = got_rows.data();
    HOTROW_ASSERT_OK(SumEncodedRows({.pool = &four}, args));
    for (size_t s = 0; s < want.size(); ++s) {
      ASSERT_EQ(std::memcmp(got[s].data(), want[s].data(), 4 * want[s].size()), 0) << s;
    }
  }
  SumEncodedRowsArgs bad = {.plain_begin = 3, .plain_end = 2};
  EXPECT_THAT(SumEncodedRows({}, bad),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("plain_end")));
  bad = {.runs = std::vector<RowRun>{}};
  HOTROW_EXPECT_OK(SumEncodedRows({}, bad));
  const std::vector<RowRun> one = {{0, 1, 4}};
  bad.runs = one;
  EXPECT_THAT(SumEncodedRows({}, bad),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("offsets must not be null")));
}

TEST(RowCodecTest, WhatIsNotFiniteIsNotHidden) {
  for (const Rounding rounding : kRoundings) {
    for (const Type type : {Type::kFp32, Type::kFp16, Type::kBf16}) {
      SCOPED_TRACE(Name(type, rounding));
      const std::vector<float> y = RoundTrip({1, kInf, -kInf, kNaN, -kNaN, 2}, {type, rounding});
      EXPECT_EQ(y[0], 1);
      EXPECT_EQ(y[1], kInf);
      EXPECT_EQ(y[2], -kInf);
      EXPECT_TRUE(std::isnan(y[3]));
      EXPECT_TRUE(std::isnan(y[4]));
      EXPECT_EQ(y[5], 2);
      // A NaN whose payload is in the bits that are cut.
      EXPECT_TRUE(std::isnan(RoundTrip({std::bit_cast<float>(0x7f800001)}, {type, rounding})[0]));
    }
    for (const float bad : {kInf, -kInf, kNaN, -kNaN}) {
      for (size_t at = 0; at < 19; ++at) {
        std::vector<float> row(19, 1.0f);
        row[at] = bad;
        for (const float y : RoundTrip(row, {Type::kInt8, rounding})) EXPECT_TRUE(std::isnan(y));
      }
    }
    // And leaves no trace in the residual.
    for (const Type type : kTypes) {
      Batch batch;
      batch.Add(3, 0, {{1, kInf, kNaN}});
      std::vector<std::vector<float>> residual = {{0.25f, 0.25f, 0.25f}};
      Encode(batch, {type, rounding}, Path::kOp, nullptr, &residual);
      EXPECT_THAT(residual[0], Each(0)) << Name(type, rounding);
    }
  }
}

TEST(RowCodecTest, FiniteNumbersStayFinite) {
  for (const Rounding rounding : kRoundings) {
    EXPECT_EQ(RoundTrip({65504, 65519, 65520, -65536, 1e30f, -kMax}, {Type::kFp16, rounding}),
              (std::vector<float>{65504, 65504, 65504, -65504, 65504, -65504}));
    EXPECT_EQ(RoundTrip({0x1.fep127f, kMax, -kMax}, {Type::kBf16, rounding}),
              (std::vector<float>{0x1.fep127f, 0x1.fep127f, -0x1.fep127f}));
    // All numbers near the largest: the scale is rounded up for some and down for others.
    for (uint32_t ulps = 0; ulps < 300; ++ulps) {
      const auto largest = std::bit_cast<float>(std::bit_cast<uint32_t>(kMax) - ulps);
      const std::vector<float> y =
          RoundTrip({largest, -largest, largest / 3, 1}, {Type::kInt8, rounding});
      const float scale = largest / 127;
      EXPECT_LE(largest - y[0], scale * 2e-5f) << ulps;
      EXPECT_TRUE(std::isfinite(y[0])) << ulps;
      EXPECT_EQ(y[1], -y[0]);
      EXPECT_NEAR(y[2] / scale, 127.0 / 3, 1);
    }
  }
}

TEST(RowCodecTest, Int8OfTinyRowsIsAsGoodAsTheirScaleAllows) {
  for (uint32_t units = 1; units < 2000; ++units) {  // of the smallest number
    const float largest = std::bit_cast<float>(units);
    const std::vector<float> row = {largest, -largest, std::bit_cast<float>(units / 2),
                                    std::bit_cast<float>(units / 3), 0};
    const std::vector<float> y = RoundTrip(row, {Type::kInt8});
    const float scale = static_cast<float>((units + 126) / 127) * kDenormMin;
    for (size_t d = 0; d < row.size(); ++d) {
      EXPECT_LE(2 * std::fabs(y[d] - row[d]), scale) << units << " column " << d;
    }
  }
}

TEST(RowCodecTest, ZerosAreZeros) {
  for (const Rounding rounding : kRoundings) {
    for (const Type type : kTypes) {
      SCOPED_TRACE(Name(type, rounding));
      const std::vector<float> y = RoundTrip({0, -0.0f, 0, 0, 0, 0, 0, -0.0f, 0}, {type, rounding});
      EXPECT_THAT(y, Each(0));
      EXPECT_EQ(std::signbit(y[1]), type != Type::kInt8);
      // Beside other numbers too.
      EXPECT_THAT(RoundTrip({0, 1}, {type, rounding})[0], 0);
    }
  }
}

TEST(RowCodecTest, RowsAreUnpaddedAndInt8IsAboutAQuarter) {
  for (const int32_t dim : {1, 3, 64, 1000, 1 << 30}) {
    EXPECT_EQ(ExchangeRowBytes(Type::kFp32, dim), int64_t{4} * dim);
    EXPECT_EQ(ExchangeRowBytes(Type::kFp16, dim), int64_t{2} * dim);
    EXPECT_EQ(ExchangeRowBytes(Type::kBf16, dim), int64_t{2} * dim);
    EXPECT_EQ(ExchangeRowBytes(Type::kInt8, dim), int64_t{4} + dim);
  }
  EXPECT_LE(static_cast<double>(ExchangeRowBytes(Type::kInt8, 64)),
            0.27 * static_cast<double>(ExchangeRowBytes(Type::kFp32, 64)));
}

TEST(RowCodecTest, NamesParseBack) {
  for (const Type type : kTypes) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const Type parsed, ParseExchangeType(ExchangeTypeName(type)));
    EXPECT_EQ(parsed, type);
  }
  for (const Rounding rounding : kRoundings) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const Rounding parsed,
                                ParseExchangeRounding(ExchangeRoundingName(rounding)));
    EXPECT_EQ(parsed, rounding);
  }
  EXPECT_THAT(ParseExchangeType("float"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "unknown exchange type \"float\"; expected one of fp32, fp16, bf16, int8"));
  EXPECT_THAT(ParseExchangeRounding(""),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "unknown exchange rounding \"\"; expected one of nearest, stochastic"));
}

TEST(RowCodecTest, NothingToDoNeedsNoMemory) {
  const RowRun empty = {0, 0, 8, 0, 0};
  for (const Type type : kTypes) {
    for (const auto& runs : {std::span<const RowRun>(), std::span(&empty, 1)}) {
      HOTROW_EXPECT_OK(
          EncodeRows({}, {.type = type, .rounding = Rounding::kStochastic, .runs = runs}));
      HOTROW_EXPECT_OK(DecodeRows({}, {.type = type, .runs = runs}));
    }
  }
}

TEST(RowCodecTest, ValidateNamesTheField) {
  float row[2] = {1, 2};
  float* const rows[2] = {row, row + 1};
  const uint64_t keys[2] = {1, 2};
  std::byte bytes[8];
  const RowRun runs[2] = {{0, 1, 1, 0, 0}, {1, 2, 1, 0, 4}};
  const EncodeRowsArgs encode = {.runs = runs, .keys = keys, .rows = rows, .out = bytes};
  const DecodeRowsArgs decode = {.runs = runs, .in = bytes, .rows = rows};
  HOTROW_EXPECT_OK(EncodeRows({}, encode));
  HOTROW_EXPECT_OK(DecodeRows({}, decode));

  const auto invalid = [](const std::string& message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, message);
  };
  const auto expect_run = [&](int which, const RowRun& run, const std::string& message) {
    RowRun bad[2] = {runs[0], runs[1]};
    bad[which] = run;
    EncodeRowsArgs e = encode;
    e.runs = bad;
    EXPECT_THAT(EncodeRows({}, e), invalid("EncodeRows: " + message));
    DecodeRowsArgs d = decode;
    d.runs = bad;
    EXPECT_THAT(DecodeRows({}, d), invalid("DecodeRows: " + message));
  };
  expect_run(0, {1, 1, 1, 0, 0}, "runs[0].begin must be 0, got 1");
  expect_run(1, {2, 3, 1, 0, 0}, "runs[1].begin must be 1, the end of the run before, got 2");
  expect_run(1, {0, 2, 1, 0, 0}, "runs[1].begin must be 1, the end of the run before, got 0");
  expect_run(1, {1, 0, 1, 0, 0}, "runs[1].end must be >= begin = 1, got 0");
  expect_run(0, {0, 1, 0, 0, 0}, "runs[0].dim must lie in [1, 2^30], got 0");
  expect_run(0, {0, 1, (1 << 30) + 1, 0, 0}, "runs[0].dim must lie in [1, 2^30], got 1073741825");
  expect_run(1, {1, 2, 1, 0, -1}, "runs[1].byte_offset must be >= 0, got -1");

  const auto expect_encode = [&](const std::function<void(EncodeRowsArgs&)>& spoil,
                                 const std::string& message) {
    EncodeRowsArgs args = encode;
    spoil(args);
    EXPECT_THAT(EncodeRows({}, args), invalid(message));
  };
  expect_encode([](EncodeRowsArgs& a) { a.rows = nullptr; }, "EncodeRows: rows must not be null");
  expect_encode([](EncodeRowsArgs& a) { a.out = nullptr; }, "EncodeRows: out must not be null");
  const auto stochastic = [](EncodeRowsArgs& a) {
    a.type = Type::kFp16;
    a.rounding = Rounding::kStochastic;
  };
  expect_encode(
      [&](EncodeRowsArgs& a) {
        stochastic(a);
        a.keys = nullptr;
      },
      "EncodeRows: keys must not be null with stochastic rounding");
  expect_encode(
      [&](EncodeRowsArgs& a) {
        stochastic(a);
        a.random.direction = 2;
      },
      "EncodeRows: random.direction must be 0 (forward) or 1 (backward), got 2");
  // Where nothing is random, keys are not asked for.
  EncodeRowsArgs args = encode;
  args.keys = nullptr;
  args.random.direction = 2;
  HOTROW_EXPECT_OK(EncodeRows({}, args));
  args.rounding = Rounding::kStochastic;
  HOTROW_EXPECT_OK(EncodeRows({}, args));  // fp32

  DecodeRowsArgs no_in = decode;
  no_in.in = nullptr;
  EXPECT_THAT(DecodeRows({}, no_in), invalid("DecodeRows: in must not be null"));
  DecodeRowsArgs no_rows = decode;
  no_rows.rows = nullptr;
  EXPECT_THAT(DecodeRows({}, no_rows), invalid("DecodeRows: rows must not be null"));
}

#if !HOTROW_HAVE_CUDA
TEST(RowCodecTest, CudaIsUnimplementedWithoutIt) {
  float row = 1;
  float* const rows[1] = {&row};
  std::byte bytes[4];
  const RowRun run = {0, 1, 1, 0, 0};
  const ExecContext ctx = {.device = Device::kCuda};
  EXPECT_THAT(EncodeRows(ctx, {.runs = {&run, 1}, .rows = rows, .out = bytes}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CUDA")));
  EXPECT_THAT(DecodeRows(ctx, {.runs = {&run, 1}, .in = bytes, .rows = rows}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CUDA")));
}
#endif

}  // namespace
}  // namespace hotrow
