#include "models/data/criteo_npy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/npy.h"
#include "models/data/zip_archive.h"

namespace hotrow {
namespace {

constexpr int32_t kNumDense = 13;
constexpr int32_t kNumSparse = 26;
constexpr int64_t kChunkRows = 4'096;  // rows of all columns read together

// Rows of one array, front to back.
class Column {
 public:
  // `stream` stands behind the header.
  Column(std::string name, NpyHeader header, std::unique_ptr<ByteStream> stream)
      : name_(std::move(name)),
        header_(std::move(header)),
        stream_(std::move(stream)),
        rows_left_(header_.rows()) {}

  const std::string& name() const { return name_; }
  const NpyHeader& header() const { return header_; }
  absl::Status Skip(int64_t rows) {
    rows_left_ -= rows;
    return stream_->Skip(rows * header_.row_bytes());
  }

  // Reads the next rows; they are at row(0), row(1), ... until the next call.
  absl::Status Read(int64_t rows) {
    bytes_.resize(static_cast<size_t>(rows * header_.row_bytes()));
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, ReadUpTo(*stream_, bytes_));
    if (got < static_cast<int64_t>(bytes_.size())) {
      return absl::DataLossError(absl::StrCat(name_, ": the data ends early"));
    }
    rows_left_ -= rows;
    if (rows_left_ > 0) return absl::OkStatus();
    // A zip member checks itself when its end is reached.
    std::byte more[1];
    return stream_->Read(more).status();
  }
  const std::byte* row(int64_t i) const { return bytes_.data() + i * header_.row_bytes(); }

 private:
  std::string name_;
  NpyHeader header_;
  std::unique_ptr<ByteStream> stream_;
  int64_t rows_left_;
  std::vector<std::byte> bytes_;
};

// columns is the expected second dimension, 0 for any but 0; [N] passes for [N, 1].
absl::Status CheckArray(const Column& column, std::initializer_list<std::string_view> dtypes,
                        int64_t columns, int64_t file_bytes) {
  const NpyHeader& header = column.header();
  std::string expected;
  for (const std::string_view dtype : dtypes) {
    absl::StrAppend(&expected, expected.empty() ? "" : " or ", std::string(dtype));
  }
  if (std::find(dtypes.begin(), dtypes.end(), header.dtype) == dtypes.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(column.name(), ": dtype is ", header.dtype, ", expected ", expected));
  }
  const int64_t found = header.shape.size() == 1   ? 1
                        : header.shape.size() == 2 ? header.shape[1]
                                                   : 0;
  if (found == 0 || found > Sample::kMaxHotness || (columns > 0 && found != columns)) {
    return absl::InvalidArgumentError(
        absl::StrCat(column.name(), ": shape is ", header.ShapeText(), ", expected (N, ",
                     columns > 0 ? absl::StrCat(columns) : "hotness", ")"));
  }
  if (file_bytes - header.header_bytes != header.data_bytes) {
    return absl::DataLossError(absl::StrCat(
        column.name(), ": has ", file_bytes - header.header_bytes, " bytes of data, shape ",
        header.ShapeText(), " of ", header.dtype, " needs ", header.data_bytes));
  }
  return absl::OkStatus();
}

// The arrays of one day, opened together and read row by row.
class DayReader {
 public:
  static absl::StatusOr<DayReader> Open(Env& env, const std::string& prefix, bool multi_hot);

  int64_t rows() const { return columns_[0].header().rows(); }
  // The hotness of each feature; one where a single array holds all of them.
  const std::vector<int64_t>& hotness() const { return hotness_; }

  absl::Status Skip(int64_t rows) {
    for (Column& column : columns_) HOTROW_RETURN_IF_ERROR(column.Skip(rows));
    row_ += rows;
    return absl::OkStatus();
  }
  // rows at most kChunkRows.
  absl::Status Read(int64_t rows, Sample* sample, SampleBlock* block);

 private:
  absl::Status AddColumn(std::string name, std::unique_ptr<ByteStream> stream, int64_t file_bytes,
                         std::initializer_list<std::string_view> dtypes, int64_t columns);
  absl::Status AddFile(Env& env, const std::string& path,
                       std::initializer_list<std::string_view> dtypes, int64_t columns);
  absl::Status AddMultiHot(Env& env, const std::string& path);
  absl::Status BadValue(const Column& column, int64_t i, std::string_view what) const;

  std::vector<Column> columns_;  // labels, dense, then one or 26 of keys
  std::vector<int64_t> hotness_;
  int64_t row_ = 0;  // the next one
};

absl::Status DayReader::AddColumn(std::string name, std::unique_ptr<ByteStream> stream,
                                  int64_t file_bytes,
                                  std::initializer_list<std::string_view> dtypes, int64_t columns) {
  HOTROW_ASSIGN_OR_RETURN(NpyHeader header, ReadNpyHeader(*stream, name));
  columns_.emplace_back(std::move(name), std::move(header), std::move(stream));
  const Column& column = columns_.back();
  HOTROW_RETURN_IF_ERROR(CheckArray(column, dtypes, columns, file_bytes));
  if (column.header().rows() == rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(column.name(), ": has ", column.header().rows(),
                                                 " rows, ", columns_[0].name(), " has ", rows()));
}

absl::Status DayReader::AddFile(Env& env, const std::string& path,
                                std::initializer_list<std::string_view> dtypes, int64_t columns) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, env.Open(path, OpenMode::kRead));
  const std::shared_ptr<File> file = std::move(opened);
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty, expected an array"));
  }
  return AddColumn(path, NewFileSection(file, 0, size), size, dtypes, columns);
}

absl::Status DayReader::AddMultiHot(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const ZipArchive archive, ZipArchive::Open(std::move(file)));
  for (int f = 0; f < kNumSparse; ++f) {
    const std::string member_name = absl::StrCat(f, ".npy");
    const std::string name = absl::StrCat(path, "(", member_name, ")");
    const ZipMember* const member = archive.Find(member_name);
    if (member == nullptr) return absl::NotFoundError(absl::StrCat(name, ": no such member"));
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, archive.OpenMember(*member));
    HOTROW_RETURN_IF_ERROR(AddColumn(name, std::move(stream), member->bytes, {"<i4", "<i8"}, 0));
  }
  return absl::OkStatus();
}

absl::StatusOr<DayReader> DayReader::Open(Env& env, const std::string& prefix, bool multi_hot) {
  DayReader day;
  HOTROW_RETURN_IF_ERROR(day.AddFile(env, prefix + "_labels.npy", {"<i4"}, 1));
  HOTROW_RETURN_IF_ERROR(day.AddFile(env, prefix + "_dense.npy", {"<f4"}, kNumDense));
  if (!multi_hot) {
    HOTROW_RETURN_IF_ERROR(day.AddFile(env, prefix + "_sparse.npy", {"<i4", "<i8"}, kNumSparse));
    day.hotness_.assign(kNumSparse, 1);
    return day;
  }
  HOTROW_RETURN_IF_ERROR(day.AddMultiHot(env, prefix + "_sparse_multi_hot.npz"));
  for (size_t c = 2; c < day.columns_.size(); ++c) {
    const NpyHeader& header = day.columns_[c].header();
    day.hotness_.push_back(header.shape.size() == 1 ? 1 : header.shape[1]);
  }
  return day;
}

absl::Status DayReader::BadValue(const Column& column, int64_t i, std::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(column.name(), ": row ", row_ + i, ": ", std::string(what)));
}

// Appends n keys of 4 or 8 bytes.
void AppendKeys(const std::byte* from, int64_t n, int64_t item_bytes,
                std::vector<uint64_t>* values) {
  for (int64_t j = 0; j < n; ++j, from += item_bytes) {
    uint64_t key = 0;  // little-endian, so the low half comes first
    std::memcpy(&key, from, static_cast<size_t>(item_bytes));
    values->push_back(key);
  }
}

absl::Status DayReader::Read(int64_t rows, Sample* sample, SampleBlock* block) {
  for (Column& column : columns_) HOTROW_RETURN_IF_ERROR(column.Read(rows));
  sample->dense.resize(kNumDense);
  sample->lengths.assign(hotness_.begin(), hotness_.end());
  for (int64_t i = 0; i < rows; ++i) {
    int32_t label = 0;
    std::memcpy(&label, columns_[0].row(i), sizeof(label));
    if (label != 0 && label != 1) {
      return BadValue(columns_[0], i, absl::StrCat("found ", label, ", expected 0 or 1"));
    }
    sample->label = static_cast<float>(label);
    std::memcpy(sample->dense.data(), columns_[1].row(i), kNumDense * sizeof(float));
    for (int32_t c = 0; c < kNumDense; ++c) {
      if (!std::isfinite(sample->dense[static_cast<size_t>(c)])) {
        return BadValue(columns_[1], i, absl::StrCat("column ", c, " is not a finite number"));
      }
    }
    sample->values.clear();
    for (size_t c = 2; c < columns_.size(); ++c) {
      const NpyHeader& header = columns_[c].header();
      AppendKeys(columns_[c].row(i), header.row_bytes() / header.item_bytes, header.item_bytes,
                 &sample->values);
    }
    block->Append(*sample);
  }
  row_ += rows;
  return absl::OkStatus();
}

struct Range {
  std::string prefix;  // of a day's file names
  int64_t begin = 0;   // row
  int64_t end = 0;
};

class NpyStream : public SampleStream {
 public:
  NpyStream(Env& env, std::vector<Range> ranges, bool multi_hot)
      : env_(env), ranges_(std::move(ranges)), multi_hot_(multi_hot) {}

  absl::Status Read(int64_t max_samples, SampleBlock* block) override {
    int64_t left = max_samples;
    while (left > 0 && range_ < ranges_.size()) {
      const Range& range = ranges_[range_];
      const int64_t rows = std::min({left, range.end - range.begin - done_, kChunkRows});
      if (rows == 0) {
        NextRange();
        continue;
      }
      if (!day_.has_value()) {
        HOTROW_ASSIGN_OR_RETURN(day_, DayReader::Open(env_, range.prefix, multi_hot_));
        HOTROW_RETURN_IF_ERROR(day_->Skip(range.begin + done_));
      }
      HOTROW_RETURN_IF_ERROR(day_->Read(rows, &sample_, block));
      done_ += rows;
      left -= rows;
    }
    return absl::OkStatus();
  }

  // Days that are passed over altogether are not opened.
  absl::StatusOr<int64_t> Skip(int64_t n) override {
    int64_t left = n;
    while (left > 0 && range_ < ranges_.size()) {
      const Range& range = ranges_[range_];
      const int64_t rows = std::min(left, range.end - range.begin - done_);
      if (day_.has_value()) HOTROW_RETURN_IF_ERROR(day_->Skip(rows));
      done_ += rows;
      left -= rows;
      if (left > 0) NextRange();
    }
    return n - left;
  }

 private:
  void NextRange() {
    ++range_;
    done_ = 0;
    day_.reset();
  }

  Env& env_;
  const std::vector<Range> ranges_;
  const bool multi_hot_;
  size_t range_ = 0;
  int64_t done_ = 0;  // rows of the range handed out or skipped
  std::optional<DayReader> day_;
  Sample sample_;
};

class NpyFiles : public SampleFiles {
 public:
  NpyFiles(std::string dir, Env& env) : dir_(std::move(dir)), env_(env) {}

  absl::Status Init();
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<SampleStream>> OpenStream(Split split,
                                                           StreamUse /*use*/) const override {
    return std::make_unique<NpyStream>(env_, ranges_[static_cast<size_t>(split)], multi_hot_);
  }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    std::vector<std::string> paths;
    for (const int split : {0, 1}) {  // of the last day one half is validation, the other test
      for (const Range& range : ranges_[static_cast<size_t>(split)]) {
        for (const char* const name :
             {"_labels.npy", "_dense.npy", multi_hot_ ? "_sparse_multi_hot.npz" : "_sparse.npy"}) {
          paths.push_back(range.prefix + name);
        }
      }
    }
    return IdentityOfFiles(env_, paths);
  }
  // The size is known before.
  absl::StatusOr<bool> Load(int64_t max_bytes, std::array<SampleBlocks, 3>* splits) const override {
    const int64_t samples = schema_.train_samples + schema_.valid_samples + schema_.test_samples;
    if (samples > max_bytes / sample_bytes_) return false;
    return SampleFiles::Load(max_bytes, splits);
  }

 private:
  absl::StatusOr<std::vector<int64_t>> ListDays() const;

  const std::string dir_;
  Env& env_;
  DataSchema schema_;
  bool multi_hot_ = false;
  int64_t sample_bytes_ = 1;  // in memory, at least
  std::array<std::vector<Range>, 3> ranges_;
};

// The days that any file names, ascending.
absl::StatusOr<std::vector<int64_t>> NpyFiles::ListDays() const {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.ListDir(dir_));
  std::set<int64_t> days;
  for (const std::string& name : names) {
    constexpr std::string_view kStart = "day_";
    const std::string_view view = name;
    if (view.substr(0, kStart.size()) != kStart) continue;
    int64_t day = 0;
    const auto result =
        std::from_chars(view.data() + kStart.size(), view.data() + view.size(), day);
    if (result.ec != std::errc() || day < 0) continue;
    const std::string_view rest = view.substr(static_cast<size_t>(result.ptr - view.data()));
    if (rest == "_labels.npy" || rest == "_dense.npy" || rest == "_sparse.npy" ||
        rest == "_sparse_multi_hot.npz") {
      days.insert(day);
    }
  }
  if (days.size() < 2) {
    return absl::NotFoundError(absl::StrCat(
        dir_, ": found day_N_labels.npy, day_N_dense.npy and day_N_sparse.npy for ", days.size(),
        " days, expected two or more: the last one is for validation and test"));
  }
  return std::vector<int64_t>(days.begin(), days.end());
}

absl::Status NpyFiles::Init() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> days, ListDays());
  const auto prefix = [&](int64_t day) { return absl::StrCat(dir_, "/day_", day); };
  HOTROW_ASSIGN_OR_RETURN(multi_hot_, env_.Exists(prefix(days.front()) + "_sparse_multi_hot.npz"));
  std::vector<int64_t> hotness;
  for (const int64_t day : days) {
    HOTROW_ASSIGN_OR_RETURN(const DayReader reader, DayReader::Open(env_, prefix(day), multi_hot_));
    if (hotness.empty()) hotness = reader.hotness();
    if (hotness != reader.hotness()) {
      return absl::InvalidArgumentError(
          absl::StrCat(prefix(day), "_sparse_multi_hot.npz: the second dimensions differ from ",
                       "those of the first day"));
    }
    const int64_t rows = reader.rows();
    if (day != days.back()) {
      ranges_[0].push_back({prefix(day), 0, rows});
      schema_.train_samples += rows;
    } else {
      ranges_[1].push_back({prefix(day), 0, rows / 2});
      ranges_[2].push_back({prefix(day), rows / 2, rows});
      schema_.valid_samples = rows / 2;
      schema_.test_samples = rows - rows / 2;
    }
  }
  schema_.name = "criteo-npy";
  schema_.num_dense = kNumDense;
  sample_bytes_ = kNumDense * static_cast<int64_t>(sizeof(float)) + 1;
  for (int f = 0; f < kNumSparse; ++f) {
    const std::string name = absl::StrCat("C", f + 1);
    schema_.features.push_back({.name = name, .table = name, .max_hotness = hotness[f]});
    sample_bytes_ += hotness[f] * static_cast<int64_t>(sizeof(uint64_t));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenCriteoNpy(const std::string& dir,
                                                          const FileSourceOptions& options,
                                                          Env& env) {
  auto files = std::make_unique<NpyFiles>(dir, env);
  HOTROW_RETURN_IF_ERROR(files->Init());
  return OpenFileSource(std::move(files), options);
}

}  // namespace hotrow
