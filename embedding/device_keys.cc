#include "embedding/device_keys_impl.h"

#include "base/status_macros.h"
#include "ops/keys/key_rows.h"
#include "ops/keys/partition.h"
#include "ops/keys/tell_host.h"

namespace hotrow::internal {
namespace {

// A quarter more than is needed, so that batches of nearly equal size do not each take new memory.
int64_t WithSlack(int64_t n) { return n + n / 4; }

}  // namespace

void DeviceKeys::CountBytes() {
  host_bytes_.store(table_offsets_.bytes() + told_keys_.bytes() + told_counts_.bytes(),
                    std::memory_order_relaxed);
  device_bytes_.store(values_.bytes() + keys_.bytes() + counts_.bytes() + inverse_.bytes() +
                          rows_.bytes() + row_offsets_.bytes() + lookup_order_.bytes() +
                          device_table_offsets_.bytes() + workspace_.bytes(),
                      std::memory_order_relaxed);
}

absl::Status DeviceKeys::Grow(int64_t num_lookups, int64_t num_tables, DeviceStream* stream) {
  device_ = stream->device();
  const MemoryOfDevice memory = {device_, stream->get()};
  if (num_offsets_ == 0) {
    HOTROW_RETURN_IF_ERROR(device_table_offsets_.Reserve(num_tables + 1, memory));
    HOTROW_RETURN_IF_ERROR(table_offsets_.Reserve(num_tables + 1, {device_}));
    HOTROW_ASSIGN_OR_RETURN(found_, DeviceFlag::Create(device_));
    num_offsets_ = static_cast<size_t>(num_tables) + 1;
  }
  if (row_offsets_.size() > num_lookups &&
      workspace_.size() >= UniqueWorkspaceBytes(num_lookups, device_)) {
    return absl::OkStatus();
  }
  // What is enqueued may still use what is given back here.
  HOTROW_RETURN_IF_ERROR(stream->Wait());
  row_offsets_ = {};  // which comes last: after an error all is asked for again
  const int64_t n = WithSlack(num_lookups);
  HOTROW_RETURN_IF_ERROR(values_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(keys_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(counts_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(inverse_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(rows_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(lookup_order_.Reserve(n, memory));
  HOTROW_RETURN_IF_ERROR(workspace_.Reserve(UniqueWorkspaceBytes(n, device_), memory));
  HOTROW_RETURN_IF_ERROR(row_offsets_.Reserve(n + 1, memory));
  CountBytes();
  return absl::OkStatus();
}

absl::Status DeviceKeys::Find(const ExecContext& ctx, const Plan& plan, const uint64_t* values,
                              int64_t n, std::span<const LookupSegment> segments,
                              DeviceStream* stream) {
  const auto num_tables = static_cast<int32_t>(plan.tables.size());
  if (has_side_) HOTROW_RETURN_IF_ERROR(side_.Wait());  // for a step that was not trained
  HOTROW_RETURN_IF_ERROR(Grow(n, num_tables, stream));
  num_lookups_ = n;
  if (table_names_.empty()) {
    for (const PlannedTable& table : plan.tables) {
      table_names_.push_back(static_cast<uint32_t>(table.config));
    }
  }
  const UniqueArgs unique = {.values = values,
                             .num_values = n,
                             .segments = segments,
                             .num_tables = num_tables,
                             .unique = values_.data(),
                             .table_offsets = device_table_offsets_.data(),
                             .inverse = inverse_.data(),
                             .counts = counts_.data(),
                             .workspace = workspace_.data(),
                             .workspace_bytes = workspace_.bytes()};
  const MakeRowKeysArgs names = {.values = values_.data(),
                                 .table_offsets = device_table_offsets_.data(),
                                 .tables = table_names_,
                                 .max_keys = n,
                                 .keys = keys_.data()};
  const TellHostArgs found = {.from = device_table_offsets_.data(),
                              .to = table_offsets_.data(),
                              .num_numbers = num_tables + 1,
                              .flag = found_.address(),
                              .flag_value = found_.Next()};
  HOTROW_RETURN_IF_ERROR(
      stream->Run(ctx, [unique, names, found](const ExecContext& here) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(Unique(here, unique));
        HOTROW_RETURN_IF_ERROR(MakeRowKeys(here, names));
        return TellHost(here, found);
      }));
  return found_.Wait(*stream);
}

absl::Status DeviceKeys::Group(const ExecContext& ctx, DeviceStream* stream) {
  const int64_t needed = PartitionWorkspaceBytes(device_, num_lookups_, size());
  if (workspace_.size() < needed) {
    HOTROW_RETURN_IF_ERROR(workspace_.Reserve(WithSlack(needed), {device_, stream->get()}));
    CountBytes();
  }
  return stream->Run(ctx, [args = PartitionArgs{.part = inverse_.data(),
                                                .num_items = num_lookups_,
                                                .num_parts = size(),
                                                .offsets = row_offsets_.data(),
                                                .order = lookup_order_.data(),
                                                .workspace = workspace_.data(),
                                                .workspace_bytes = workspace_.bytes()}](
                              const ExecContext& here) { return Partition(here, args); });
}

absl::Status DeviceKeys::Tell() {
  if (!has_side_) {
    HOTROW_ASSIGN_OR_RETURN(side_, DeviceStream::Create(device_, /*is_urgent=*/true));
    has_side_ = true;
  }
  if (told_keys_.size() < size() || told_counts_.size() < size()) {
    HOTROW_RETURN_IF_ERROR(told_keys_.Reserve(WithSlack(size()), {device_}));
    HOTROW_RETURN_IF_ERROR(told_counts_.Reserve(WithSlack(size()), {device_}));
    CountBytes();
  }
  HOTROW_RETURN_IF_ERROR(
      side_.Copy(told_keys_.data(), keys_.data(), size() * static_cast<int64_t>(sizeof(RowKey))));
  return side_.Copy(told_counts_.data(), counts_.data(),
                    size() * static_cast<int64_t>(sizeof(int32_t)));
}

absl::Status DeviceKeys::Told(std::span<const RowKey>* keys, std::span<const int32_t>* counts) {
  HOTROW_RETURN_IF_ERROR(side_.Wait());
  *keys = told_keys_.first(size());
  *counts = told_counts_.first(size());
  return absl::OkStatus();
}

}  // namespace hotrow::internal
