#include "embedding/ranks/device_key_shuffle_impl.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ops/keys/owner_parts.h"
#include "ops/keys/partition.h"
#include "ops/keys/tell_host.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kOffsetBytes = sizeof(int64_t);
constexpr int64_t kKeyBytes = sizeof(uint64_t);

// A quarter more than is needed, so that batches of nearly equal size do not each take new memory.
int64_t WithSlack(int64_t n) { return n + n / 4; }

}  // namespace

DeviceKeyShuffle::DeviceKeyShuffle(const Plan& plan, std::unique_ptr<DeviceChannel> channel,
                                   DeviceStream stream)
    : plan_(plan),
      num_tables_(static_cast<int64_t>(plan.tables.size())),
      channel_(std::move(channel)),
      stream_(std::move(stream)) {
  for (const PlannedTable& table : plan.tables) {
    table_names_.push_back(static_cast<uint32_t>(table.config));
  }
}

DeviceKeyShuffle::~DeviceKeyShuffle() { stream_.Wait().IgnoreError(); }

absl::StatusOr<std::unique_ptr<DeviceKeyShuffle>> DeviceKeyShuffle::Create(const Plan& plan,
                                                                           Communicator& host,
                                                                           Device device) {
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device, /*is_urgent=*/true));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DeviceChannel> channel,
                          DeviceChannel::Create(host, device));
  std::unique_ptr<DeviceKeyShuffle> out(
      new DeviceKeyShuffle(plan, std::move(channel), std::move(stream)));
  const MemoryOfDevice memory = {device, out->stream_.get()};
  const int64_t num_offsets = out->num_parts() + 1;
  HOTROW_RETURN_IF_ERROR(out->offsets_.Reserve(num_offsets, memory));
  HOTROW_RETURN_IF_ERROR(out->all_offsets_.Reserve(out->world_size() * num_offsets, memory));
  HOTROW_RETURN_IF_ERROR(out->told_offsets_.Reserve(out->world_size() * num_offsets, {device}));
  HOTROW_ASSIGN_OR_RETURN(out->told_, DeviceFlag::Create(device));
  out->CountBytes();
  return out;
}

void DeviceKeyShuffle::CountBytes() {
  device_bytes_.store(parts_.bytes() + ask_values_.bytes() + asked_values_.bytes() +
                          offsets_.bytes() + all_offsets_.bytes() + workspace_.bytes(),
                      std::memory_order_relaxed);
}

absl::Status DeviceKeyShuffle::Exchange(const ExecContext& ctx, const DeviceKeys& wanted,
                                        DeviceShuffledKeys* out) {
  HOTROW_RETURN_IF_ERROR(channel_->status());
  HOTROW_RETURN_IF_ERROR(GrowForWanted(wanted.size(), out));
  HOTROW_RETURN_IF_ERROR(SortAndCount(ctx, wanted, out));
  HOTROW_RETURN_IF_ERROR(ReadCounts(out));
  const int64_t asked = out->asked_offsets_.back();
  if (asked_values_.size() < asked) {
    // The stream is idle but for what has been told.
    HOTROW_RETURN_IF_ERROR(
        asked_values_.Reserve(WithSlack(asked), {stream_.device(), stream_.get()}));
    CountBytes();
  }
  HOTROW_RETURN_IF_ERROR(SendKeys(*out));

  // Several ranks may ask for one row.
  segments_.clear();
  for (int64_t i = 0; i < num_parts(); ++i) {
    segments_.push_back({out->asked_offsets_[i], out->asked_offsets_[i + 1],
                         static_cast<int32_t>(i % num_tables_)});
  }
  HOTROW_RETURN_IF_ERROR(
      out->served.Find(ctx, plan_, asked_values_.data(), asked, segments_, &stream_));
  return channel_->status();
}

absl::Status DeviceKeyShuffle::GrowForWanted(int64_t num_keys, DeviceShuffledKeys* out) {
  const MemoryOfDevice memory = {stream_.device(), stream_.get()};
  const int64_t needed = PartitionWorkspaceBytes(stream_.device(), num_keys, num_parts());
  if (out->ask_order_.size() >= num_keys && parts_.size() >= num_keys &&
      workspace_.size() >= needed) {
    return absl::OkStatus();
  }
  // After an Exchange that failed, what is given back here may still be in use.
  HOTROW_RETURN_IF_ERROR(stream_.Wait());
  const int64_t n = WithSlack(num_keys);
  if (out->ask_order_.size() < num_keys) {
    HOTROW_RETURN_IF_ERROR(out->ask_order_.Reserve(n, memory));
    out->device_bytes_.store(out->ask_order_.bytes(), std::memory_order_relaxed);
  }
  if (parts_.size() < num_keys) {
    HOTROW_RETURN_IF_ERROR(parts_.Reserve(n, memory));
    HOTROW_RETURN_IF_ERROR(ask_values_.Reserve(n, memory));
  }
  if (workspace_.size() < needed) {
    HOTROW_RETURN_IF_ERROR(
        workspace_.Reserve(PartitionWorkspaceBytes(stream_.device(), n, num_parts()), memory));
  }
  CountBytes();
  return absl::OkStatus();
}

absl::Status DeviceKeyShuffle::SortAndCount(const ExecContext& ctx, const DeviceKeys& wanted,
                                            DeviceShuffledKeys* out) {
  const OwnerPartsArgs owners = {.values = wanted.values(),
                                 .table_offsets = wanted.device_table_offsets(),
                                 .tables = table_names_,
                                 .num_keys = wanted.size(),
                                 .world_size = world_size(),
                                 .parts = parts_.data()};
  const PartitionArgs by_owner = {.part = parts_.data(),
                                  .num_items = wanted.size(),
                                  .num_parts = num_parts(),
                                  .offsets = offsets_.data(),
                                  .order = out->ask_order_.data(),
                                  .workspace = workspace_.data(),
                                  .workspace_bytes = workspace_.bytes()};
  const PickWordsArgs values = {.from = wanted.values(),
                                .positions = out->ask_order_.data(),
                                .num_words = wanted.size(),
                                .to = ask_values_.data()};
  HOTROW_RETURN_IF_ERROR(
      stream_.Run(ctx, [owners, by_owner, values](const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(OwnerParts(here, owners));
        HOTROW_RETURN_IF_ERROR(Partition(here, by_owner));
        return PickWords(here, values);
      }));
  const int64_t num_offsets = num_parts() + 1;
  HOTROW_RETURN_IF_ERROR(channel_->AllGather(offsets_.data(), kOffsetBytes * num_offsets,
                                             all_offsets_.data(), stream_));
  const TellHostArgs told = {.from = all_offsets_.data(),
                             .to = told_offsets_.data(),
                             .num_numbers = world_size() * num_offsets,
                             .flag = told_.address(),
                             .flag_value = told_.Next()};
  HOTROW_RETURN_IF_ERROR(
      stream_.Run(ctx, [told](const ExecContext& here) { return TellHost(here, told); }));
  HOTROW_RETURN_IF_ERROR(told_.Wait(stream_));
  // A failure ends the gather too, and leaves anything in its place.
  return channel_->status();
}

absl::Status DeviceKeyShuffle::ReadCounts(DeviceShuffledKeys* out) {
  const int64_t num_offsets = num_parts() + 1;
  const auto offsets_of = [&](int64_t p) { return told_offsets_.data() + p * num_offsets; };
  // Every rank looks at all of them, so all say the same.
  for (int64_t owner = 0; owner < world_size(); ++owner) {
    int64_t asked = 0;
    for (int64_t p = 0; p < world_size(); ++p) {
      asked += offsets_of(p)[(owner + 1) * num_tables_] - offsets_of(p)[owner * num_tables_];
    }
    if (asked > INT32_MAX) {
      return absl::ResourceExhaustedError(
          absl::StrCat("ID shuffle: rank ", owner, " is asked for ", asked,
                       " rows in one batch, more than 2^31 - 1; use a smaller batch"));
    }
  }
  out->ask_offsets_.assign(offsets_of(rank()), offsets_of(rank()) + num_offsets);
  out->asked_offsets_.assign(1, 0);
  for (int64_t p = 0; p < world_size(); ++p) {
    const int64_t* const of_this = offsets_of(p) + rank() * num_tables_;
    for (int64_t t = 0; t < num_tables_; ++t) {
      out->asked_offsets_.push_back(out->asked_offsets_.back() + of_this[t + 1] - of_this[t]);
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceKeyShuffle::SendKeys(const DeviceShuffledKeys& keys) {
  const auto n = static_cast<size_t>(world_size());
  std::vector<int64_t> send_bytes(n), send_offsets(n), recv_bytes(n), recv_offsets(n);
  int64_t sent = 0;
  for (size_t p = 0; p < n; ++p) {
    const size_t begin = p * static_cast<size_t>(num_tables_);
    const size_t end = begin + static_cast<size_t>(num_tables_);
    send_offsets[p] = kKeyBytes * keys.ask_offsets_[begin];
    send_bytes[p] = kKeyBytes * keys.ask_offsets_[end] - send_offsets[p];
    recv_offsets[p] = kKeyBytes * keys.asked_offsets_[begin];
    recv_bytes[p] = kKeyBytes * keys.asked_offsets_[end] - recv_offsets[p];
    if (static_cast<int>(p) != rank()) sent += kOffsetBytes * (num_parts() + 1) + send_bytes[p];
  }
  HOTROW_RETURN_IF_ERROR(channel_->AllToAllV({.send = ask_values_.data(),
                                              .send_bytes = send_bytes,
                                              .send_offsets = send_offsets,
                                              .recv = asked_values_.data(),
                                              .recv_bytes = recv_bytes,
                                              .recv_offsets = recv_offsets},
                                             stream_));
  bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
