#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "comm/run_together.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/score_sums_impl.h"
#include "ops/keys/partition.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow::internal {
namespace {

constexpr uint32_t kForward = 0;  // of StochasticKey::direction
constexpr uint32_t kBackward = 1;
constexpr int64_t kGrain = 1024;
constexpr int64_t kCountBytes = sizeof(uint32_t);
constexpr int64_t kKeyBytes = sizeof(uint64_t);

// Room for `bytes`, somewhat more so that batches of nearly one size do not make it grow each time.
template <typename T>
absl::Status EnsureSize(int64_t size, HostBuffer<T>* buffer) {
  if (buffer->size() >= size) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<T>::Create(size + size / 8, HugePages::kTry));
  return absl::OkStatus();
}

// What all ranks must agree on, as a number.
int64_t Fingerprint(const RowShuffleOptions& options) {
  std::string text = absl::StrCat(options.seed, " ", static_cast<int>(options.forward), " ",
                                  static_cast<int>(options.backward), " ",
                                  static_cast<int>(options.rounding), " ", options.feedback_bytes);
  if (options.sends_lookups) absl::StrAppend(&text, " lookups");
  for (const RowShuffleOptions::Table& table : options.tables) {
    absl::StrAppend(&text, " ", table.table, ":", table.dim, ":",
                    static_cast<int>(table.precision));
    if (table.score != ScoreRule::kNone) {
      absl::StrAppend(&text, " score ", std::string(ScoreRuleName(table.score)));
    }
  }
  return static_cast<int64_t>(HashBytes(0, 0, std::as_bytes(std::span(text))).lo);
}

}  // namespace

RowShuffle::RowShuffle(const RowShuffleOptions& options, std::unique_ptr<Communicator> channel)
    : options_(options),
      rank_(channel->rank()),
      world_size_(channel->world_size()),
      widens_(std::any_of(options.tables.begin(), options.tables.end(),
                          [](const RowShuffleOptions::Table& table) {
                            return table.precision != WeightsPrecision::kFp32;
                          })),
      scores_(std::any_of(
          options.tables.begin(), options.tables.end(),
          [](const RowShuffleOptions::Table& table) { return table.score != ScoreRule::kNone; })),
      lane_(std::move(channel)) {}

absl::StatusOr<std::unique_ptr<RowShuffle>> RowShuffle::Create(
    const RowShuffleOptions& options, std::unique_ptr<Communicator> channel) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> fingerprints,
                          channel->AllGatherSizes(Fingerprint(options)));
  for (size_t p = 0; p < fingerprints.size(); ++p) {
    if (fingerprints[p] == fingerprints[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", p,
        " has other tables, another seed, other exchange types or another budget of feedback than "
        "rank 0; start all ranks with the same options"));
  }
  return std::unique_ptr<RowShuffle>(new RowShuffle(options, std::move(channel)));
}

RowShuffleBytes RowShuffle::bytes() const {
  return {.ids = id_bytes_.load(std::memory_order_relaxed),
          .rows = row_bytes_,
          .gradients = gradient_bytes_,
          .evaluation = evaluation_bytes_.load(std::memory_order_relaxed)};
}

int64_t RowShuffle::OwnBegin(std::span<const int64_t> offsets) const {
  return offsets[rank_ * options_.tables.size()];
}
int64_t RowShuffle::OwnEnd(std::span<const int64_t> offsets) const {
  return offsets[(rank_ + 1) * options_.tables.size()];
}

// --- Keys
// -------------------------------------------------------------------------------------------------------

absl::Status RowShuffle::ExchangeKeys(const ExecContext& ctx, Communicator& channel,
                                      const TableKeys& wanted, bool evaluation, Scratch* scratch,
                                      ShuffledKeys* out) {
  const auto n = static_cast<int64_t>(wanted.keys.size());
  const auto num_tables = static_cast<int64_t>(options_.tables.size());
  const int64_t num_parts = world_size_ * num_tables;

  // By owner, then table. What is wanted comes table by table, and Partition is stable.
  scratch->parts.resize(n);
  for (int64_t t = 0; t < num_tables; ++t) {
    const int64_t first = wanted.table_offsets[t];
    ParallelFor(ctx.pool, wanted.table_offsets[t + 1] - first, kGrain,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = first + begin; i < first + end; ++i) {
                    const int64_t owner = OwnerRank(wanted.keys[i], world_size_);
                    scratch->parts[i] = static_cast<int32_t>(owner * num_tables + t);
                  }
                });
  }
  out->ask_order.resize(n);
  out->ask_offsets.resize(num_parts + 1);
  HOTROW_RETURN_IF_ERROR(Partition(ctx, {.part = scratch->parts.data(),
                                         .num_items = n,
                                         .num_parts = num_parts,
                                         .offsets = out->ask_offsets.data(),
                                         .order = out->ask_order.data()}));
  scratch->values.resize(n);
  ParallelFor(ctx.pool, n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      scratch->values[i] = wanted.keys[out->ask_order[i]].key;
    }
  });

  // How many keys of each table, then the keys.
  scratch->ask_counts.resize(num_parts);
  scratch->asked_counts.resize(num_parts);
  for (int64_t i = 0; i < num_parts; ++i) {
    scratch->ask_counts[i] = static_cast<uint32_t>(out->ask_offsets[i + 1] - out->ask_offsets[i]);
  }
  std::vector<int64_t> send_bytes(world_size_, kCountBytes * num_tables);
  std::vector<int64_t> send_offsets(world_size_);
  for (int64_t p = 0; p < world_size_; ++p) send_offsets[p] = p * kCountBytes * num_tables;
  HOTROW_RETURN_IF_ERROR(channel.AllToAllV({.send = scratch->ask_counts.data(),
                                            .send_bytes = send_bytes,
                                            .send_offsets = send_offsets,
                                            .recv = scratch->asked_counts.data(),
                                            .recv_bytes = send_bytes,
                                            .recv_offsets = send_offsets}));
  out->asked_offsets.resize(num_parts + 1);
  out->asked_offsets[0] = 0;
  for (int64_t i = 0; i < num_parts; ++i) {
    out->asked_offsets[i + 1] = out->asked_offsets[i] + scratch->asked_counts[i];
  }
  const int64_t asked = out->asked_offsets[num_parts];
  if (asked > INT32_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ID shuffle: rank ", rank_, " is asked for ", asked,
                     " rows in one batch, more than 2^31 - 1; use a smaller batch"));
  }
  scratch->asked.resize(asked);
  std::vector<int64_t> recv_bytes(world_size_);
  std::vector<int64_t> recv_offsets(world_size_);
  int64_t sent = 0;
  for (int64_t p = 0; p < world_size_; ++p) {
    const int64_t begin = p * num_tables;
    const int64_t end = begin + num_tables;
    send_offsets[p] = kKeyBytes * out->ask_offsets[begin];
    send_bytes[p] = kKeyBytes * out->ask_offsets[end] - send_offsets[p];
    recv_offsets[p] = kKeyBytes * out->asked_offsets[begin];
    recv_bytes[p] = kKeyBytes * out->asked_offsets[end] - recv_offsets[p];
    if (p != rank_) sent += kCountBytes * num_tables + send_bytes[p];
  }
  HOTROW_RETURN_IF_ERROR(channel.AllToAllV({.send = scratch->values.data(),
                                            .send_bytes = send_bytes,
                                            .send_offsets = send_offsets,
                                            .recv = scratch->asked.data(),
                                            .recv_bytes = recv_bytes,
                                            .recv_offsets = recv_offsets}));
  (evaluation ? evaluation_bytes_ : id_bytes_).fetch_add(sent, std::memory_order_relaxed);

  // Several ranks may ask for one row.
  scratch->segments.clear();
  for (int64_t i = 0; i < num_parts; ++i) {
    scratch->segments.push_back(
        {out->asked_offsets[i], out->asked_offsets[i + 1], static_cast<int32_t>(i % num_tables)});
  }
  TableKeys& served = out->served;
  served.counts.resize(asked);
  served.table_offsets.resize(num_tables + 1);
  out->asked_rows.resize(asked);
  scratch->unique.resize(asked);
  const int64_t workspace_bytes = UniqueWorkspaceBytes(asked);
  HOTROW_RETURN_IF_ERROR(EnsureSize(workspace_bytes, &scratch->workspace));
  HOTROW_RETURN_IF_ERROR(Unique(ctx, {.values = scratch->asked.data(),
                                      .num_values = asked,
                                      .segments = scratch->segments,
                                      .num_tables = static_cast<int32_t>(num_tables),
                                      .unique = scratch->unique.data(),
                                      .table_offsets = served.table_offsets.data(),
                                      .inverse = out->asked_rows.data(),
                                      .counts = served.counts.data(),
                                      .workspace = scratch->workspace.data(),
                                      .workspace_bytes = workspace_bytes}));
  const int64_t num_served = served.table_offsets[num_tables];
  served.counts.resize(num_served);
  served.keys.resize(num_served);
  for (int64_t t = 0; t < num_tables; ++t) {
    for (int64_t i = served.table_offsets[t]; i < served.table_offsets[t + 1]; ++i) {
      served.keys[i] = {scratch->unique[i], options_.tables[t].table};
    }
  }
  if (evaluation) return absl::OkStatus();
  if (options_.sends_lookups) {
    HOTROW_RETURN_IF_ERROR(ExchangeLookups(channel, wanted, scratch, out));
  }
  return scores_ ? ExchangeScores(channel, wanted, scratch, out) : absl::OkStatus();
}

template <typename T>
absl::Status RowShuffle::SendAlong(Communicator& channel, const ShuffledKeys& keys,
                                   absl::FunctionRef<bool(size_t table)> sent,
                                   std::span<const T> wanted, std::vector<T>* ask,
                                   std::vector<T>* asked) {
  const auto ranks = static_cast<size_t>(world_size_);
  const size_t num_tables = options_.tables.size();
  ask->clear();
  std::vector<int64_t> send_bytes(ranks);
  std::vector<int64_t> send_offsets(ranks);
  std::vector<int64_t> recv_bytes(ranks);
  std::vector<int64_t> recv_offsets(ranks);
  constexpr int64_t kBytes = sizeof(T);
  int64_t came = 0;
  int64_t away = 0;
  for (size_t p = 0; p < ranks; ++p) {
    send_offsets[p] = kBytes * std::ssize(*ask);
    recv_offsets[p] = kBytes * came;
    for (size_t part = p * num_tables; part < (p + 1) * num_tables; ++part) {
      if (!sent(part % num_tables)) continue;
      for (int64_t i = keys.ask_offsets[part]; i < keys.ask_offsets[part + 1]; ++i) {
        ask->push_back(wanted[static_cast<size_t>(keys.ask_order[static_cast<size_t>(i)])]);
      }
      came += keys.asked_offsets[part + 1] - keys.asked_offsets[part];
    }
    send_bytes[p] = kBytes * std::ssize(*ask) - send_offsets[p];
    recv_bytes[p] = kBytes * came - recv_offsets[p];
    if (static_cast<int>(p) != rank_) away += send_bytes[p];
  }
  asked->resize(static_cast<size_t>(came));
  HOTROW_RETURN_IF_ERROR(channel.AllToAllV({.send = ask->data(),
                                            .send_bytes = send_bytes,
                                            .send_offsets = send_offsets,
                                            .recv = asked->data(),
                                            .recv_bytes = recv_bytes,
                                            .recv_offsets = recv_offsets}));
  id_bytes_.fetch_add(away, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status RowShuffle::ExchangeScores(Communicator& channel, const TableKeys& wanted,
                                        Scratch* scratch, ShuffledKeys* out) {
  const auto rule_of = [this](size_t table) { return options_.tables[table].score; };
  HOTROW_RETURN_IF_ERROR(SendAlong<double>(
      channel, *out, [&](size_t table) { return rule_of(table) != ScoreRule::kNone; },
      wanted.scores, &scratch->ask_scores, &scratch->asked_scores));
  out->scores.assign(out->served.keys.size(), kNoScore);
  const size_t num_tables = options_.tables.size();
  const double* next = scratch->asked_scores.data();
  for (size_t part = 0; part + 1 < out->asked_offsets.size(); ++part) {
    const ScoreRule rule = rule_of(part % num_tables);
    if (rule == ScoreRule::kNone) continue;
    for (int64_t i = out->asked_offsets[part]; i < out->asked_offsets[part + 1]; ++i) {
      double& score = out->scores[static_cast<size_t>(out->asked_rows[static_cast<size_t>(i)])];
      score = JoinScores(rule, score, *next++);
    }
  }
  return absl::OkStatus();
}

absl::Status RowShuffle::ExchangeLookups(Communicator& channel, const TableKeys& wanted,
                                         Scratch* scratch, ShuffledKeys* out) {
  HOTROW_RETURN_IF_ERROR(SendAlong<int32_t>(
      channel, *out, [](size_t) { return true; }, wanted.counts, &scratch->ask_lookups,
      &scratch->asked_lookups));
  out->lookups.assign(out->served.keys.size(), 0);
  for (size_t i = 0; i < out->asked_rows.size(); ++i) {
    int32_t& lookups = out->lookups[static_cast<size_t>(out->asked_rows[i])];
    lookups = static_cast<int32_t>(
        std::min<int64_t>(int64_t{lookups} + scratch->asked_lookups[i], INT32_MAX));
  }
  return absl::OkStatus();
}

absl::Status RowShuffle::ExchangeKeysInTurn(const ExecContext& ctx, const TableKeys& wanted,
                                            bool evaluation, Scratch* scratch, ShuffledKeys* out) {
  return lane_.Wait(lane_.Start([&](Communicator& channel) {
    return ExchangeKeys(ctx, channel, wanted, evaluation, scratch, out);
  }));
}

// --- Messages
// ---------------------------------------------------------------------------------------------------

absl::Status RowShuffle::Layout(std::span<const int64_t> offsets, ExchangeType type,
                                Message* message) const {
  const auto num_tables = static_cast<int64_t>(options_.tables.size());
  message->runs.clear();
  message->first_run.assign(1, 0);
  message->bytes.assign(world_size_, 0);
  message->offsets.assign(world_size_, 0);
  int64_t row = 0;
  int64_t byte = 0;
  for (int64_t p = 0; p < world_size_; ++p) {
    message->offsets[p] = byte;
    for (int64_t t = 0; p != rank_ && t < num_tables; ++t) {
      const int64_t rows = offsets[p * num_tables + t + 1] - offsets[p * num_tables + t];
      if (rows == 0) continue;
      const RowShuffleOptions::Table& table = options_.tables[t];
      message->runs.push_back({.begin = row,
                               .end = row + rows,
                               .dim = table.dim,
                               .table = table.table,
                               .byte_offset = byte});
      row += rows;
      byte += rows * ExchangeRowBytes(type, table.dim);
    }
    message->bytes[p] = byte - message->offsets[p];
    message->first_run.push_back(static_cast<int64_t>(message->runs.size()));
  }
  message->total_bytes = byte;
  return EnsureSize(byte, &message->data);
}

void RowShuffle::StartExchange() {
  ticket_ = lane_.Start([this](Communicator& channel) {
    return channel.AllToAllV({.send = out_.data.data(),
                              .send_bytes = out_.bytes,
                              .send_offsets = out_.offsets,
                              .recv = in_.data.data(),
                              .recv_bytes = in_.bytes,
                              .recv_offsets = in_.offsets});
  });
}

absl::Status RowShuffle::WaitExchange() {
  const int64_t begin = NowNanos();
  const absl::Status status = lane_.Wait(std::exchange(ticket_, -1));
  wait_ns_ += NowNanos() - begin;
  return status;
}

void RowShuffle::Drop() {
  if (busy()) WaitExchange().IgnoreError();
}

absl::Status RowShuffle::Widen(const ExecContext& ctx, const TableKeys& served,
                               std::span<std::byte* const> served_rows) {
  if (!widens_) return absl::OkStatus();
  const size_t num_tables = options_.tables.size();
  int64_t floats = 0;
  int64_t most_rows = 0;
  for (size_t t = 0; t < num_tables; ++t) {
    const RowShuffleOptions::Table& table = options_.tables[t];
    if (table.precision == WeightsPrecision::kFp32) continue;
    const int64_t rows = served.table_offsets[t + 1] - served.table_offsets[t];
    floats += rows * table.dim;
    most_rows = std::max(most_rows, rows);
  }
  HOTROW_RETURN_IF_ERROR(EnsureSize(floats, &widened_));
  if (std::ssize(widen_lookups_) < most_rows) {
    widen_lookups_.resize(most_rows);
    widen_offsets_.resize(most_rows + 1);
    std::iota(widen_lookups_.begin(), widen_lookups_.end(), 0);
    std::iota(widen_offsets_.begin(), widen_offsets_.end(), 0);
  }
  wide_rows_.resize(served.keys.size());
  float* base = widened_.data();
  for (size_t t = 0; t < num_tables; ++t) {
    const RowShuffleOptions::Table& table = options_.tables[t];
    const int64_t first = served.table_offsets[t];
    const int64_t rows = served.table_offsets[t + 1] - first;
    const bool wide = table.precision == WeightsPrecision::kFp32;
    ParallelFor(ctx.pool, rows, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        wide_rows_[first + i] =
            wide ? reinterpret_cast<const float*>(served_rows[first + i]) : base + i * table.dim;
      }
    });
    if (wide || rows == 0) continue;
    // A lookup with one row in each bag.
    const JaggedFeature feature = {
        .dim = table.dim, .data = base, .stride = table.dim, .precision = table.precision};
    HOTROW_RETURN_IF_ERROR(PooledLookup(ctx, {.features = {&feature, 1},
                                              .batch_size = rows,
                                              .offsets = widen_offsets_.data(),
                                              .inverse = widen_lookups_.data(),
                                              .rows = served_rows.data() + first}));
    base += rows * table.dim;
  }
  return absl::OkStatus();
}

absl::Status RowShuffle::StartRows(const ExecContext& ctx, const ShuffledKeys& keys,
                                   std::span<std::byte* const> served_rows, uint32_t step,
                                   bool evaluation) {
  HOTROW_RETURN_IF_ERROR(Widen(ctx, keys.served, served_rows));
  in_type_ = evaluation ? ExchangeType::kFp32 : options_.forward;
  HOTROW_RETURN_IF_ERROR(Layout(keys.asked_offsets, in_type_, &out_));
  HOTROW_RETURN_IF_ERROR(Layout(keys.ask_offsets, in_type_, &in_));
  const int64_t own_begin = OwnBegin(keys.asked_offsets);
  const int64_t own_end = OwnEnd(keys.asked_offsets);
  const auto asked = static_cast<int64_t>(keys.asked_rows.size());
  out_rows_.resize(asked - (own_end - own_begin));
  out_keys_.resize(out_rows_.size());
  const auto take = [&](int64_t first, int64_t last, int64_t to) {
    ParallelFor(ctx.pool, last - first, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t row = keys.asked_rows[first + i];
        out_rows_[to + i] = ServedRow(served_rows, row);
        out_keys_[to + i] = keys.served.keys[row].key;
      }
    });
  };
  take(0, own_begin, 0);
  take(own_end, asked, own_begin);
  HOTROW_RETURN_IF_ERROR(
      EncodeRows(ctx, {.type = in_type_,
                       .rounding = options_.rounding,
                       .random = {options_.seed, step, kForward, static_cast<uint32_t>(rank_)},
                       .runs = out_.runs,
                       .keys = out_keys_.data(),
                       .rows = out_rows_.data(),
                       .out = out_.data.data()}));
  if (evaluation) {
    evaluation_bytes_.fetch_add(out_.total_bytes, std::memory_order_relaxed);
  } else {
    row_bytes_ += out_.total_bytes;
  }
  StartExchange();
  return absl::OkStatus();
}

absl::Status RowShuffle::FinishRows(const ExecContext& ctx, const ShuffledKeys& keys,
                                    std::span<std::byte* const> served_rows,
                                    std::span<const std::byte*> wanted_rows) {
  HOTROW_RETURN_IF_ERROR(WaitExchange());
  const int64_t own_begin = OwnBegin(keys.ask_offsets);
  const int64_t own_end = OwnEnd(keys.ask_offsets);
  const int64_t own_asked = OwnBegin(keys.asked_offsets);
  // What this rank asked of itself it was asked for in the same order.
  ParallelFor(ctx.pool, own_end - own_begin, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      wanted_rows[keys.ask_order[own_begin + i]] = reinterpret_cast<const std::byte*>(
          ServedRow(served_rows, keys.asked_rows[own_asked + i]));
    }
  });

  const int64_t num_rows = in_.runs.empty() ? 0 : in_.runs.back().end;
  in_rows_.resize(num_rows);
  float* base = nullptr;
  if (in_type_ == ExchangeType::kFp32) {
    base = reinterpret_cast<float*>(in_.data.data());
  } else {
    int64_t floats = 0;
    for (const RowRun& run : in_.runs) floats += (run.end - run.begin) * run.dim;
    HOTROW_RETURN_IF_ERROR(EnsureSize(floats, &decoded_));
    base = decoded_.data();
  }
  for (const RowRun& run : in_.runs) {
    // Rows of this rank itself lie between those of others in ask_order.
    const int64_t to = run.begin < own_begin ? run.begin : run.begin + own_end - own_begin;
    for (int64_t i = 0; i < run.end - run.begin; ++i) {
      in_rows_[run.begin + i] = base;
      wanted_rows[keys.ask_order[to + i]] = reinterpret_cast<const std::byte*>(base);
      base += run.dim;
    }
  }
  if (in_type_ == ExchangeType::kFp32) return absl::OkStatus();
  return DecodeRows(
      ctx, {.type = in_type_, .runs = in_.runs, .in = in_.data.data(), .rows = in_rows_.data()});
}

absl::Status RowShuffle::ExchangeMarks(const ShuffledKeys& keys, std::span<const uint8_t> served,
                                       std::span<uint8_t> wanted) {
  const auto num_tables = static_cast<int64_t>(options_.tables.size());
  const auto split = [&](std::span<const int64_t> offsets, std::vector<int64_t>* bytes,
                         std::vector<int64_t>* begins) {
    for (int64_t p = 0; p < world_size_; ++p) {
      begins->push_back(offsets[p * num_tables]);
      bytes->push_back(offsets[(p + 1) * num_tables] - begins->back());
    }
  };
  std::vector<int64_t> send_bytes, send_offsets, recv_bytes, recv_offsets;
  split(keys.asked_offsets, &send_bytes, &send_offsets);
  split(keys.ask_offsets, &recv_bytes, &recv_offsets);
  std::vector<uint8_t> out(keys.asked_rows.size());
  std::vector<uint8_t> in(keys.ask_order.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = served[keys.asked_rows[i]];
  HOTROW_RETURN_IF_ERROR(lane_.Wait(lane_.Start([&](Communicator& channel) {
    return channel.AllToAllV({.send = out.data(),
                              .send_bytes = send_bytes,
                              .send_offsets = send_offsets,
                              .recv = in.data(),
                              .recv_bytes = recv_bytes,
                              .recv_offsets = recv_offsets});
  })));
  evaluation_bytes_.fetch_add(std::ssize(out) - send_bytes[rank_], std::memory_order_relaxed);
  for (size_t i = 0; i < in.size(); ++i) wanted[keys.ask_order[i]] = in[i];
  return absl::OkStatus();
}

absl::Status RowShuffle::StartGradients(const ExecContext& ctx, const TableKeys& wanted,
                                        const ShuffledKeys& keys, std::span<float* const> gradients,
                                        uint32_t step) {
  in_type_ = options_.backward;
  HOTROW_RETURN_IF_ERROR(Layout(keys.ask_offsets, in_type_, &out_));
  HOTROW_RETURN_IF_ERROR(Layout(keys.asked_offsets, in_type_, &in_));
  const int64_t own_begin = OwnBegin(keys.ask_offsets);
  const int64_t own_end = OwnEnd(keys.ask_offsets);
  const auto num_wanted = static_cast<int64_t>(keys.ask_order.size());
  out_rows_.resize(num_wanted - (own_end - own_begin));
  out_keys_.resize(out_rows_.size());
  const auto take = [&](int64_t first, int64_t last, int64_t to) {
    ParallelFor(ctx.pool, last - first, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t row = keys.ask_order[first + i];
        out_rows_[to + i] = gradients[row];
        out_keys_[to + i] = wanted.keys[row].key;
      }
    });
  };
  take(0, own_begin, 0);
  take(own_end, num_wanted, own_begin);
  if (residuals_ != nullptr) {
    out_residuals_.resize(out_rows_.size());
    HOTROW_RETURN_IF_ERROR(
        residuals_->Find(ctx, out_.runs, out_keys_.data(), step, out_residuals_.data()));
  }
  HOTROW_RETURN_IF_ERROR(
      EncodeRows(ctx, {.type = in_type_,
                       .rounding = options_.rounding,
                       .random = {options_.seed, step, kBackward, static_cast<uint32_t>(rank_)},
                       .runs = out_.runs,
                       .keys = out_keys_.data(),
                       .rows = out_rows_.data(),
                       .out = out_.data.data(),
                       .residual = residuals_ == nullptr ? nullptr : out_residuals_.data()}));
  gradient_bytes_ += out_.total_bytes;
  StartExchange();
  return absl::OkStatus();
}

absl::Status RowShuffle::FinishGradients(const ExecContext& ctx, const ShuffledKeys& keys,
                                         std::span<float* const> gradients,
                                         std::span<float* const> sums) {
  const auto num_tables = static_cast<int64_t>(options_.tables.size());
  for (int64_t t = 0; t < num_tables; ++t) {
    const int64_t first = keys.served.table_offsets[t];
    const int32_t dim = options_.tables[t].dim;
    ParallelFor(ctx.pool, keys.served.table_offsets[t + 1] - first, kGrain,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = first + begin; i < first + end; ++i) {
                    std::fill_n(sums[i], dim, 0.0f);
                  }
                });
  }
  HOTROW_RETURN_IF_ERROR(WaitExchange());
  // Rank by rank: a rank asks for a row once at most, so rows are summed in any order of rows and
  // in the order of ranks.
  for (int64_t p = 0; p < world_size_; ++p) {
    if (p == rank_) {
      for (int64_t t = 0; t < num_tables; ++t) {
        const int32_t dim = options_.tables[t].dim;
        const int64_t ask = keys.ask_offsets[p * num_tables + t];
        const int64_t asked = keys.asked_offsets[p * num_tables + t];
        const int64_t n = keys.asked_offsets[p * num_tables + t + 1] - asked;
        ParallelFor(ctx.pool, n, kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const float* const from = gradients[keys.ask_order[ask + i]];
            float* const to = sums[keys.asked_rows[asked + i]];
            for (int32_t c = 0; c < dim; ++c) to[c] += from[c];
          }
        });
      }
      continue;
    }
    const int64_t first_row = keys.asked_offsets[p * num_tables];
    const int64_t num_rows = keys.asked_offsets[(p + 1) * num_tables] - first_row;
    if (num_rows == 0) continue;
    in_rows_.resize(num_rows);
    for (int64_t i = 0; i < num_rows; ++i) in_rows_[i] = sums[keys.asked_rows[first_row + i]];
    rank_runs_.assign(in_.runs.begin() + in_.first_run[p], in_.runs.begin() + in_.first_run[p + 1]);
    const int64_t first_of_message = rank_runs_.front().begin;
    for (RowRun& run : rank_runs_) {
      run.begin -= first_of_message;
      run.end -= first_of_message;
    }
    HOTROW_RETURN_IF_ERROR(DecodeRows(ctx, {.type = in_type_,
                                            .runs = rank_runs_,
                                            .in = in_.data.data(),
                                            .rows = in_rows_.data(),
                                            .add = true}));
  }
  return absl::OkStatus();
}

absl::Status RowShuffle::RunTogether(absl::FunctionRef<absl::Status()> work) {
  return lane_.Wait(
      lane_.Start([&](Communicator& channel) { return hotrow::RunTogether(channel, work); }));
}

absl::Status RowShuffle::AllGather(std::span<const int64_t> mine, std::span<int64_t> all) {
  return lane_.Wait(lane_.Start([&](Communicator& channel) {
    return channel.AllGather(std::as_bytes(mine), std::as_writable_bytes(all));
  }));
}

absl::Status RowShuffle::AllSum(std::vector<int64_t>* counts) {
  const size_t n = counts->size();
  std::vector<int64_t> all(n * static_cast<size_t>(world_size_));
  HOTROW_RETURN_IF_ERROR(AllGather(*counts, all));
  std::fill(counts->begin(), counts->end(), 0);
  for (size_t i = 0; i < all.size(); ++i) (*counts)[i % n] += all[i];
  return absl::OkStatus();
}

}  // namespace hotrow::internal
