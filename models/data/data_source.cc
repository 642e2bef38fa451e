#include "models/data/data_source.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/slice_batch.h"

namespace hotrow {

absl::StatusOr<int64_t> DataReader::NextSlice(int64_t max_batch_size, int32_t rank,
                                              int32_t world_size, CtrBatch* slice) {
  if (world_size == 1) {
    HOTROW_RETURN_IF_ERROR(Next(max_batch_size, slice));
    return slice->batch_size;
  }
  HOTROW_RETURN_IF_ERROR(Next(max_batch_size, &whole_));
  const int64_t size = whole_.batch_size;
  const int64_t num_features = size == 0 ? 0 : (std::ssize(whole_.offsets) - 1) / size;
  SliceBatch(whole_, num_features, SliceBegin(size, rank, world_size),
             SliceBegin(size, int64_t{rank} + 1, world_size), slice);
  return size;
}

absl::StatusOr<std::string> DataSource::PlaceOf(Split split, int64_t sample) {
  return absl::StrCat(schema().name, ", ", std::string(WordOf(kSplitWords, split)), " sample ",
                      sample);
}

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
