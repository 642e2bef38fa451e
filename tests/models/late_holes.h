#ifndef HOTROW_TESTS_MODELS_LATE_HOLES_H_
#define HOTROW_TESTS_MODELS_LATE_HOLES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "models/data/data_source.h"

namespace hotrow::test {

// Data of which now and then a sample lacks the lookup of its first feature: of 192 the one at 70,
// so that one batch of 64 in three has a bag without any.
class LateHoles : public DataSource {
 public:
  explicit LateHoles(std::unique_ptr<DataSource> base) : base_(std::move(base)) {}
  const DataSchema& schema() const override { return base_->schema(); }
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
      const int64_t first = base_->position();
      HOTROW_RETURN_IF_ERROR(base_->Next(max_batch_size, batch));
      for (int64_t b = 0; b < batch->batch_size; ++b) {
        if ((first + b) % 192 != 70) continue;
        batch->values.erase(batch->values.begin() + batch->offsets[static_cast<size_t>(b)]);
        for (size_t bag = static_cast<size_t>(b) + 1; bag < batch->offsets.size(); ++bag) {
          --batch->offsets[bag];
        }
      }
      return absl::OkStatus();
    }
    int64_t position() const override { return base_->position(); }

   private:
    std::unique_ptr<DataReader> base_;
  };

  const std::unique_ptr<DataSource> base_;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_LATE_HOLES_H_
