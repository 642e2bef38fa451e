#include "store/ssd/ssd_chunk_reader_impl.h"

#include <string>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

// Enough to keep the disk busy while the cleaner moves rows, and few, so that reads of rows are not
// long behind them.
constexpr int64_t kChunksAtOnce = 4;
constexpr int64_t kBlockBytesMax = 4096;  // of direct transfers

}  // namespace

absl::StatusOr<std::unique_ptr<SsdChunkReader>> SsdChunkReader::Create(Env& env, IoQueueOptions io,
                                                                       SsdLog& log,
                                                                       MemoryBudget& budget) {
  std::unique_ptr<SsdChunkReader> reader(new SsdChunkReader(log));
  HOTROW_ASSIGN_OR_RETURN(reader->memory_,
                          BudgetedBuffer<std::byte>::Create(
                              kChunksAtOnce * log.options().chunk_bytes + kBlockBytesMax, budget));
  reader->buffer_ = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<int64_t>(reader->memory_.data()), kBlockBytesMax));
  io.depth = static_cast<int>(kChunksAtOnce);
  io.threads = static_cast<int>(kChunksAtOnce);
  HOTROW_ASSIGN_OR_RETURN(reader->queue_, env.NewIoQueue(io));
  return reader;
}

int64_t SsdChunkReader::bytes_at_once() const { return kChunksAtOnce * log_.options().chunk_bytes; }

absl::Status SsdChunkReader::Read(uint32_t slot, int64_t begin, int64_t end, Visit visit) {
  const int64_t chunk_bytes = log_.options().chunk_bytes;
  absl::Status status;
  std::vector<IoRequest> requests;
  for (int64_t first = begin; first < end && status.ok(); first += kChunksAtOnce * chunk_bytes) {
    requests.clear();
    for (int64_t i = 0; i < kChunksAtOnce && first + i * chunk_bytes < end; ++i) {
      IoRequest request;
      request.file = log_.segment(slot).file.get();
      request.offset = first + i * chunk_bytes;
      request.data = buffer_ + i * chunk_bytes;
      request.bytes = chunk_bytes;
      requests.push_back(std::move(request));
    }
    reads_.Add(std::ssize(requests));
    bytes_read_.Add(std::ssize(requests) * chunk_bytes);
    queue_->Run(requests, [&](IoRequest& request) {
      if (!status.ok()) return;
      // The file was cut.
      if (absl::IsOutOfRange(request.status)) {
        request.status = absl::DataLossError(std::string(request.status.message()));
      }
      status =
          visit(request.offset, {request.data, static_cast<size_t>(chunk_bytes)}, request.status);
    });
  }
  return status;
}

}  // namespace hotrow::internal
