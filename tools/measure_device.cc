#include "tools/measure_device.h"

#include <fcntl.h>
#ifdef HOTROW_HAVE_URING
#include <liburing.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "models/train/report.h"

namespace hotrow {
namespace {

constexpr int64_t kReadBytes = kDeviceReadBytes;
constexpr int64_t kWriteBytes = int64_t{1} << 20;
constexpr int kDepth = 128;
constexpr int kWriteDepth = 8;
constexpr int64_t kRounds = 4;

double WallSeconds() { return 1e-9 * static_cast<double>(NowNanos()); }

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
  return absl::DataLossError(
      absl::StrCat("the disk: at offset ", offset, " of a test file lies page ", page));
}

class Deadline {
 public:
  explicit Deadline(double seconds) : end_(seconds > 0 ? WallSeconds() + seconds : 0) {}
  bool passed() const { return end_ > 0 && WallSeconds() >= end_; }

 private:
  const double end_;
};

// Sequential writes until `bytes` are written, the time is over or, when it is not null, `stop`
// says so; starts again at the front of the file.
absl::StatusOr<int64_t> WriteFile(const DeviceMeasurementOptions& options, File& file,
                                  int64_t bytes, const std::atomic<bool>* stop) {
  HOTROW_ASSIGN_OR_RETURN(auto queue,
                          PosixEnv().NewIoQueue({.kind = options.io, .depth = kWriteDepth}));
  HOTROW_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(kWriteDepth * kWriteBytes));
  const Deadline deadline(stop != nullptr ? 0 : options.seconds_max);
  int64_t written = 0;
  absl::Status status;
  while (stop != nullptr ? !stop->load()
                         : written < bytes && (written == 0 || !deadline.passed())) {
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

// Calls read_batch(offsets) for each of the batches and takes the time.
template <typename ReadBatch>
absl::StatusOr<DeviceReads> TimeReads(const DeviceMeasurementOptions& options, int64_t file_bytes,
                                      int64_t batches, uint64_t stream,
                                      const ReadBatch& read_batch) {
  DeviceReads reads;
  RandomStream random(options.seed, RandomPurpose::kTest, stream);
  std::vector<int64_t> offsets(static_cast<size_t>(options.batch));
  const Deadline deadline(options.seconds_max / static_cast<double>(kRounds));
  const double cpu_begin = ProcessCpuSeconds();
  const double begin = WallSeconds();
  for (int64_t b = 0; b < batches && (b == 0 || !deadline.passed()); ++b) {
    const double batch_begin = WallSeconds();
    for (int64_t& offset : offsets) {
      offset = kReadBytes *
               static_cast<int64_t>(random.Below(static_cast<uint64_t>(file_bytes / kReadBytes)));
    }
    HOTROW_RETURN_IF_ERROR(read_batch(offsets));
    reads.batch_seconds.push_back(WallSeconds() - batch_begin);
    reads.count += options.batch;
  }
  reads.wall_seconds = WallSeconds() - begin;
  reads.cpu_seconds = ProcessCpuSeconds() - cpu_begin;
  return reads;
}

absl::StatusOr<DeviceReads> ReadByQueue(const DeviceMeasurementOptions& options, File& file,
                                        int64_t file_bytes, int64_t batches, uint64_t stream) {
  HOTROW_ASSIGN_OR_RETURN(auto queue, PosixEnv().NewIoQueue({.kind = options.io, .depth = kDepth}));
  HOTROW_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(options.batch * kReadBytes));
  std::vector<IoRequest> requests(static_cast<size_t>(options.batch));
  return TimeReads(options, file_bytes, batches, stream,
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
absl::StatusOr<DeviceReads> ReadByUring(const DeviceMeasurementOptions& options,
                                        const std::string& path, int64_t file_bytes,
                                        int64_t batches, uint64_t stream) {
  HOTROW_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Create(kDepth * kReadBytes));
  io_uring ring;
  if (const int error = ::io_uring_queue_init(kDepth, &ring, 0); error < 0) {
    return ErrnoToStatus(-error, "io_uring_queue_init");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  const int open_error = errno;
  absl::StatusOr<DeviceReads> reads = absl::UnknownError("not run");
  if (fd < 0) {
    reads = ErrnoToStatus(open_error, absl::StrCat("open ", path));
  } else {
    int64_t offset_of[kDepth];
    reads = TimeReads(
        options, file_bytes, batches, stream,
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

void DeviceReads::Add(const DeviceReads& more) {
  batch_seconds.insert(batch_seconds.end(), more.batch_seconds.begin(), more.batch_seconds.end());
  wall_seconds += more.wall_seconds;
  cpu_seconds += more.cpu_seconds;
  count += more.count;
}

absl::StatusOr<DeviceMeasurement> MeasureDevice(const DeviceMeasurementOptions& options) {
  Env& env = PosixEnv();
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(options.dir));
  const std::string path = options.dir + "/raw.bin";
  const std::string other_path = options.dir + "/raw_write.bin";
  const int64_t unit = kWriteDepth * kWriteBytes;
  int64_t bytes = std::max(unit, RoundUp(options.file_bytes, unit));
  DeviceMeasurement out;
  const auto measure = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(auto file, env.OpenDirect(path, OpenMode::kTruncate));
    out.direct = file->direct();
    out.block_bytes = file->block_bytes();
    // Once to lay the file out, once to measure writing over it, as a log does that reuses
    // segments.
    HOTROW_ASSIGN_OR_RETURN(bytes, WriteFile(options, *file, bytes, nullptr));
    out.file_bytes = bytes;
    const double cpu_begin = ProcessCpuSeconds();
    const double begin = WallSeconds();
    HOTROW_ASSIGN_OR_RETURN(const int64_t written, WriteFile(options, *file, bytes, nullptr));
    out.write_bytes_per_second = static_cast<double>(written) / (WallSeconds() - begin);
    out.write_cpu_seconds_per_gb =
        (ProcessCpuSeconds() - cpu_begin) / (1e-9 * static_cast<double>(written));

    // The two ways take turns, so that a machine that is busy now and then slows both alike.
    const int64_t rounds = std::min<int64_t>(kRounds, options.batches);
    const int64_t batches = CeilDiv(options.batches, rounds);
    out.liburing_status =
        absl::UnimplementedError("no io_uring in this build, or threads were asked for");
    for (int64_t round = 0; round < rounds; ++round) {
      const auto stream = static_cast<uint64_t>(2 * round);
      HOTROW_ASSIGN_OR_RETURN(const DeviceReads reads,
                              ReadByQueue(options, *file, bytes, batches, stream));
      out.by_io_queue.Add(reads);
#ifdef HOTROW_HAVE_URING
      if (!file->direct() || options.io == IoQueueKind::kThreads) continue;
      const auto more = ReadByUring(options, path, bytes, batches, stream + 1);
      out.liburing_status = more.status();
      if (more.ok()) out.by_liburing.Add(*more);
#endif
    }
    if (!options.mixed) return absl::OkStatus();

    HOTROW_ASSIGN_OR_RETURN(auto other, env.OpenDirect(other_path, OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(WriteFile(options, *other, bytes, nullptr).status());
    std::atomic<bool> stop{false};
    absl::StatusOr<int64_t> written_beside = int64_t{0};
    const double mixed_begin = WallSeconds();
    HOTROW_ASSIGN_OR_RETURN(std::thread writer, StartThread("writing beside reads", [&] {
                              written_beside = WriteFile(options, *other, bytes, &stop);
                            }));
    const absl::StatusOr<DeviceReads> beside =
        ReadByQueue(options, *file, bytes, options.batches, 99);
    stop = true;
    writer.join();
    const double mixed_seconds = WallSeconds() - mixed_begin;
    HOTROW_RETURN_IF_ERROR(beside.status());
    HOTROW_RETURN_IF_ERROR(written_beside.status());
    out.mixed = *beside;
    out.mixed_write_bytes_per_second = static_cast<double>(*written_beside) / mixed_seconds;
    return absl::OkStatus();
  };
  const absl::Status status = measure();
  for (const std::string& name : {path, other_path}) {
    if (!options.keep) env.Remove(name).IgnoreError();
  }
  HOTROW_RETURN_IF_ERROR(status);
  return out;
}

}  // namespace hotrow
