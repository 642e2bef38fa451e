#include "models/data/windowed_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/data/time_parts.h"

namespace hotrow {
namespace {

constexpr int64_t kReadSamples = 4096;
// Readers that stand at the end of a window: the one that judges and the one that trains.
constexpr size_t kKeptReaders = 2;

// Rounded down, also of what lies before 1970.
int64_t WindowOf(int64_t time, int64_t seconds) {
  return time / seconds - (time % seconds < 0 ? 1 : 0);
}

}  // namespace

// The samples of one window.
class WindowedSource::Reader : public DataReader {
 public:
  // base: stands before sample `position` of the window.
  Reader(WindowedSource* source, const DataWindow& window, int64_t position,
         std::unique_ptr<DataReader> base)
      : source_(*source), window_(window), position_(position), base_(std::move(base)) {}

  absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
    return NextSlice(max_batch_size, 0, 1, batch).status();
  }
  absl::StatusOr<int64_t> NextSlice(int64_t max_batch_size, int32_t rank, int32_t world_size,
                                    CtrBatch* slice) override {
    const int64_t left = window_.samples - position_;
    if (left == 0) {
      if (base_ != nullptr) {
        source_.KeepReader(window_.first_sample + position_, std::move(base_));
      }
      slice->batch_size = 0;
      return 0;
    }
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, base_->NextSlice(std::min(max_batch_size, left),
                                                                 rank, world_size, slice));
    if (size == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(source_.schema().name, ": they end ", left, " samples before the window of ",
                       source_.NameOf(window_.number),
                       " does; the files changed while they were read, begin again"));
    }
    position_ += size;
    return size;
  }
  int64_t position() const override { return position_; }

 private:
  WindowedSource& source_;
  const DataWindow window_;
  int64_t position_;
  std::unique_ptr<DataReader> base_;  // null: given back
};

WindowedSource::WindowedSource(DataSource* data, int64_t seconds, bool grows)
    : data_(*data), seconds_(seconds), grows_(grows), schema_(data->schema()) {
  HOTROW_CHECK(seconds > 0);
}

std::string WindowedSource::NameOf(int64_t number) const { return TimeText(number * seconds_); }

absl::Status WindowedSource::Read() {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataReader> reader,
                          data_.OpenSplit(Split::kTrain, /*epoch=*/0, samples_));
  for (CtrBatch batch;;) {
    HOTROW_RETURN_IF_ERROR(reader->Next(kReadSamples, &batch));
    if (batch.batch_size == 0) break;
    if (batch.times.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--window=", DurationText(seconds_), ": the samples of ", schema_.name,
          " have no time; a column of the schema with \"role\": \"time\" and a \"time_format\" "
          "gives them one, also in what is packed from it; generated ones have one with "
          "seconds=N"));
    }
    for (const int64_t time : batch.times) {
      if (time < kUnixOfYear0 || time >= kUnixOfYear10000) return NoTime(samples_, time);
      if (time < last_time_) return RunsBackwards(samples_, last_time_, time);
      last_time_ = time;
      const int64_t number = WindowOf(time, seconds_);
      if (windows_.empty() || windows_.back().number != number) {
        windows_.push_back({.number = number, .first_sample = samples_});
      }
      ++windows_.back().samples;
      ++samples_;
    }
  }
  if (samples_ == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(schema_.name, ": no sample goes to the training split"));
  }
  // How many there will be is not known.
  schema_.train_samples = grows_ ? 0 : samples_;
  if (grows_) {
    HOTROW_ASSIGN_OR_RETURN(last_place_, data_.PlaceOf(Split::kTrain, samples_ - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> WindowedSource::Grow() {
  kept_.clear();
  HOTROW_ASSIGN_OR_RETURN(const bool grew, data_.Grow());
  if (!grew) return false;
  HOTROW_ASSIGN_OR_RETURN(const std::string place, data_.PlaceOf(Split::kTrain, samples_ - 1));
  if (place != last_place_) {
    return absl::FailedPreconditionError(
        absl::StrCat("--follow: the last sample was ", last_place_, ", and in its place is ", place,
                     "; files may only come behind the others, by the order of their names"));
  }
  const size_t before = windows().size();
  HOTROW_RETURN_IF_ERROR(Read());
  return windows().size() > before;
}

absl::Status WindowedSource::NoTime(int64_t sample, int64_t time) {
  HOTROW_ASSIGN_OR_RETURN(const std::string place, data_.PlaceOf(Split::kTrain, sample));
  return absl::InvalidArgumentError(absl::StrCat(
      "--window=", DurationText(seconds_), ": ", place, " is of ", time,
      " seconds since 1970, which is not in the years 0 to 9999; pack the data again"));
}

absl::Status WindowedSource::RunsBackwards(int64_t sample, int64_t before, int64_t time) {
  HOTROW_ASSIGN_OR_RETURN(const std::string place_before, data_.PlaceOf(Split::kTrain, sample - 1));
  HOTROW_ASSIGN_OR_RETURN(const std::string place, data_.PlaceOf(Split::kTrain, sample));
  return absl::InvalidArgumentError(absl::StrCat(
      "--window=", DurationText(seconds_), ": time runs backwards: ", place, " is of ",
      TimeText(time), ", and the sample before it, ", place_before, ", of ", TimeText(before),
      "; sort the lines by time, name the files in the order of time, or pack them again so"));
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> WindowedSource::Identity() const {
  HOTROW_ASSIGN_OR_RETURN(auto identity, data_.Identity());
  if (grows_) return identity;
  identity.emplace_back(
      "windows", absl::StrCat(windows_.size(), ", the first of ", NameOf(windows_.front().number),
                              ", the last of ", NameOf(windows_.back().number)));
  return identity;
}

absl::StatusOr<std::unique_ptr<DataReader>> WindowedSource::OpenSplit(Split split, int64_t epoch,
                                                                      int64_t first_sample) {
  if (split != Split::kTrain) return data_.OpenSplit(split, epoch, first_sample);
  if (epoch < 0 || epoch >= std::ssize(windows())) {
    return absl::InvalidArgumentError(absl::StrCat(
        schema_.name, ": window ", epoch, ", expected one in [0, ", windows().size(), ")"));
  }
  const DataWindow& window = windows_[static_cast<size_t>(epoch)];
  if (first_sample < 0 || first_sample > window.samples) {
    return absl::OutOfRangeError(absl::StrCat(schema_.name, ": first sample is ", first_sample,
                                              ", the window of ", NameOf(window.number), " has ",
                                              window.samples, " samples"));
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataReader> base,
                          TakeReader(window.first_sample + first_sample));
  return std::make_unique<Reader>(this, window, first_sample, std::move(base));
}

absl::StatusOr<std::unique_ptr<DataReader>> WindowedSource::TakeReader(int64_t sample) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::ranges::find(kept_, sample, &decltype(kept_)::value_type::first);
    if (at != kept_.end()) {
      std::unique_ptr<DataReader> reader = std::move(at->second);
      kept_.erase(at);
      return reader;
    }
  }
  return data_.OpenSplit(Split::kTrain, /*epoch=*/0, sample);
}

void WindowedSource::KeepReader(int64_t sample, std::unique_ptr<DataReader> reader) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.emplace_back(sample, std::move(reader));
  if (kept_.size() > kKeptReaders) kept_.pop_front();
}

}  // namespace hotrow
