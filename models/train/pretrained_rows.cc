#include "models/train/pretrained_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/data/byte_stream.h"
#include "models/data/line_reader.h"
#include "models/data/npy.h"

namespace hotrow {
namespace {

// Bytes of keys and weights that are read at a time.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// Takes every world_size-th row, and gives the table what it has when a piece is full. A piece has
// as many rows on each rank, but for the last: so all make as many calls.
class Giver {
 public:
  Giver(const PretrainedRows& from, int64_t dim, int32_t rank, int32_t world_size,
        EmbeddingCollection* tables)
      : from_(from),
        dim_(dim),
        rank_(rank),
        world_size_(world_size),
        piece_(world_size * std::max<int64_t>(1, kPieceBytes / (8 + 4 * dim))),
        tables_(tables) {}

  int64_t rows() const { return rows_; }

  // weights: [dim].
  absl::Status Add(uint64_t key, const float* weights) {
    if (rows_ % world_size_ == rank_) {
      keys_.push_back(key);
      weights_.insert(weights_.end(), weights, weights + dim_);
    }
    return ++rows_ % piece_ == 0 ? Give() : absl::OkStatus();
  }
  absl::Status End() { return rows_ % piece_ == 0 ? absl::OkStatus() : Give(); }

 private:
  absl::Status Give() {
    const absl::Status status =
        tables_->WriteRows(from_.table, keys_, {weights_.data(), std::ssize(keys_), dim_});
    keys_.clear();
    weights_.clear();
    if (status.ok()) return status;
    return {status.code(), absl::StrCat(from_.path, ": ", std::string(status.message()))};
  }

  const PretrainedRows& from_;
  const int64_t dim_;
  const int64_t rank_;
  const int64_t world_size_;
  const int64_t piece_;  // rows of all ranks
  EmbeddingCollection* const tables_;
  int64_t rows_ = 0;  // of the file so far
  std::vector<uint64_t> keys_;
  std::vector<float> weights_;
};

struct Array {
  NpyHeader header;
  std::unique_ptr<ByteStream> stream;  // behind the header
};

absl::StatusOr<Array> OpenArray(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  Array out;
  out.stream = NewFileSection(std::move(file), 0, size);
  HOTROW_ASSIGN_OR_RETURN(out.header, ReadNpyHeader(*out.stream, path));
  if (out.header.header_bytes + out.header.data_bytes != size) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, its header says ",
                                            out.header.header_bytes + out.header.data_bytes));
  }
  return out;
}

absl::Status ReadArrays(Env& env, const std::string& dir, int64_t dim, Giver* giver) {
  const std::string keys_path = dir + "/keys.npy";
  const std::string weights_path = dir + "/weights.npy";
  HOTROW_ASSIGN_OR_RETURN(const Array keys, OpenArray(env, keys_path));
  HOTROW_ASSIGN_OR_RETURN(const Array weights, OpenArray(env, weights_path));
  const std::string& dtype = keys.header.dtype;
  if ((dtype != "<u8" && dtype != "<i8") || keys.header.shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(keys_path, ": is ", dtype, " of shape ",
                                                   keys.header.ShapeText(),
                                                   ", must be <u8 or <i8 of [K]"));
  }
  const int64_t n = keys.header.rows();
  if (weights.header.dtype != "<f4" || weights.header.shape != std::vector<int64_t>{n, dim}) {
    return absl::InvalidArgumentError(absl::StrCat(weights_path, ": is ", weights.header.dtype,
                                                   " of shape ", weights.header.ShapeText(),
                                                   ", must be <f4 of (", n, ", ", dim, ")"));
  }
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / (4 * dim));
  std::vector<uint64_t> some_keys;
  std::vector<float> some_weights;
  for (int64_t begin = 0; begin < n; begin += piece) {
    const auto rows = static_cast<size_t>(std::min(piece, n - begin));
    some_keys.resize(rows);
    some_weights.resize(rows * static_cast<size_t>(dim));
    // The sizes are those of the headers; a file that shrinks meanwhile is short here.
    HOTROW_ASSIGN_OR_RETURN(const int64_t of_keys,
                            ReadUpTo(*keys.stream, std::as_writable_bytes(std::span(some_keys))));
    HOTROW_ASSIGN_OR_RETURN(
        const int64_t of_weights,
        ReadUpTo(*weights.stream, std::as_writable_bytes(std::span(some_weights))));
    if (of_keys < std::ssize(some_keys) * 8 || of_weights < std::ssize(some_weights) * 4) {
      return absl::DataLossError(absl::StrCat(dir, ": an array ends early"));
    }
    for (size_t i = 0; i < rows; ++i) {
      HOTROW_RETURN_IF_ERROR(
          giver->Add(some_keys[i], some_weights.data() + i * static_cast<size_t>(dim)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadCsv(Env& env, const std::string& path, int64_t dim, Giver* giver) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, OpenTextFile(env, path));
  LineReader lines(std::move(stream));
  std::vector<float> weights(static_cast<size_t>(dim));
  std::string_view line;
  while (lines.Next(&line)) {
    const auto error = [&](auto&&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", lines.line_number(), ": ", what...));
    };
    const std::vector<absl::string_view> fields = absl::StrSplit(AbslView(line), ',');
    if (lines.line_number() == 1 && fields[0] == "key") continue;
    if (std::ssize(fields) != 1 + dim) {
      return error("has ", fields.size(), " fields, must have ", 1 + dim, ": the key and ", dim,
                   " weights");
    }
    uint64_t key = 0;
    if (!absl::SimpleAtoi(fields[0], &key)) {
      return error("the key is \"", fields[0].substr(0, 40),
                   "\", must be a number from 0 to 2^64 - 1");
    }
    for (size_t c = 0; c < weights.size(); ++c) {
      if (absl::SimpleAtof(fields[c + 1], &weights[c])) continue;
      return error("weight ", c, " is \"", fields[c + 1].substr(0, 40), "\", must be a number");
    }
    HOTROW_RETURN_IF_ERROR(giver->Add(key, weights.data()));
  }
  return lines.status();
}

}  // namespace

absl::StatusOr<std::vector<PretrainedRows>> ParsePretrainedRows(std::string_view text) {
  std::vector<PretrainedRows> out;
  std::set<std::string> tables;
  if (text.empty()) return out;
  for (const absl::string_view part : absl::StrSplit(AbslView(text), ',')) {
    const size_t colon = part.find(':');
    if (colon == absl::string_view::npos || colon == 0 || colon + 1 == part.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" must be TABLE:PATH, the table and what its rows lie in"));
    }
    PretrainedRows rows = {std::string(part.substr(0, colon)), std::string(part.substr(colon + 1))};
    if (!tables.insert(rows.table).second) {
      return absl::InvalidArgumentError(absl::StrCat("table \"", rows.table, "\" comes twice"));
    }
    out.push_back(std::move(rows));
  }
  return out;
}

absl::StatusOr<int64_t> WritePretrainedRows(Env& env, const PretrainedRows& from, int64_t dim,
                                            int32_t rank, int32_t world_size,
                                            EmbeddingCollection* tables) {
  Giver giver(from, dim, rank, world_size, tables);
  HOTROW_ASSIGN_OR_RETURN(const bool arrays, env.Exists(from.path + "/keys.npy"));
  HOTROW_RETURN_IF_ERROR(arrays ? ReadArrays(env, from.path, dim, &giver)
                                : ReadCsv(env, from.path, dim, &giver));
  HOTROW_RETURN_IF_ERROR(giver.End());
  return giver.rows();
}

}  // namespace hotrow
