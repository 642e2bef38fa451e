#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/rows/row_codec.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;
using Type = ExchangeType;
using Rounding = ExchangeRounding;

constexpr Type kTypes[] = {Type::kFp32, Type::kFp16, Type::kBf16, Type::kInt8};
constexpr Rounding kRoundings[] = {Rounding::kNearest, Rounding::kStochastic};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::byte kGuard{0xee};

// Numbers of the kinds that matter: as weights are, of every magnitude, half-way between two
// halves, at the borders of a type, subnormal.
float DrawFinite(RandomStream& random, uint64_t kind) {
  static constexpr float kBorders[] = {
      0,        65504,       65519,       65520,     0x1p-14f,  0x1p-24f,       0x1p-25f,
      0x1p-26f, 0x1.fep127f, 0x1.ffp127f, 0x1p-126f, 0x1p-149f, 0x1.fffffep127f};
  const float sign = random.Below(2) == 0 ? 1.0f : -1.0f;
  switch (kind) {
    case 0:
      return 0.05f * random.Normal();
    case 1: {
      const float x = std::bit_cast<float>(random.Next32());
      return std::isfinite(x) ? x : 1;
    }
    case 2:  // the middle of two values of bf16, or of fp16 where it has them
      return std::bit_cast<float>((random.Next32() & 0x7fff0000) % 0x7f000000 |
                                  (random.Below(2) == 0 ? 0x8000 : 0x1000)) *
             sign;
    case 3:
      return sign * kBorders[random.Below(std::size(kBorders))];
    case 4:
      return sign * std::bit_cast<float>(static_cast<uint32_t>(random.Below(1 << 20)));
    default:
      return sign * 0;
  }
}
constexpr uint64_t kKinds = 6;

// Rows of many widths in one piece of memory, each beginning 0 to 3 floats after the one before has
// ended.
struct Problem {
  std::vector<RowRun> runs;
  std::vector<uint64_t> keys;
  std::vector<int64_t> places;
  std::vector<float> memory;
  int64_t out_bytes = 0;
};

// Runs of up to `dim_max` columns, some empty; every sixth row has numbers that are none.
Problem Draw(uint64_t seed, Type type, const std::vector<int32_t>& dims, int64_t byte_gap) {
  RandomStream random(seed, RandomPurpose::kTest);
  Problem p;
  p.out_bytes = byte_gap;
  for (const int32_t dim : dims) {
    const auto begin = static_cast<int64_t>(p.keys.size());
    for (uint64_t n = random.Below(4) == 0 ? 0 : 1 + random.Below(12); n > 0; --n) {
      p.keys.push_back(p.keys.size() % 7 == 0 ? ~uint64_t{0} : p.keys.size() * 0x9e3779b97f4a7c15);
      p.memory.resize(p.memory.size() + random.Below(4), 77.0f);
      p.places.push_back(static_cast<int64_t>(p.memory.size()));
      const uint64_t kind = random.Below(kKinds + 1);
      for (int32_t d = 0; d < dim; ++d) {
        p.memory.push_back(DrawFinite(random, kind < kKinds ? kind : random.Below(kKinds)));
      }
      static constexpr uint32_t kNotFinite[] = {0x7f800000, 0xff800000, 0x7fc00000,
                                                0xffc12345, 0x7f800001, 0xff812345};
      if (random.Below(6) == 0) {
        p.memory[static_cast<size_t>(p.places.back()) + random.Below(static_cast<uint64_t>(dim))] =
            std::bit_cast<float>(kNotFinite[random.Below(std::size(kNotFinite))]);
      }
    }
    p.runs.push_back({begin, static_cast<int64_t>(p.keys.size()), dim,
                      static_cast<uint32_t>(random.Below(5)), p.out_bytes});
    p.out_bytes += (p.runs.back().end - begin) * ExchangeRowBytes(type, dim) + byte_gap;
  }
  return p;
}

// Narrow rows alone, wide ones among them, and more runs than a launch takes.
std::vector<std::vector<int32_t>> AllDims() {
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 150; ++i) many.push_back(1 + i % 40);
  return {{1, 3, 7, 8, 16, 31, 32}, {1, 3, 7, 33, 64, 100, 127, 128, 129, 1000}, many};
}

template <typename Float>
std::vector<Float*> Pointers(Float* memory, const std::vector<int64_t>& places) {
  std::vector<Float*> rows;
  for (const int64_t place : places) rows.push_back(place < 0 ? nullptr : memory + place);
  return rows;
}

template <typename T>
void ExpectSameBytes(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0)
        << "the first difference in " << what << " is at " << i;
  }
}

enum class Feedback { kOff, kOn };

void ExpectEncodesAsOnTheCpu(const Problem& p, Type type, Rounding rounding, Feedback feedback,
                             test::Enqueue enqueue) {
  // Residuals without NaNs, so that no sum has two; every fifth row has none.
  RandomStream random(9, RandomPurpose::kTest);
  std::vector<float> want_residuals(p.memory.size());
  for (float& x : want_residuals) {
    x = random.Below(40) == 0 ? kInf : DrawFinite(random, random.Below(kKinds));
  }
  std::vector<int64_t> residual_places = p.places;
  for (size_t i = 0; i < residual_places.size(); i += 5) residual_places[i] = -1;
  DeviceArray<float> residuals(want_residuals);
  DeviceArray<float*> device_residual_rows(Pointers(residuals.data(), residual_places));
  const std::vector<float*> residual_rows = Pointers(want_residuals.data(), residual_places);
  const std::vector<const float*> rows = Pointers(p.memory.data(), p.places);
  std::vector<std::byte> want(static_cast<size_t>(p.out_bytes), kGuard);
  EncodeRowsArgs args = {.type = type,
                         .rounding = rounding,
                         .random = {.seed = 3, .step = 7, .direction = 1, .rank = 2},
                         .runs = p.runs,
                         .keys = p.keys.data(),
                         .rows = rows.data(),
                         .out = want.data()};
  if (feedback == Feedback::kOn) args.residual = residual_rows.data();
  HOTROW_ASSERT_OK(EncodeRows({}, args));

  DeviceArray<uint64_t> keys(p.keys);
  DeviceArray<float> memory(p.memory);
  DeviceArray<const float*> device_rows(
      Pointers(static_cast<const float*>(memory.data()), p.places));
  DeviceArray<std::byte> out(std::vector<std::byte>(want.size(), kGuard));
  args.keys = rounding == Rounding::kStochastic ? keys.data() : nullptr;
  args.rows = device_rows.data();
  args.out = out.data();
  if (feedback == Feedback::kOn) args.residual = device_residual_rows.data();
  test::RunOnGpu(enqueue, [&](const ExecContext& ctx) { return EncodeRows(ctx, args); });
  ExpectSameBytes(out.ToHost(), want, "the bytes");
  ExpectSameBytes(residuals.ToHost(), want_residuals, "the residuals");
}

TEST(RowCodecCudaTest, EncodesAsOnTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(2, 1))) {
    for (const Type type : kTypes) {
      for (const Rounding rounding : kRoundings) {
        for (const int64_t byte_gap : {0, 1, 4}) {
          for (const std::vector<int32_t>& dims : AllDims()) {
            for (const Feedback feedback : {Feedback::kOff, Feedback::kOn}) {
              // Emulated: each with every rounding and gap, not with each pair.
              const bool even = (feedback == Feedback::kOn) == (rounding == kRoundings[0]);
              if (test::kEmulatedGpu && even != (byte_gap == 1)) continue;
              SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed << " "
                                              << std::string(ExchangeTypeName(type)) << " "
                                              << std::string(ExchangeRoundingName(rounding))
                                              << ", gap " << byte_gap << ", " << dims.size()
                                              << " runs, feedback " << (feedback == Feedback::kOn));
              ExpectEncodesAsOnTheCpu(
                  Draw(seed, type, dims, byte_gap), type, rounding, feedback,
                  byte_gap == 4 ? test::Enqueue::kAsGraph : test::Enqueue::kDirectly);
            }
          }
        }
      }
    }
  }
}

void ExpectDecodesAsOnTheCpu(const Problem& p, Type type, bool add, uint64_t seed,
                             test::Enqueue enqueue) {
  RandomStream random(seed, RandomPurpose::kTest, 1);
  // Any bytes mean something.
  std::vector<std::byte> in(static_cast<size_t>(p.out_bytes));
  for (std::byte& b : in) b = static_cast<std::byte>(random.Next32());
  // Without NaNs, so that no sum has two.
  std::vector<float> want(p.memory.size());
  for (float& x : want)
    x = random.Below(40) == 0 ? -kInf : DrawFinite(random, random.Below(kKinds));
  DeviceArray<std::byte> device_in(in);
  DeviceArray<float> memory(want);
  DeviceArray<float*> device_rows(Pointers(memory.data(), p.places));
  const std::vector<float*> rows = Pointers(want.data(), p.places);
  HOTROW_ASSERT_OK(DecodeRows(
      {}, {.type = type, .runs = p.runs, .in = in.data(), .rows = rows.data(), .add = add}));
  test::RunOnGpu(enqueue, [&](const ExecContext& ctx) {
    return DecodeRows(ctx, {.type = type,
                            .runs = p.runs,
                            .in = device_in.data(),
                            .rows = device_rows.data(),
                            .add = add});
  });
  ExpectSameBytes(memory.ToHost(), want, "the rows");
}

TEST(RowCodecCudaTest, DecodesAsOnTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(2, 1))) {
    for (const Type type : kTypes) {
      for (const int64_t byte_gap : {0, 1, 4}) {
        for (const std::vector<int32_t>& dims : AllDims()) {
          for (const bool add : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << "HOTROW_TEST_SEED=" << seed << " "
                         << std::string(ExchangeTypeName(type)) << ", gap " << byte_gap << ", "
                         << dims.size() << " runs, add " << add);
            ExpectDecodesAsOnTheCpu(
                Draw(seed, type, dims, byte_gap), type, add, seed,
                byte_gap == 4 ? test::Enqueue::kAsGraph : test::Enqueue::kDirectly);
          }
        }
      }
    }
  }
}

// Sums of none, one or several of the problem's rows, in any order, some of them plain.
void ExpectSumsAsOnTheCpu(const Problem& p, Type type, uint64_t seed, test::Enqueue enqueue) {
  RandomStream random(seed, RandomPurpose::kTest, 2);
  std::vector<std::byte> in(static_cast<size_t>(p.out_bytes));
  HOTROW_ASSERT_OK(EncodeRows({}, {.type = type,
                                   .runs = p.runs,
                                   .rows = Pointers(p.memory.data(), p.places).data(),
                                   .out = in.data()}));
  const std::vector<float> sums_before(p.memory.size(), 77.0f);
  std::vector<float> want = sums_before;
  DeviceArray<std::byte> device_in(in);
  DeviceArray<float> plain(p.memory);
  DeviceArray<float> sums(sums_before);
  // A sum of a run has rows of that run alone, since they have its dim. The plain ones come
  // after those that are encoded.
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> order;
  std::vector<const std::byte*> rows;
  std::vector<const std::byte*> device_rows;
  const auto num_rows = static_cast<int64_t>(p.places.size());
  for (const RowRun& run : p.runs) {
    for (int64_t i = run.begin; i < run.end; ++i) {
      const int64_t at = run.byte_offset + (i - run.begin) * ExchangeRowBytes(type, run.dim);
      rows.push_back(in.data() + at);
      device_rows.push_back(device_in.data() + at);
      for (uint64_t k = random.Below(5); k > 0; --k) {
        const auto size = static_cast<uint64_t>(run.end - run.begin);
        const auto of = run.begin + static_cast<int64_t>(random.Below(size));
        order.push_back(static_cast<int32_t>(of + (random.Below(3) == 0 ? num_rows : 0)));
      }
      offsets.push_back(std::ssize(order));
    }
  }
  for (const int64_t place : p.places) {
    rows.push_back(reinterpret_cast<const std::byte*>(p.memory.data() + place));
    device_rows.push_back(reinterpret_cast<const std::byte*>(plain.data() + place));
  }
  SumEncodedRowsArgs args = {.type = type,
                             .runs = p.runs,
                             .offsets = offsets.data(),
                             .order = order.data(),
                             .rows = rows.data(),
                             .plain_begin = num_rows,
                             .plain_end = 2 * num_rows};
  const std::vector<float*> want_rows = Pointers(want.data(), p.places);
  args.sums = want_rows.data();
  HOTROW_ASSERT_OK(SumEncodedRows({}, args));
  DeviceArray<int64_t> device_offsets(offsets);
  DeviceArray<int32_t> device_order(order);
  DeviceArray<const std::byte*> device_row_array(device_rows);
  DeviceArray<float*> device_sums(Pointers(sums.data(), p.places));
  args.offsets = device_offsets.data();
  args.order = device_order.data();
  args.rows = device_row_array.data();
  args.sums = device_sums.data();
  test::RunOnGpu(enqueue, [&](const ExecContext& ctx) { return SumEncodedRows(ctx, args); });
  // Where two terms are NaN, which of them is kept is the processor's business.
  std::vector<float> got = sums.ToHost();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) got[i] = want[i];
  }
  ExpectSameBytes(got, want, "the sums");
}

TEST(RowCodecCudaTest, SumsAsOnTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(2, 1))) {
    for (const Type type : kTypes) {
      for (const int64_t byte_gap : {1, 4}) {
        for (const std::vector<int32_t>& dims : AllDims()) {
          SCOPED_TRACE(testing::Message()
                       << "HOTROW_TEST_SEED=" << seed << " " << std::string(ExchangeTypeName(type))
                       << ", gap " << byte_gap << ", " << dims.size() << " runs");
          ExpectSumsAsOnTheCpu(Draw(seed, type, dims, byte_gap), type, seed,
                               byte_gap == 4 ? test::Enqueue::kAsGraph : test::Enqueue::kDirectly);
        }
      }
    }
  }
}

TEST(RowCodecCudaTest, NoRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::vector<RowRun> empty = {{0, 0, 5}, {0, 0, 8}};
  for (const std::span<const RowRun> runs : {std::span<const RowRun>(), std::span(empty)}) {
    test::RunOnGpu(test::Enqueue::kDirectly, [&](const ExecContext& ctx) {
      HOTROW_EXPECT_OK(EncodeRows(ctx, {.runs = runs}));
      HOTROW_EXPECT_OK(SumEncodedRows(ctx, {.runs = runs}));
      return DecodeRows(ctx, {.runs = runs});
    });
  }
}

}  // namespace
}  // namespace hotrow
