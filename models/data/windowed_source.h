#ifndef HOTROW_MODELS_DATA_WINDOWED_SOURCE_H_
#define HOTROW_MODELS_DATA_WINDOWED_SOURCE_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/data_source.h"

namespace hotrow {

// The samples of a day, say.
struct DataWindow {
  int64_t number = 0;        // windows since 1970; it begins at number * its length
  int64_t first_sample = 0;  // in the training split
  int64_t samples = 0;       // at least one
};

// Training data in the order of time, cut into windows of one length. Its epochs are the windows:
// epoch k of the training split is the k-th window that has samples. Windows begin at multiples of
// their length since 1970, UTC. Validation and test data are those of the data beneath.
//
// A reader goes on where another one ended, so that going through the windows one after the other
// reads text once, and judging each before it is trained reads it twice.
//
// Data that grow end in a window that may still become longer: it is none until samples of a later
// one are there.
//
// Threads: as DataSource; nothing else runs during Read and Grow, and no reader is open.
// Errors:  of Read and Grow, InvalidArgument: samples without a time, or of no year; one that is
// before the sample
//          in front of it, which names both with their times; of Grow, FailedPrecondition: samples
//          came in front of those that were there; the same of readers: the data have fewer samples
//          than when they were read.
class WindowedSource : public DataSource {
 public:
  // `data` outlives it; its training samples come in the order of the files. seconds > 0.
  WindowedSource(DataSource* data, int64_t seconds, bool grows = false);

  // Reads the times of all samples, and finds the windows. Before all else.
  absl::Status Read();
  // The same of samples that came behind them. Whether there are more windows.
  absl::StatusOr<bool> Grow() override;

  std::span<const DataWindow> windows() const {
    return std::span(windows_).first(windows_.size() - (grows_ && !windows_.empty() ? 1 : 0));
  }
  // The window's beginning, for people.
  std::string NameOf(int64_t number) const;

  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override;
  const Vocabulary* vocabulary() const override { return data_.vocabulary(); }
  const TableSchema* table_schema() const override { return data_.table_schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override;
  absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample) override {
    return data_.PlaceOf(split, sample);
  }
  absl::Status ReadAll(int64_t batch_size, TakeBatch take) override {
    return data_.ReadAll(batch_size, take);
  }

 private:
  class Reader;

  absl::Status NoTime(int64_t sample, int64_t time);
  absl::Status RunsBackwards(int64_t sample, int64_t before, int64_t time);
  // A reader of the data that stands before this sample.
  absl::StatusOr<std::unique_ptr<DataReader>> TakeReader(int64_t sample);
  void KeepReader(int64_t sample, std::unique_ptr<DataReader> reader);

  DataSource& data_;
  const int64_t seconds_;
  const bool grows_;
  DataSchema schema_;
  std::vector<DataWindow> windows_;  // all of them
  int64_t samples_ = 0;              // whose times were read
  int64_t last_time_ = std::numeric_limits<int64_t>::min();
  std::string last_place_;  // data that grow: of the last sample
  std::mutex mutex_;        // guards what follows
  std::deque<std::pair<int64_t, std::unique_ptr<DataReader>>> kept_;  // with where they stand
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_WINDOWED_SOURCE_H_
