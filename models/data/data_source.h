#ifndef HOTROW_MODELS_DATA_DATA_SOURCE_H_
#define HOTROW_MODELS_DATA_DATA_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/enum_words.h"
#include "models/data/ctr_batch.h"
#include "models/data/data_schema.h"

namespace hotrow {

class Vocabulary;
struct TableSchema;

enum class Split { kTrain, kValid, kTest };
inline constexpr EnumWord<Split> kSplitWords[] = {
    {"train", Split::kTrain}, {"valid", Split::kValid}, {"test", Split::kTest}};

// A stream of samples. Their order is a pure function of (seed, epoch): a reader that starts at
// (epoch, sample) sees the same samples as one that reads up to there.
//
// Threads: one at a time for each reader; readers of one source may run concurrently. A reader must
// not outlive its source.
class DataReader {
 public:
  virtual ~DataReader() = default;
  // Reads up to max_batch_size samples; an empty batch is the end of the split.
  virtual absl::Status Next(int64_t max_batch_size, CtrBatch* batch) = 0;
  // The slice of the next batch that one of several ranks holds (models/data/slice_batch.h), maybe
  // none of it. Returns the size of the batch; 0: the end of the split. world_size >= 1, 0 <= rank
  // < world_size.
  virtual absl::StatusOr<int64_t> NextSlice(int64_t max_batch_size, int32_t rank,
                                            int32_t world_size, CtrBatch* slice);
  // Samples of this epoch handed out so far, those before the start position included.
  virtual int64_t position() const = 0;

 private:
  CtrBatch whole_;  // what NextSlice takes slices of
};

class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual const DataSchema& schema() const = 0;
  // Identifies the data, in addition to the schema, by names and values in words. Files: names,
  // sizes and checksums of their beginnings and ends (IdentityOfFiles), but not their directories,
  // since ranks on several machines may have copies. Generated data: all their parameters. Empty:
  // not known. Errors: of reading the files.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const {
    return std::vector<std::pair<std::string, std::string>>();
  }
  // Which values have their own rows where rare ones are merged; null where none are. Part of a
  // model that is trained on these data. Lives as long as the source.
  virtual const Vocabulary* vocabulary() const { return nullptr; }
  // What lines of these data mean; null: they are no delimited text. Part of a model that is
  // trained on them. Lives as long as the source.
  virtual const TableSchema* table_schema() const { return nullptr; }
  // A reader of the split that starts at `first_sample` of the epoch. Validation and test data are
  // the same in every epoch. Errors: those of the files; OutOfRange when first_sample is beyond the
  // split.
  virtual absl::StatusOr<std::unique_ptr<DataReader>> OpenSplit(Split split, int64_t epoch,
                                                                int64_t first_sample) = 0;
  // Names a sample of epoch 0 for people: "day2.csv:17". Errors: those of the files.
  virtual absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample);
  // Takes in what came behind the training samples since; false: nothing did. No reader is open
  // meanwhile. Errors: those of opening it.
  virtual absl::StatusOr<bool> Grow() { return false; }
  // Calls take with batches of up to batch_size samples until all samples of all splits came, those
  // of each split in the order of epoch 0. One pass over files that hold several splits, where the
  // source can. Errors: its own, and the first one of take.
  using TakeBatch = absl::FunctionRef<absl::Status(Split split, const CtrBatch& batch)>;
  virtual absl::Status ReadAll(int64_t batch_size, TakeBatch take);
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_DATA_SOURCE_H_
