#include <cstring>
#include <vector>

#include "base/device_memory.h"
#include "base/philox.h"
#include "ops/rows/gather.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

constexpr std::byte kGuard{0xee};

std::vector<std::byte> RandomBytes(RandomStream& random, int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Next32());
  return bytes;
}

// Rows packed at a stride, and rows that lie anywhere in some memory.
struct Shape {
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  int64_t stride = 0;      // of the packed rows
  int64_t front = 0;       // where the first packed row begins
  int64_t misaligned = 0;  // added to the places of the others, of every row or of every third
};

// -1 stands for null. Distinct, each with room for a row.
std::vector<int64_t> DrawPlaces(RandomStream& random, const Shape& shape) {
  const int64_t room = (shape.row_bytes + 15) / 16 * 16 + 16;
  std::vector<int64_t> places;
  for (int64_t i = 0; i < shape.num_rows; ++i) {
    const int64_t off = random.Below(2) == 0 ? shape.misaligned : 0;
    places.push_back(random.Below(5) == 0 ? -1 : (shape.num_rows - 1 - i) * room + off);
  }
  return places;
}

template <typename Byte>
std::vector<Byte*> Pointers(Byte* memory, const std::vector<int64_t>& places) {
  std::vector<Byte*> rows;
  for (const int64_t place : places) rows.push_back(place < 0 ? nullptr : memory + place);
  return rows;
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{0, 16, 16}};
  for (const int64_t row_bytes :
       {1, 3, 4, 12, 16, 20, 32, 64, 100, 256, 500, 512, 516, 1000, 4000}) {
    for (const int64_t gap : {0, 1, 4, 16}) {
      for (const int64_t misaligned : {0, 1, 4}) {
        shapes.push_back({201, row_bytes, row_bytes + gap, gap, misaligned});
      }
    }
    shapes.push_back({1, row_bytes, row_bytes});
  }
  shapes.push_back({20'000, 32, 32});
  return shapes;
}

std::string Name(const Shape& s) {
  return testing::PrintToString(
      std::vector<int64_t>{s.num_rows, s.row_bytes, s.stride, s.front, s.misaligned});
}

TEST(GatherRowsCudaTest, AsOnTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(1, RandomPurpose::kTest);
  for (const Shape& s : Shapes()) {
    SCOPED_TRACE(Name(s));
    const std::vector<int64_t> places = DrawPlaces(random, s);
    const std::vector<std::byte> memory = RandomBytes(random, s.num_rows * (s.row_bytes + 32) + 32);
    std::vector<std::byte> want(static_cast<size_t>(s.front + s.num_rows * s.stride + 16), kGuard);
    const std::vector<const std::byte*> rows = Pointers(memory.data(), places);
    HOTROW_ASSERT_OK(
        GatherRows({}, {rows.data(), s.num_rows, s.row_bytes, want.data() + s.front, s.stride}));
    DeviceArray<std::byte> on_device(memory);
    DeviceArray<const std::byte*> device_rows(
        Pointers(static_cast<const std::byte*>(on_device.data()), places));
    for (const test::Enqueue enqueue : test::kBothWays) {
      if (test::kEmulatedGpu && enqueue == test::Enqueue::kAsGraph && s.misaligned > 0) continue;
      DeviceArray<std::byte> output(std::vector<std::byte>(want.size(), kGuard));
      test::RunOnGpu(enqueue, [&](const ExecContext& ctx) {
        return GatherRows(
            ctx, {device_rows.data(), s.num_rows, s.row_bytes, output.data() + s.front, s.stride});
      });
      EXPECT_TRUE(output.ToHost() == want);
    }
  }
}

TEST(GatherRowsCudaTest, ReadsPageLockedHostMemory) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(1, RandomPurpose::kTest);
  const Shape s = {1000, 512, 512};
  const std::vector<int64_t> places = DrawPlaces(random, s);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto memory,
                              PinnedBuffer<std::byte>::Create(s.num_rows * (s.row_bytes + 32)));
  for (std::byte& b : memory.span()) b = static_cast<std::byte>(random.Next32());
  const std::vector<const std::byte*> rows =
      Pointers(static_cast<const std::byte*>(memory.data()), places);
  std::vector<std::byte> want(static_cast<size_t>(s.num_rows * s.stride));
  HOTROW_ASSERT_OK(GatherRows({}, {rows.data(), s.num_rows, s.row_bytes, want.data(), s.stride}));
  DeviceArray<const std::byte*> device_rows(rows);
  DeviceArray<std::byte> output(want.size());
  test::RunOnGpu(test::Enqueue::kDirectly, [&](const ExecContext& ctx) {
    return GatherRows(ctx, {device_rows.data(), s.num_rows, s.row_bytes, output.data(), s.stride});
  });
  EXPECT_TRUE(output.ToHost() == want);
}

TEST(ScatterRowsCudaTest, AsOnTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(1, RandomPurpose::kTest);
  for (const Shape& s : Shapes()) {
    SCOPED_TRACE(Name(s));
    const std::vector<int64_t> places = DrawPlaces(random, s);
    const std::vector<std::byte> input = RandomBytes(random, s.front + s.num_rows * s.stride + 16);
    std::vector<std::byte> want(static_cast<size_t>(s.num_rows * (s.row_bytes + 32) + 32), kGuard);
    const std::vector<std::byte*> rows = Pointers(want.data(), places);
    HOTROW_ASSERT_OK(
        ScatterRows({}, {input.data() + s.front, s.stride, s.num_rows, s.row_bytes, rows.data()}));
    DeviceArray<std::byte> device_input(input);
    for (const test::Enqueue enqueue : test::kBothWays) {
      if (test::kEmulatedGpu && enqueue == test::Enqueue::kAsGraph && s.misaligned > 0) continue;
      DeviceArray<std::byte> memory(std::vector<std::byte>(want.size(), kGuard));
      DeviceArray<std::byte*> device_rows(Pointers(memory.data(), places));
      test::RunOnGpu(enqueue, [&](const ExecContext& ctx) {
        return ScatterRows(ctx, {device_input.data() + s.front, s.stride, s.num_rows, s.row_bytes,
                                 device_rows.data()});
      });
      EXPECT_TRUE(memory.ToHost() == want);
    }
  }
}

}  // namespace
}  // namespace hotrow
