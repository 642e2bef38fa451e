#ifndef HOTROW_TESTS_MODELS_TWO_LABELS_H_
#define HOTROW_TESTS_MODELS_TWO_LABELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "models/data/data_source.h"

namespace hotrow::test {

// Synthetic clicks, and as a second label whether the first dense feature is positive, which a
// model learns quickly.
class TwoLabels : public DataSource {
 public:
  explicit TwoLabels(std::unique_ptr<DataSource> base)
      : base_(std::move(base)), schema_(base_->schema()) {
    schema_.labels = {"click", "positive"};
  }
  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                        int64_t first_sample) override {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataReader> reader,
                            base_->OpenSplit(split, epoch, first_sample));
    return std::make_unique<Reader>(std::move(reader));
  }

 private:
  class Reader : public DataReader {
   public:
    explicit Reader(std::unique_ptr<DataReader> base) : base_(std::move(base)) {}
    absl::Status Next(int64_t max_batch_size, CtrBatch* batch) override {
      HOTROW_RETURN_IF_ERROR(base_->Next(max_batch_size, batch));
      std::vector<float> labels;
      const size_t columns =
          batch->batch_size == 0 ? 0 : batch->dense.size() / static_cast<size_t>(batch->batch_size);
      for (size_t b = 0; b < static_cast<size_t>(batch->batch_size); ++b) {
        labels.push_back(batch->labels[b]);
        labels.push_back(batch->dense[b * columns] > 0 ? 1.0f : 0.0f);
      }
      batch->labels.assign(labels.begin(), labels.end());
      batch->num_labels = 2;
      return absl::OkStatus();
    }
    int64_t position() const override { return base_->position(); }

   private:
    std::unique_ptr<DataReader> base_;
  };

  const std::unique_ptr<DataSource> base_;
  DataSchema schema_;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_TWO_LABELS_H_
