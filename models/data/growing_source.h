#ifndef HOTROW_MODELS_DATA_GROWING_SOURCE_H_
#define HOTROW_MODELS_DATA_GROWING_SOURCE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/data_source.h"
#include "models/data/file_source.h"

namespace hotrow {

// Data in files that come one after the other: opened again when there are more.
//
// Threads: as DataSource; no reader is open during Grow.
// Errors:  of Grow, those of opening; FailedPrecondition: features or labels are others than
//          before, or mean something else.
class GrowingSource : public DataSource {
 public:
  // Opens the files that are there now. vocabulary: of the data so far, which stays as it is; null:
  // that of whom training starts from.
  using OpenFiles =
      std::function<absl::StatusOr<std::unique_ptr<DataSource>>(const SavedVocabulary* vocabulary)>;
  static absl::StatusOr<std::unique_ptr<GrowingSource>> Open(OpenFiles open);

  const DataSchema& schema() const override { return now().schema(); }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    return now().Identity();
  }
  // Those of the files that were there first.
  const Vocabulary* vocabulary() const override { return first_->vocabulary(); }
  const TableSchema* table_schema() const override { return first_->table_schema(); }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    return now().OpenSplit(split, epoch, first_sample);
  }
  absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample) override {
    return now().PlaceOf(split, sample);
  }
  absl::Status ReadAll(int64_t batch_size, TakeBatch take) override {
    return now().ReadAll(batch_size, take);
  }
  absl::StatusOr<bool> Grow() override;

 private:
  explicit GrowingSource(OpenFiles open) : open_(std::move(open)) {}
  DataSource& now() const { return latest_ == nullptr ? *first_ : *latest_; }

  const OpenFiles open_;
  std::unique_ptr<DataSource> first_;
  std::unique_ptr<DataSource> latest_;  // null: nothing has come
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_GROWING_SOURCE_H_
