#include "tools/xz_stream.h"

#include <lzma.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr size_t kInputBytes = 64 << 10;
// xz -9 needs 65 MiB to decompress; nothing that people make needs more.
constexpr uint64_t kMemoryBytesMax = uint64_t{1} << 30;

class XzStream final : public ByteStream {
 public:
  XzStream(std::unique_ptr<ByteStream> compressed, std::string name)
      : compressed_(std::move(compressed)), name_(std::move(name)), input_(kInputBytes) {}
  ~XzStream() override { lzma_end(&lzma_); }

  absl::Status Init() {
    if (lzma_stream_decoder(&lzma_, kMemoryBytesMax, LZMA_CONCATENATED) != LZMA_OK) {
      return absl::ResourceExhaustedError(absl::StrCat(name_, ": no memory to decompress it"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Read(std::span<std::byte> bytes) override {
    HOTROW_RETURN_IF_ERROR(status_);
    lzma_.next_out = reinterpret_cast<uint8_t*>(bytes.data());
    lzma_.avail_out = bytes.size();
    while (!ended_ && lzma_.avail_out == bytes.size()) {
      if (lzma_.avail_in == 0 && !input_ended_) {
        const absl::StatusOr<int64_t> got = compressed_->Read(input_);
        if (!got.ok()) return status_ = got.status();
        lzma_.next_in = reinterpret_cast<const uint8_t*>(input_.data());
        lzma_.avail_in = static_cast<size_t>(*got);
        input_ended_ = *got == 0;
      }
      const lzma_ret result = lzma_code(&lzma_, input_ended_ ? LZMA_FINISH : LZMA_RUN);
      if (result == LZMA_STREAM_END) {
        ended_ = true;
      } else if (result != LZMA_OK) {
        return status_ = Error(result);
      }
    }
    return static_cast<int64_t>(bytes.size() - lzma_.avail_out);
  }

 private:
  absl::Status Error(lzma_ret result) const {
    const std::string place = absl::StrCat(name_, ": offset ", lzma_.total_in, ": ");
    switch (result) {
      case LZMA_MEM_ERROR:
      case LZMA_MEMLIMIT_ERROR:
        return absl::ResourceExhaustedError(absl::StrCat(
            place, "needs more memory to decompress than the ", kMemoryBytesMax, " bytes allowed"));
      case LZMA_BUF_ERROR:
        return absl::DataLossError(absl::StrCat(place, "the compressed data ends early"));
      default:
        return absl::DataLossError(absl::StrCat(place, "the compressed data is damaged"));
    }
  }

  std::unique_ptr<ByteStream> compressed_;
  const std::string name_;
  std::vector<std::byte> input_;
  lzma_stream lzma_ = LZMA_STREAM_INIT;
  bool input_ended_ = false;
  bool ended_ = false;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> NewXzStream(std::unique_ptr<ByteStream> compressed,
                                                        std::string name) {
  auto stream = std::make_unique<XzStream>(std::move(compressed), std::move(name));
  HOTROW_RETURN_IF_ERROR(stream->Init());
  return std::unique_ptr<ByteStream>(std::move(stream));
}

}  // namespace hotrow
