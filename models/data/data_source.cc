#include "models/data/data_source.h"

#include "base/status_macros.h"

namespace hotrow {

absl::Status DataSource::ReadAll(int64_t batch_size, TakeBatch take) {
  CtrBatch batch;
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataReader> reader,
                            OpenSplit(split, /*epoch=*/0, /*first_sample=*/0));
    while (true) {
      HOTROW_RETURN_IF_ERROR(reader->Next(batch_size, &batch));
      if (batch.batch_size == 0) break;
      HOTROW_RETURN_IF_ERROR(take(split, batch));
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow
