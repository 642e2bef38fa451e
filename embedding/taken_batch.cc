#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <type_traits>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/host_registration.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "embedding/score_sums_impl.h"
#include "embedding/taken_batch_impl.h"

namespace hotrow {
namespace internal {
namespace {

// Unique and Partition number lookups with int32.
constexpr int64_t kMaxLookupsPerBatch = INT32_MAX;
// Ids or bags that a thread takes at a time: 10 us and more of work.
constexpr int64_t kIdsPerTask = 16'384;

// Whether good(begin, end) says so of all parts of [0, n).
bool AllGood(ThreadPool* pool, int64_t n, absl::FunctionRef<bool(int64_t, int64_t)> good) {
  std::atomic<bool> all = true;
  ParallelFor(pool, n, kIdsPerTask, [&](int64_t begin, int64_t end) {
    if (!good(begin, end)) all.store(false, std::memory_order_relaxed);
  });
  return all.load(std::memory_order_relaxed);
}

template <typename Span>
int64_t SizeOf(const Span& span) {
  return std::visit([](const auto& s) { return static_cast<int64_t>(s.size()); }, span);
}

// "feature "x", sample 3" of a bag.
using BagName = absl::FunctionRef<std::string(int64_t bag)>;

// A part of an error; made only for one.
using Text = absl::FunctionRef<std::string()>;

bool HasLengths(const BagSpan& offsets, const BagSpan& lengths, int64_t bags) {
  return SizeOf(offsets) == 0 && (SizeOf(lengths) > 0 || bags == 0);
}

// Where bags go in the pass that checks them.
struct BagCopy {
  int64_t* offsets = nullptr;  // [0]: the lookups before them; gets [1, bags]. Null: nowhere
  bool single = true;          // becomes false where some bag has not one lookup
};

// Whether `offsets` or `lengths` are those of `bags` bags, `shape` of them, with num_values lookups
// in all. Copies them on the way.
absl::Status CheckBags(ThreadPool* pool, const BagSpan& offsets, const BagSpan& lengths,
                       int64_t bags, Text shape, int64_t num_values, BagName name, BagCopy* copy) {
  int64_t* const out = copy->offsets;
  if (SizeOf(offsets) > 0 && SizeOf(lengths) > 0) {
    return absl::InvalidArgumentError("offsets and lengths are both given; leave one of them out");
  }
  if (HasLengths(offsets, lengths, bags)) {
    if (SizeOf(lengths) != bags) {
      return absl::InvalidArgumentError(absl::StrCat("lengths: expected ", shape(), " = ", bags,
                                                     " entries, got ", SizeOf(lengths)));
    }
    return std::visit(
        [&](const auto& own) -> absl::Status {
          int64_t sum = 0;
          for (int64_t i = 0; i < bags; ++i) {
            const int64_t length = own[static_cast<size_t>(i)];
            if (length < 0) {
              return absl::InvalidArgumentError(
                  absl::StrCat("lengths: ", name(i), ": must not be negative, is ", length));
            }
            if (length > num_values - sum) {
              return absl::InvalidArgumentError(
                  absl::StrCat("lengths: with ", name(i),
                               " their sum passes the number of values, ", num_values));
            }
            sum += length;
            if (out != nullptr) out[i + 1] = out[0] + sum;
            copy->single &= length == 1;
          }
          if (sum == num_values) return absl::OkStatus();
          return absl::InvalidArgumentError(absl::StrCat(
              "lengths: their sum must be the number of values, ", num_values, ", is ", sum));
        },
        lengths);
  }
  if (SizeOf(offsets) != bags + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offsets: expected ", shape(), " + 1 = ", bags + 1, " entries, got ", SizeOf(offsets)));
  }
  return std::visit(
      [&](const auto& own) -> absl::Status {
        if (own.front() != 0) {
          return absl::InvalidArgumentError(absl::StrCat(
              "offsets[0] must be 0, is ", own.front(),
              "; of a slice of a longer batch subtract it from all, and give the values behind"));
        }
        const int64_t base = out == nullptr ? 0 : out[0];
        std::atomic<bool> single = own.back() == bags;
        const bool rise = AllGood(pool, bags, [&](int64_t begin, int64_t end) {
          // Without branches: a vector at a time.
          bool good = true;
          int64_t difference = 0;
          for (int64_t i = begin; i < end; ++i) {
            const int64_t here = own[static_cast<size_t>(i)];
            const int64_t next = own[static_cast<size_t>(i) + 1];
            good &= here <= next;
            difference |= here ^ i;
            if (out != nullptr) out[i + 1] = base + next;
          }
          if (difference != 0) single.store(false, std::memory_order_relaxed);
          return good;
        });
        copy->single &= single.load(std::memory_order_relaxed);
        for (size_t i = 0; !rise; ++i) {
          if (own[i + 1] < own[i]) {
            return absl::InvalidArgumentError(absl::StrCat("offsets fall at ",
                                                           name(static_cast<int64_t>(i)), ": ",
                                                           own[i], " then ", own[i + 1]));
          }
        }
        if (own.back() == num_values) return absl::OkStatus();
        return absl::InvalidArgumentError(absl::StrCat(
            "the last offset must be the number of values, ", num_values, ", is ", own.back()));
      },
      offsets);
}

// weights, scores: how many there are.
absl::Status CheckSizes(int64_t num_values, int64_t weights, int64_t scores) {
  if (num_values > kMaxLookupsPerBatch) {
    return absl::InvalidArgumentError(absl::StrCat("values: ", num_values,
                                                   " lookups in one batch; at most ",
                                                   kMaxLookupsPerBatch, ": use a smaller batch"));
  }
  const auto one_each = [num_values](const char* name, int64_t n) -> absl::Status {
    if (n == 0 || n == num_values) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected none or one for each of the ",
                                                   num_values, " values, got ", n));
  };
  HOTROW_RETURN_IF_ERROR(one_each("weights", weights));
  return one_each("scores", scores);
}

absl::Status CheckBatchSize(int64_t batch_size, int64_t max_batch_size) {
  if (batch_size >= 0 && batch_size <= max_batch_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batch_size ", batch_size, ": must lie in [0, ",
                                                 max_batch_size, "] (max_batch_size)"));
}

// The sample that has lookup `at`. offsets: [B + 1] of the bags of one feature, from offsets[0] on.
int64_t SampleOf(std::span<const int64_t> offsets, int64_t at) {
  return std::upper_bound(offsets.begin(), offsets.end() - 1, at) - offsets.begin() - 1;
}

// Whether the table knows the ids of one feature. offsets as above.
template <typename Id>
absl::Status CheckIds(const PlannedFeature& feature, std::span<const Id> ids,
                      std::span<const int64_t> offsets) {
  const auto end = static_cast<uint64_t>(feature.num_embeddings);
  for (size_t j = 0; j < ids.size(); ++j) {
    if (static_cast<uint64_t>(ids[j]) < end) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("feature \"", feature.name, "\", sample ",
                     SampleOf(offsets, offsets.front() + static_cast<int64_t>(j)), ": key ", ids[j],
                     " is not in [0, ", feature.num_embeddings,
                     ") (num_embeddings of its table; 0 there takes any key)"));
  }
  return absl::OkStatus();
}

// kind: "weight" or "score". offsets as above.
absl::Status NotFiniteError(const PlannedFeature& feature, std::span<const float> values,
                            std::span<const int64_t> offsets, const char* kind) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  return absl::InvalidArgumentError(
      absl::StrCat("feature \"", feature.name, "\", sample ",
                   SampleOf(offsets, offsets.front() + (bad - values.begin())), ": its ", kind,
                   " is ", *bad, "; ", kind, "s must be finite"));
}

// Sets the scores of one feature, out[0, lookups): those given, where there are some and its table
// keeps them.
absl::Status PutScores(ThreadPool* pool, const Plan& plan, const PlannedFeature& feature,
                       std::span<const float> scores, std::span<const int64_t> offsets,
                       float* out) {
  if (scores.empty() || !plan.tables[static_cast<size_t>(feature.table)].layout.scored()) {
    std::fill(out, out + (offsets.back() - offsets.front()), static_cast<float>(kNoScore));
    return absl::OkStatus();
  }
  const bool finite = AllGood(pool, std::ssize(scores), [&](int64_t begin, int64_t end) {
    bool good = true;
    for (int64_t j = begin; j < end; ++j) {
      const float score = scores[static_cast<size_t>(j)];
      good &= std::isfinite(score);
      out[j] = score + 0.0f;  // of -0 it is 0
    }
    return good;
  });
  return finite ? absl::OkStatus() : NotFiniteError(feature, scores, offsets, "score");
}

// Whether good(f, begin, end) says so of all lookups [begin, end) of the batch, which are of
// feature f.
bool AllGoodOfFeatures(ThreadPool* pool, const TakenBatch& batch, size_t num_features,
                       absl::FunctionRef<bool(size_t, int64_t, int64_t)> good) {
  return AllGood(pool, batch.offsets.back(), [&](int64_t begin, int64_t end) {
    bool all = true;
    for (size_t f = 0; f < num_features && begin < end; ++f) {
      const int64_t part_end = std::min(end, batch.bags(f).back());
      if (begin >= part_end) continue;
      all &= good(f, begin, part_end);
      begin = part_end;
    }
    return all;
  });
}

template <typename T>
bool MayStay(TakeArrays arrays, const TakenBatch& taken, std::span<const T> array) {
  return arrays == TakeArrays::kInPlace && !array.empty() &&
         IsPageLocked(taken.device(), array.data(), static_cast<int64_t>(array.size_bytes()));
}

// Sets offsets to memory of the batch itself, of which only offsets[0] is written.
int64_t* RoomForOffsets(int64_t num_features, TakenBatch* taken) {
  taken->own_offsets.resize(static_cast<size_t>(num_features * taken->batch_size) + 1);
  taken->own_offsets[0] = 0;
  taken->offsets = taken->own_offsets;
  return taken->own_offsets.data();
}

// The n numbers that arrays of all features have together, where those lie end to end in memory
// that may stay; otherwise an empty one.
template <typename T>
std::span<const T> AsOne(size_t num_features, int64_t n, TakeArrays arrays, const TakenBatch& taken,
                         absl::FunctionRef<std::span<const T>(size_t f)> array_of) {
  std::span<const T> all;
  for (size_t f = 0; f < num_features; ++f) {
    const std::span<const T> array = array_of(f);
    if (array.empty()) continue;
    if (all.empty()) all = array.first(0);
    if (array.data() != all.data() + all.size()) return {};
    all = {all.data(), all.size() + array.size()};
  }
  return std::ssize(all) == n && MayStay(arrays, taken, all) ? all : std::span<const T>();
}

// Empty where they have 32 bits.
std::span<const uint64_t> AsKeys(const IdSpan& ids) {
  return std::visit(
      [](const auto& own) -> std::span<const uint64_t> {
        if constexpr (sizeof(own[0]) != sizeof(uint64_t)) return {};
        return {reinterpret_cast<const uint64_t*>(own.data()), own.size()};
      },
      ids);
}

// No id of 32 bits is negative.
template <typename Id>
uint64_t Key(Id id) {
  return static_cast<uint64_t>(id);
}

using BagsOf = absl::FunctionRef<FeatureBags(size_t f)>;

// In memory of the batch itself, or where they are.
absl::Status TakeIds(const Plan& plan, ThreadPool* pool, BagsOf bags_of, TakeArrays arrays,
                     TakenBatch* taken) {
  const size_t num_features = plan.features.size();
  const int64_t n = taken->offsets.back();
  taken->values = AsOne<uint64_t>(num_features, n, arrays, *taken,
                                  [&](size_t f) { return AsKeys(bags_of(f).values); });
  uint64_t* out = nullptr;
  if (taken->values.empty()) {
    taken->own_values.resize(static_cast<size_t>(n));
    taken->values = taken->own_values;
    out = taken->own_values.data();
  }
  const bool any_key = std::all_of(plan.features.begin(), plan.features.end(),
                                   [](const PlannedFeature& f) { return f.num_embeddings == 0; });
  if (out == nullptr && any_key) return absl::OkStatus();
  const auto known = [&](size_t f, int64_t begin, int64_t end) {
    const auto num_embeddings = static_cast<uint64_t>(plan.features[f].num_embeddings);
    const uint64_t last = num_embeddings == 0 ? UINT64_MAX : num_embeddings - 1;
    return std::visit(
        [&](const auto& ids) {
          const auto* const from = ids.data() + (begin - taken->bags(f).front());
          bool good = true;
          if (out == nullptr) {
            for (int64_t j = 0; j < end - begin; ++j) good &= Key(from[j]) <= last;
            return good;
          }
          for (int64_t j = 0; j < end - begin; ++j) {
            out[begin + j] = Key(from[j]);
            good &= Key(from[j]) <= last;
          }
          return good;
        },
        bags_of(f).values);
  };
  if (AllGoodOfFeatures(pool, *taken, num_features, known)) return absl::OkStatus();
  for (size_t f = 0; f < num_features; ++f) {
    HOTROW_RETURN_IF_ERROR(
        std::visit([&](const auto& ids) { return CheckIds(plan.features[f], ids, taken->bags(f)); },
                   bags_of(f).values));
  }
  return absl::InternalError("a wrong id has become right: the batch changes while it is read");
}

// As TakeIds. Those of features without weights are 1.
absl::Status TakeWeights(const Plan& plan, ThreadPool* pool, BagsOf bags_of, TakeArrays arrays,
                         TakenBatch* taken) {
  const size_t num_features = plan.features.size();
  const int64_t n = taken->offsets.back();
  taken->weights =
      AsOne<float>(num_features, n, arrays, *taken, [&](size_t f) { return bags_of(f).weights; });
  float* out = nullptr;
  if (taken->weights.empty()) {
    taken->own_weights.resize(static_cast<size_t>(n));
    taken->weights = taken->own_weights;
    out = taken->own_weights.data();
  }
  const auto finite = [&](size_t f, int64_t begin, int64_t end) {
    const std::span<const float> weights = bags_of(f).weights;
    if (weights.empty()) {
      std::fill(out + begin, out + end, 1.0f);
      return true;
    }
    const float* const from = weights.data() + (begin - taken->bags(f).front());
    bool good = true;
    for (int64_t j = 0; j < end - begin; ++j) good &= std::isfinite(from[j]);
    if (out != nullptr) std::copy_n(from, end - begin, out + begin);
    return good;
  };
  if (AllGoodOfFeatures(pool, *taken, num_features, finite)) return absl::OkStatus();
  for (size_t f = 0; f < num_features; ++f) {
    const std::span<const float> weights = bags_of(f).weights;
    if (!std::all_of(weights.begin(), weights.end(), [](float x) { return std::isfinite(x); })) {
      return NotFiniteError(plan.features[f], weights, taken->bags(f), "weight");
    }
  }
  return absl::InternalError("a wrong weight has become right: the batch changes while it is read");
}

// All but the bags, which taken->offsets has.
absl::Status TakeLookups(const Plan& plan, ThreadPool* pool, BagsOf bags_of, bool weighted,
                         bool scored, TakeArrays arrays, TakenBatch* taken) {
  HOTROW_RETURN_IF_ERROR(TakeIds(plan, pool, bags_of, arrays, taken));
  taken->weights = {};
  if (weighted) HOTROW_RETURN_IF_ERROR(TakeWeights(plan, pool, bags_of, arrays, taken));
  taken->scores.resize(scored ? taken->values.size() : 0);
  for (size_t f = 0; scored && f < plan.features.size(); ++f) {
    const std::span<const int64_t> bags = taken->bags(f);
    HOTROW_RETURN_IF_ERROR(PutScores(pool, plan, plan.features[f], bags_of(f).scores, bags,
                                     taken->scores.data() + bags.front()));
  }
  return absl::OkStatus();
}

template <typename Views>
absl::Status CheckShapesOf(const Plan& plan, const TakenBatch& batch, const Views& views,
                           const char* what) {
  if (plan.pooled_dim > 0 || views.pooled.cols > 0) {
    HOTROW_RETURN_IF_ERROR(CheckShape(views.pooled, batch.batch_size, plan.pooled_dim,
                                      [what] { return absl::StrCat(what, ".pooled"); }));
  }
  if (views.unpooled.size() != static_cast<size_t>(plan.num_unpooled)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ".unpooled: expected one view for each of the ", plan.num_unpooled,
                     " unpooled features, got ", views.unpooled.size()));
  }
  if (plan.num_unpooled == 0) return absl::OkStatus();
  for (size_t f = 0; f < plan.features.size(); ++f) {
    const PlannedFeature& feature = plan.features[f];
    if (feature.unpooled_index < 0) continue;
    const std::span<const int64_t> bags = batch.bags(f);
    HOTROW_RETURN_IF_ERROR(CheckShape(views.unpooled[static_cast<size_t>(feature.unpooled_index)],
                                      bags.back() - bags.front(), feature.dim, [&] {
                                        return absl::StrCat(what, ".unpooled[",
                                                            feature.unpooled_index, "], feature \"",
                                                            feature.name, "\"");
                                      }));
  }
  return absl::OkStatus();
}

// A negative id of 32 bits would be one key where its sign is extended, as -1 of int64, and another
// where its bits are taken, as in files of criteo-npy. So it is none.
absl::Status CheckNarrowIds(ThreadPool* pool, const IdSpan& ids) {
  const auto* const narrow = std::get_if<std::span<const int32_t>>(&ids);
  if (narrow == nullptr) return absl::OkStatus();
  const bool good = AllGood(pool, std::ssize(*narrow), [&](int64_t begin, int64_t end) {
    int32_t signs = 0;  // negative once an id was
    for (int64_t i = begin; i < end; ++i) signs |= (*narrow)[static_cast<size_t>(i)];
    return signs >= 0;
  });
  if (good) return absl::OkStatus();
  const auto bad = std::ranges::find_if(*narrow, [](int32_t id) { return id < 0; });
  return absl::InvalidArgumentError(absl::StrCat(
      "values[", bad - narrow->begin(), "] is ", *bad,
      ": ids of 32 bits must not be negative; give it as int64, or where the data have its bits "
      "without sign (criteo-npy) as uint64, ",
      static_cast<uint32_t>(*bad)));
}

// Without num_embeddings. name: of a feature.
absl::Status CheckBatch(ThreadPool* pool, const JaggedBatch& batch, int64_t num_features,
                        absl::FunctionRef<const std::string&(int64_t feature)> name,
                        BagCopy* copy) {
  const int64_t num_values = SizeOf(batch.values);
  HOTROW_RETURN_IF_ERROR(
      CheckSizes(num_values, std::ssize(batch.weights), std::ssize(batch.scores)));
  HOTROW_RETURN_IF_ERROR(CheckNarrowIds(pool, batch.values));
  return CheckBags(
      pool, batch.offsets, batch.lengths, num_features * batch.batch_size,
      [&] { return absl::StrCat(num_features, " features x ", batch.batch_size, " samples"); },
      num_values,
      [&](int64_t bag) {
        return absl::StrCat("feature \"", name(bag / batch.batch_size), "\", sample ",
                            bag % batch.batch_size);
      },
      copy);
}

// Without num_embeddings. bags_of, name: of a feature.
absl::Status CheckFeatures(ThreadPool* pool, int64_t batch_size, size_t num_features,
                           absl::FunctionRef<const FeatureBags&(size_t feature)> bags_of,
                           absl::FunctionRef<const std::string&(size_t feature)> name,
                           BagCopy* copy) {
  int64_t lookups = 0;
  for (size_t f = 0; f < num_features; ++f) {
    const FeatureBags& bags = bags_of(f);
    const int64_t num_values = SizeOf(bags.values);
    absl::Status good = CheckSizes(lookups + num_values, 0, 0);
    if (good.ok()) {
      good = CheckSizes(num_values, std::ssize(bags.weights), std::ssize(bags.scores));
    }
    if (good.ok()) good = CheckNarrowIds(pool, bags.values);
    if (good.ok()) {
      good = CheckBags(
          pool, bags.offsets, bags.lengths, batch_size,
          [&] { return absl::StrCat(batch_size, " samples"); }, num_values,
          [](int64_t sample) { return absl::StrCat("sample ", sample); }, copy);
      if (copy->offsets != nullptr) copy->offsets += batch_size;
    }
    if (!good.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("feature \"", name(f), "\": ", good.message()));
    }
    lookups += num_values;
  }
  return absl::OkStatus();
}

absl::Status CheckSamples(int64_t batch_size) {
  if (batch_size >= 0 && batch_size <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batch_size must lie in [0, ", INT32_MAX, "], is ", batch_size));
}

}  // namespace

absl::Status CheckShape(MatrixView<const float> view, int64_t rows, int64_t cols,
                        absl::FunctionRef<std::string()> name) {
  // Nothing has no width.
  if (rows == 0 && view.rows == 0) return absl::OkStatus();
  if (view.rows != rows || view.cols != cols) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": expected [", rows, ", ", cols,
                                                   "], got [", view.rows, ", ", view.cols, "]"));
  }
  if (view.stride < cols) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": a stride of ", view.stride,
                                                   " is less than its ", cols, " columns"));
  }
  if (view.data == nullptr && rows * cols > 0) {
    return absl::InvalidArgumentError(absl::StrCat(name(), " is null"));
  }
  return absl::OkStatus();
}

absl::Status TakeBatch(const Plan& plan, int64_t max_batch_size, ThreadPool* pool,
                       const JaggedBatch& batch, TakeArrays arrays, TakenBatch* taken) {
  const int64_t num_features = std::ssize(plan.features);
  HOTROW_RETURN_IF_ERROR(CheckBatchSize(batch.batch_size, max_batch_size));
  taken->batch_size = batch.batch_size;
  const auto* const offsets = std::get_if<std::span<const int64_t>>(&batch.offsets);
  const bool stay = offsets != nullptr && MayStay(arrays, *taken, *offsets);
  BagCopy bags_copy = {.offsets = stay ? nullptr : RoomForOffsets(num_features, taken)};
  HOTROW_RETURN_IF_ERROR(CheckBatch(
      pool, batch, num_features,
      [&plan](int64_t f) -> const std::string& {
        return plan.features[static_cast<size_t>(f)].name;
      },
      &bags_copy));
  if (stay) taken->offsets = *offsets;
  taken->single_lookups = bags_copy.single;
  if (!plan.scores && !batch.scores.empty()) {
    return absl::InvalidArgumentError(
        "scores: no table keeps any; set TableConfig::score of one, or give none");
  }
  const auto bags_of = [&](size_t f) {
    const std::span<const int64_t> bags = taken->bags(f);
    const auto first = static_cast<size_t>(bags.front());
    const auto n = static_cast<size_t>(bags.back()) - first;
    FeatureBags out;
    std::visit([&](const auto& ids) { out.values = ids.subspan(first, n); }, batch.values);
    if (!batch.weights.empty()) out.weights = batch.weights.subspan(first, n);
    if (!batch.scores.empty()) out.scores = batch.scores.subspan(first, n);
    return out;
  };
  return TakeLookups(plan, pool, bags_of, !batch.weights.empty(), !batch.scores.empty(), arrays,
                     taken);
}

absl::Status TakeBatch(const Plan& plan, int64_t max_batch_size, ThreadPool* pool,
                       const FeatureBatch& batch, std::span<const int32_t> position_of,
                       TakeArrays arrays, TakenBatch* taken) {
  HOTROW_RETURN_IF_ERROR(CheckBatchSize(batch.batch_size, max_batch_size));
  const size_t num_features = plan.features.size();
  if (batch.features.size() != num_features) {
    return absl::InvalidArgumentError(absl::StrCat("features: expected all ", num_features,
                                                   " of the collection, got ",
                                                   batch.features.size()));
  }
  if (!position_of.empty() && position_of.size() != num_features) {
    return absl::InvalidArgumentError("order: it is that of another collection");
  }
  const bool weighted = std::any_of(batch.features.begin(), batch.features.end(),
                                    [](const FeatureBags& bags) { return !bags.weights.empty(); });
  const bool scored = std::any_of(batch.features.begin(), batch.features.end(),
                                  [](const FeatureBags& bags) { return !bags.scores.empty(); });
  const auto bags_of = [&](size_t f) -> const FeatureBags& {
    return batch.features[position_of.empty() ? f : static_cast<size_t>(position_of[f])];
  };
  taken->batch_size = batch.batch_size;
  // Each feature's begin at 0, those of a TakenBatch do not.
  BagCopy bags_copy = {.offsets = RoomForOffsets(std::ssize(plan.features), taken)};
  HOTROW_RETURN_IF_ERROR(CheckFeatures(
      pool, batch.batch_size, num_features, bags_of,
      [&plan](size_t f) -> const std::string& { return plan.features[f].name; }, &bags_copy));
  taken->single_lookups = bags_copy.single;
  for (size_t f = 0; f < num_features; ++f) {
    const PlannedFeature& feature = plan.features[f];
    if (!bags_of(f).scores.empty() &&
        !plan.tables[static_cast<size_t>(feature.table)].layout.scored()) {
      return absl::InvalidArgumentError(
          absl::StrCat("feature \"", feature.name,
                       "\": scores: its table keeps none; set TableConfig::score, or give none"));
    }
  }
  return TakeLookups(plan, pool, bags_of, weighted, scored, arrays, taken);
}

absl::Status CheckShapes(const Plan& plan, const TakenBatch& batch, const EmbeddingOutput& output) {
  return CheckShapesOf(plan, batch, output, "EmbeddingOutput");
}

absl::Status CheckShapes(const Plan& plan, const TakenBatch& batch,
                         const EmbeddingGradient& gradient) {
  return CheckShapesOf(plan, batch, gradient, "EmbeddingGradient");
}

}  // namespace internal

absl::Status JaggedBatch::Validate(std::span<const std::string> feature_names) const {
  HOTROW_RETURN_IF_ERROR(internal::CheckSamples(batch_size));
  internal::BagCopy none;
  return internal::CheckBatch(
      /*pool=*/nullptr, *this, std::ssize(feature_names),
      [&](int64_t f) -> const std::string& { return feature_names[static_cast<size_t>(f)]; },
      &none);
}

absl::Status FeatureBatch::Validate(std::span<const std::string> feature_names) const {
  HOTROW_RETURN_IF_ERROR(internal::CheckSamples(batch_size));
  if (features.size() != feature_names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("features: expected all ", feature_names.size(), ", got ", features.size()));
  }
  internal::BagCopy none;
  return internal::CheckFeatures(
      /*pool=*/nullptr, batch_size, features.size(),
      [&](size_t f) -> const FeatureBags& { return features[f]; },
      [&](size_t f) -> const std::string& { return feature_names[f]; }, &none);
}

}  // namespace hotrow
