#ifndef HOTROW_TESTS_CAPI_DRAWN_CALLS_H_
#define HOTROW_TESTS_CAPI_DRAWN_CALLS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hotrow/hotrow.h"

// What the tests that draw calls of the C interface share: chance, arguments that are wrong in any
// place, and what must be true of each call. What a caller promises stays true: arrays are as long
// as the call says. Buffers have their exact size on the heap, so that AddressSanitizer sees a byte
// too many.

namespace hotrow::test {

inline constexpr int64_t kDrawnSamplesMax = 4;
inline constexpr int64_t kDrawnKeys = 40;

class DrawnCalls {
 public:
  int64_t good() const { return good_; }  // calls that were OK

 protected:
  explicit DrawnCalls(uint64_t seed, std::span<const uint8_t> drawn = {})
      : random_(seed), drawn_(drawn) {}

  template <typename T>
  struct Array {
    std::unique_ptr<T[]> data;
    int64_t size = 0;
  };

  // ---- Chance ----
  int64_t Below(int64_t n) {
    if (drawn_.empty()) return std::uniform_int_distribution<int64_t>(0, n - 1)(random_);
    const int64_t out = drawn_.front() % n;
    drawn_ = drawn_.subspan(1);
    return out;
  }
  bool Rarely() { return Below(12) == 0; }
  int64_t Odd() {  // a number that a count had better not be
    static constexpr std::array<int64_t, 8> kOdd = {0,         -1,        1,         7,
                                                    INT32_MAX, INT64_MAX, INT64_MIN, 4097};
    return kOdd[static_cast<size_t>(Below(std::ssize(kOdd)))];
  }
  int64_t OddOr(int64_t value) { return Rarely() ? Odd() : value; }
  int64_t SmallOddOr(int64_t value) { return Rarely() ? Below(6) - 1 : value; }
  template <typename T>
  T* Null(T* pointer) {
    return Rarely() ? nullptr : pointer;
  }

  hotrow_status Check(hotrow_status status) {
    if (status == HOTROW_OK) {
      ++good_;
    } else {
      EXPECT_STRNE(hotrow_status_name(status), "?") << status;
      EXPECT_NE(status, HOTROW_INTERNAL) << hotrow_error_message();
      EXPECT_STRNE(hotrow_error_message(), "");
    }
    return status;
  }

  // Calls a function that gives a text, with a buffer of any size.
  template <typename Function>
  void Text(const Function& function) {
    uint64_t needed = 0;
    const auto size = static_cast<uint64_t>(Below(3) == 0 ? Below(64) : 8192);
    const auto buffer = std::make_unique<char[]>(size);
    const hotrow_status status = Check(function(buffer.get(), size, Null(&needed)));
    if (status == HOTROW_OK) {
      EXPECT_NE(std::memchr(buffer.get(), 0, size), nullptr);
    }
    Check(function(nullptr, Rarely() ? 100 : 0, &needed));
  }

  // A batch and what it lies in.
  struct Batch {
    hotrow_batch batch = {};
    std::vector<hotrow_bags> bags;
    std::vector<const float*> scores;  // as many, or none
    std::vector<Array<char>> memory;
    std::vector<int64_t> lookups;  // of each feature
  };

  void* Bytes(Batch* out, int64_t count, int64_t width) {
    const int64_t bytes = std::max<int64_t>(count, 0) * width;
    out->memory.push_back({std::make_unique<char[]>(static_cast<size_t>(bytes)), bytes});
    return out->memory.back().data.get();
  }

  // good: nothing is wrong with it.
  hotrow_bags Bags(Batch* out, int64_t num_bags, bool good) {
    hotrow_bags bags = {};
    std::vector<int64_t> lengths;
    for (int64_t b = 0; b < num_bags; ++b) {
      lengths.push_back(Below(3));
      bags.num_values += lengths.back();
    }
    out->lookups.push_back(bags.num_values);
    if (!good && Rarely() && num_bags > 0) {
      lengths[static_cast<size_t>(Below(num_bags))] = Odd();
    }
    if (!good && Rarely()) bags.num_values = Below(9);
    bags.values_type = HOTROW_UINT64;
    bags.bags_type = Below(2) == 0 ? HOTROW_INT64 : HOTROW_INT32;
    auto* const values = static_cast<uint64_t*>(Bytes(out, bags.num_values, 8));
    for (int64_t i = 0; i < bags.num_values; ++i)
      values[i] = static_cast<uint64_t>(Below(kDrawnKeys));
    bags.values = values;
    const bool offsets = Below(2) == 0;
    int64_t sum = 0;
    const int64_t width = bags.bags_type == HOTROW_INT64 ? 8 : 4;
    auto* const bounds = static_cast<char*>(Bytes(out, num_bags + (offsets ? 1 : 0), width));
    for (int64_t b = 0; b < num_bags + (offsets ? 1 : 0); ++b) {
      const int64_t length = b < num_bags ? lengths[static_cast<size_t>(b)] : 0;
      const int64_t number = offsets ? sum : length;
      const auto narrow = static_cast<int32_t>(number);
      std::memcpy(bounds + b * width, width == 8 ? static_cast<const void*>(&number) : &narrow,
                  static_cast<size_t>(width));
      sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(length));
    }
    (offsets ? bags.offsets : bags.lengths) = bounds;
    if (Below(4) == 0) {
      auto* const weights = static_cast<float*>(Bytes(out, bags.num_values, 4));
      std::fill_n(weights, bags.num_values, 0.5f);
      bags.weights = weights;
    }
    if (good || !Rarely()) return bags;
    switch (Below(6)) {
      case 0:
        bags.values = nullptr;
        break;
      case 1:
        bags.offsets = bags.lengths = nullptr;
        break;
      case 2:
        bags.values_type = static_cast<int32_t>(Below(7)) - 1;
        if (bags.values_type == HOTROW_INT64) bags.values_type = HOTROW_INT32;  // half of it
        break;
      case 3:
        bags.bags_type = bags.bags_type == HOTROW_INT64 ? HOTROW_INT32 : HOTROW_FLOAT32;
        break;
      case 4:
        bags.num_values = -1 - Below(3);
        break;
      default:
        bags.values = static_cast<const char*>(bags.values) + 1;
        bags.num_values = 0;
    }
    return bags;
  }

  std::unique_ptr<Batch> MakeBatch(int64_t num_features, bool good) {
    auto out = std::make_unique<Batch>();
    out->batch.struct_size = sizeof(hotrow_batch);
    out->batch.batch_size = Below(kDrawnSamplesMax + (good ? 1 : 2));
    out->batch.num_features = num_features;
    for (int64_t f = 0; f < num_features; ++f) {
      out->bags.push_back(Bags(out.get(), out->batch.batch_size, good));
    }
    if (!good && Below(4) == 0) {  // all features in one array
      out->bags = {Bags(out.get(), num_features * out->batch.batch_size, good)};
      out->batch.num_features = 0;
    }
    if (!good && Below(4) == 0) {
      for (const hotrow_bags& bags : out->bags) {
        auto* const scores = static_cast<float*>(Bytes(out.get(), bags.num_values, 4));
        std::fill_n(scores, std::max<int64_t>(bags.num_values, 0), Rarely() ? NAN : 0.5f);
        out->scores.push_back(Below(2) == 0 ? scores : nullptr);
      }
      out->batch.scores = out->scores.data();
    }
    out->batch.bags = good ? out->bags.data() : Null(out->bags.data());
    if (!good && Rarely()) out->batch.struct_size = static_cast<uint64_t>(Below(16));
    // More features than there are bags would be a promise that is broken, if there were as many.
    if (!good && Rarely()) out->batch.num_features = num_features + 1;
    if (!good && Rarely()) out->batch.batch_size = Below(2) == 0 ? -1 : INT64_MAX / 2;
    return out;
  }

  struct Matrices {
    std::vector<std::unique_ptr<float[]>> memory;
    hotrow_matrix pooled = {};
    std::vector<hotrow_matrix> unpooled;
    const hotrow_matrix* pooled_or_null = nullptr;
    int64_t num_unpooled = 0;
  };

  hotrow_matrix Matrix(Matrices* out, int64_t rows, int64_t cols, bool good) {
    if (!good) rows = SmallOddOr(rows);
    if (!good) cols = SmallOddOr(cols);
    hotrow_matrix matrix = {};
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.stride = cols + Below(3);
    matrix.type = HOTROW_FLOAT32;
    const int64_t floats = rows > 0 && cols > 0 ? (rows - 1) * matrix.stride + cols : int64_t{0};
    out->memory.push_back(std::make_unique<float[]>(static_cast<size_t>(floats)));
    std::fill_n(out->memory.back().get(), floats, 0.25f);
    matrix.data = out->memory.back().get();
    if (!good && Rarely()) matrix.data = nullptr;
    if (!good && Rarely()) matrix.stride = cols - 1;
    if (!good && Rarely()) matrix.type = static_cast<int32_t>(Below(5));
    if (!good && Rarely()) matrix.reserved = 1;
    return matrix;
  }

  std::mt19937_64 random_;
  std::span<const uint8_t> drawn_;  // what libFuzzer draws; then `random_` does
  int64_t good_ = 0;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_CAPI_DRAWN_CALLS_H_
