#include <fcntl.h>
#ifdef HOTROW_HAVE_URING
#include <liburing.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/io_queue.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "bench/store_bench.h"

namespace hotrow::bench {
namespace {

constexpr int64_t kReadBytes = 4096;
constexpr int64_t kWriteBytes = int64_t{1} << 20;
constexpr int kDepth = 128;
constexpr int kWriteDepth = 8;
constexpr int64_t kRounds = 4;

// Memory at an address that any device takes.
struct AlignedBuffer {
  HostBuffer<std::byte> memory;
  std::byte* data = nullptr;

  static absl::StatusOr<AlignedBuffer> Create(int64_t bytes) {
    AlignedBuffer buffer;
    HOTROW_ASSIGN_OR_RETURN(buffer.memory, HostBuffer<std::byte>::Create(bytes + kReadBytes));
    const auto address = reinterpret_cast<uintptr_t>(buffer.memory.data());
    buffer.data = buffer.memory.data() + (RoundUp(static_cast<int64_t>(address), kReadBytes) -
                                          static_cast<int64_t>(address));
    return buffer;
  }
};

// The file's pages begin with their number, so that what is read can be checked.
void MarkPages(std::byte* data, int64_t offset, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kReadBytes) {
    const int64_t page = (offset + at) / kReadBytes;
    std::memcpy(data + at, &page, sizeof(page));
  }
}

absl::Status CheckPage(const std::byte* data, int64_t offset) {
  int64_t page = 0;
  std::memcpy(&page, data, sizeof(page));
  if (page * kReadBytes == offset) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("--store=raw: at offset ", offset, " lies page ", page));
}

IoQueueOptions QueueOptions(const StoreBenchFlags& flags, int depth) {
  return {.kind = flags.io == "uring"     ? IoQueueKind::kUring
                  : flags.io == "threads" ? IoQueueKind::kThreads
                                          : IoQueueKind::kAuto,
          .depth = depth};
}

// Sequential writes until `bytes` are written or, when it is not null, `stop` says so; starts again
// at the front of the file.
absl::StatusOr<int64_t> WriteFile(const StoreBenchFlags& flags, File& file, int64_t bytes,
                                  const std::atomic<bool>* stop) {
  HOTROW_ASSIGN_OR_RETURN(auto queue, PosixEnv().NewIoQueue(QueueOptions(flags, kWriteDepth)));
  HOTROW_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(kWriteDepth * kWriteBytes));
  int64_t written = 0;
  absl::Status status;
  while (stop != nullptr ? !stop->load() : written < bytes) {
    std::vector<IoRequest> requests;
    for (int i = 0; i < kWriteDepth; ++i) {
      const int64_t offset = (written + i * kWriteBytes) % bytes;
      std::byte* const data = buffer.data + i * kWriteBytes;
      MarkPages(data, offset, kWriteBytes);
      IoRequest request;
      request.file = &file;
      request.write = true;
      request.offset = offset;
      request.data = data;
      request.bytes = kWriteBytes;
      requests.push_back(std::move(request));
    }
    queue->Run(requests, [&](IoRequest& request) { status.Update(request.status); });
    HOTROW_RETURN_IF_ERROR(status);
    written += kWriteDepth * kWriteBytes;
  }
  HOTROW_RETURN_IF_ERROR(file.Sync());
  return written;
}

struct Reads {
  std::vector<double> seconds;  // of each batch
  double wall = 0;
  double cpu = 0;  // of the process
  int64_t count = 0;

  void Add(const Reads& more) {
    seconds.insert(seconds.end(), more.seconds.begin(), more.seconds.end());
    wall += more.wall;
    cpu += more.cpu;
    count += more.count;
  }

  nlohmann::ordered_json ToJson(const char* how) const {
    const BatchTimes times = SummarizeBatches(seconds);
    return {{"how", how},
            {"rows_per_second", static_cast<double>(count) / wall},
            {"cpu_us_per_row", 1e6 * cpu / static_cast<double>(count)},
            {"ios_per_row", 1.0},
            {"bytes_read_per_row", static_cast<double>(kReadBytes)},
            {"p50_batch_ms", times.p50_ms},
            {"p99_batch_ms", times.p99_ms},
            {"max_batch_ms", times.max_ms}};
  }
};

// Calls read_batch(offsets) for each of the batches and takes the time.
template <typename ReadBatch>
absl::StatusOr<Reads> TimeReads(const StoreBenchFlags& flags, int64_t file_bytes, int64_t batches,
                                uint64_t stream, const ReadBatch& read_batch) {
  Reads reads;
  RandomStream random(static_cast<uint64_t>(flags.seed), RandomPurpose::kTest, stream);
  std::vector<int64_t> offsets(static_cast<size_t>(flags.batch));
  const double cpu_begin = ProcessSeconds();
  const double begin = WallSeconds();
  for (int64_t b = 0; b < batches; ++b) {
    const double batch_begin = WallSeconds();
    for (int64_t& offset : offsets) {
      offset = kReadBytes *
               static_cast<int64_t>(random.Below(static_cast<uint64_t>(file_bytes / kReadBytes)));
    }
    HOTROW_RETURN_IF_ERROR(read_batch(offsets));
    reads.seconds.push_back(WallSeconds() - batch_begin);
    reads.count += flags.batch;
  }
  reads.wall = WallSeconds() - begin;
  reads.cpu = ProcessSeconds() - cpu_begin;
  return reads;
}

absl::StatusOr<Reads> ReadByQueue(const StoreBenchFlags& flags, File& file, int64_t file_bytes,
                                  int64_t batches, uint64_t stream) {
  HOTROW_ASSIGN_OR_RETURN(auto queue, PosixEnv().NewIoQueue(QueueOptions(flags, kDepth)));
  HOTROW_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(flags.batch * kReadBytes));
  std::vector<IoRequest> requests(static_cast<size_t>(flags.batch));
  return TimeReads(flags, file_bytes, batches, stream,
                   [&](const std::vector<int64_t>& offsets) -> absl::Status {
                     for (size_t i = 0; i < offsets.size(); ++i) {
                       requests[i].file = &file;
                       requests[i].offset = offsets[i];
                       requests[i].data = buffer.data + static_cast<int64_t>(i) * kReadBytes;
                       requests[i].bytes = kReadBytes;
                     }
                     absl::Status status;
                     queue->Run(requests, [&](IoRequest& request) {
                       status.Update(request.status);
                       if (status.ok()) status.Update(CheckPage(request.data, request.offset));
                     });
                     return status;
                   });
}

#ifdef HOTROW_HAVE_URING
// The same through liburing alone, so that the limit does not depend on our queue: submits what has
// come back, in bulk, and reaps all that is there.
absl::StatusOr<Reads> ReadByUring(const StoreBenchFlags& flags, const std::string& path,
                                  int64_t file_bytes, int64_t batches, uint64_t stream) {
  HOTROW_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(kDepth * kReadBytes));
  io_uring ring;
  if (const int error = ::io_uring_queue_init(kDepth, &ring, 0); error < 0) {
    return ErrnoToStatus(-error, "io_uring_queue_init");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  const int open_error = errno;
  absl::StatusOr<Reads> reads = absl::UnknownError("not run");
  if (fd < 0) {
    reads = ErrnoToStatus(open_error, absl::StrCat("open ", path));
  } else {
    int64_t offset_of[kDepth];
    reads = TimeReads(
        flags, file_bytes, batches, stream,
        [&](const std::vector<int64_t>& offsets) -> absl::Status {
          std::vector<int> free_slots;
          for (int i = 0; i < kDepth; ++i) free_slots.push_back(i);
          constexpr unsigned kBulk = 32;
          size_t next = 0;
          size_t done = 0;
          absl::Status status;
          while (done < next || (next < offsets.size() && status.ok())) {
            while (status.ok() && next < offsets.size() && !free_slots.empty()) {
              const int slot = free_slots.back();
              free_slots.pop_back();
              io_uring_sqe* const entry = ::io_uring_get_sqe(&ring);
              offset_of[slot] = offsets[next++];
              ::io_uring_prep_read(entry, fd, buffer.data + slot * kReadBytes, kReadBytes,
                                   static_cast<uint64_t>(offset_of[slot]));
              ::io_uring_sqe_set_data64(entry, static_cast<uint64_t>(slot));
            }
            const auto wanted = static_cast<unsigned>(std::min<size_t>(kBulk, next - done));
            if (const int error = ::io_uring_submit_and_wait(&ring, wanted);
                error < 0 && error != -EINTR) {
              // Nothing can be reaped by now for sure: the ring is closed below.
              return ErrnoToStatus(-error, "io_uring_submit_and_wait");
            }
            io_uring_cqe* entries[kDepth];
            const unsigned count = ::io_uring_peek_batch_cqe(&ring, entries, kDepth);
            for (unsigned i = 0; i < count; ++i) {
              const auto slot = static_cast<int>(::io_uring_cqe_get_data64(entries[i]));
              const int result = entries[i]->res;
              if (result < 0) {
                status.Update(ErrnoToStatus(-result, absl::StrCat("read ", path)));
              } else if (result != kReadBytes) {
                status.Update(absl::DataLossError(
                    absl::StrCat("read ", path, ": ", result, " bytes instead of ", kReadBytes)));
              } else {
                status.Update(CheckPage(buffer.data + slot * kReadBytes, offset_of[slot]));
              }
              free_slots.push_back(slot);
              ++done;
            }
            ::io_uring_cq_advance(&ring, count);
          }
          return status;
        });
    ::close(fd);
  }
  ::io_uring_queue_exit(&ring);
  return reads;
}
#endif

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureDevice(const StoreBenchFlags& flags) {
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(flags.path));
  const std::string path = flags.path + "/raw.bin";
  const std::string other_path = flags.path + "/raw_write.bin";
  const int64_t unit = kWriteDepth * kWriteBytes;
  const int64_t bytes = std::max(unit, RoundUp(flags.rows * flags.row_bytes, unit));
  nlohmann::ordered_json json;
  const auto measure = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(auto file, env.OpenDirect(path, OpenMode::kTruncate));
    json["direct"] = file->direct();
    json["block_bytes"] = file->block_bytes();
    json["file_bytes"] = bytes;
    // Once to lay the file out, once to measure writing over it, as a log does that reuses
    // segments.
    HOTROW_RETURN_IF_ERROR(WriteFile(flags, *file, bytes, nullptr).status());
    const double cpu_begin = ProcessSeconds();
    const double begin = WallSeconds();
    HOTROW_ASSIGN_OR_RETURN(const int64_t written, WriteFile(flags, *file, bytes, nullptr));
    const double write_seconds = WallSeconds() - begin;
    json["write_bytes_per_second"] = static_cast<double>(written) / write_seconds;
    json["write_cpu_seconds_per_gb"] =
        (ProcessSeconds() - cpu_begin) / (1e-9 * static_cast<double>(written));

    // The two ways take turns, so that a machine that is busy now and then slows both alike.
    const int64_t rounds = std::min<int64_t>(kRounds, flags.batches);
    const int64_t batches = CeilDiv(flags.batches, rounds);
    Reads by_queue;
    Reads by_uring;
    absl::Status uring_status =
        absl::UnimplementedError("no io_uring in this build, or --io=threads");
    for (int64_t round = 0; round < rounds; ++round) {
      const auto stream = static_cast<uint64_t>(2 * round);
      HOTROW_ASSIGN_OR_RETURN(const Reads reads, ReadByQueue(flags, *file, bytes, batches, stream));
      by_queue.Add(reads);
#ifdef HOTROW_HAVE_URING
      if (!file->direct() || flags.io == "threads") continue;
      const auto more = ReadByUring(flags, path, bytes, batches, stream + 1);
      uring_status = more.status();
      if (more.ok()) by_uring.Add(*more);
#endif
    }
    nlohmann::ordered_json best = by_queue.ToJson("IoQueue");
    json["by_io_queue"] = best;
    if (uring_status.ok()) {
      json["by_liburing"] = by_uring.ToJson("liburing");
      if (json["by_liburing"]["rows_per_second"] > best["rows_per_second"]) {
        best = json["by_liburing"];
      }
    } else {
      json["by_liburing"] = {{"error", uring_status.ToString()}};
    }
    json.update(best);  // the limit of the device: the better of the two

    HOTROW_ASSIGN_OR_RETURN(auto other, env.OpenDirect(other_path, OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(WriteFile(flags, *other, bytes, nullptr).status());
    std::atomic<bool> stop{false};
    absl::StatusOr<int64_t> written_beside = int64_t{0};
    const double mixed_begin = WallSeconds();
    std::thread writer([&] { written_beside = WriteFile(flags, *other, bytes, &stop); });
    const absl::StatusOr<Reads> beside = ReadByQueue(flags, *file, bytes, flags.batches, 99);
    stop = true;
    writer.join();
    const double mixed_seconds = WallSeconds() - mixed_begin;
    HOTROW_RETURN_IF_ERROR(beside.status());
    HOTROW_RETURN_IF_ERROR(written_beside.status());
    json["mixed"] = beside->ToJson("IoQueue");
    json["mixed"]["write_bytes_per_second"] = static_cast<double>(*written_beside) / mixed_seconds;
    return absl::OkStatus();
  };
  const absl::Status status = measure();
  for (const std::string& name : {path, other_path}) {
    if (!flags.keep) env.Remove(name).IgnoreError();
  }
  HOTROW_RETURN_IF_ERROR(status);
  return json;
}

}  // namespace hotrow::bench
