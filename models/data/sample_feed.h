#ifndef HOTROW_MODELS_DATA_SAMPLE_FEED_H_
#define HOTROW_MODELS_DATA_SAMPLE_FEED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/data/record_files.h"
#include "models/data/sample_block.h"
#include "models/data/table_schema.h"

namespace hotrow {

// Samples that follow each other in the files.
struct ParsedSamples {
  SampleBlock samples;
  std::vector<RecordPlace> places;  // [samples.size()]
};

// The samples of text files in file order, block by block, parsed by one thread or by several.
// Samples, their order and errors are those of a TableReader, with any number of threads; only
// where blocks end depends on it.
//
// Threads: Next belongs to one thread. The destructor ends the feed's own threads, wherever they
//          are; it waits for a call that reads a file.
// Memory:  one thread takes some KiB, N take 2 * N blocks of 256 KiB of text each (one record more
//          where that is longer) with the samples made of it.
// Errors:  as of TableReader, each after all samples before it; Unavailable where the system has no
//          thread. The first one stays.
class SampleFeed {
 public:
  virtual ~SampleFeed() = default;
  // At least one sample, valid until the next call; null at the end.
  virtual absl::StatusOr<const ParsedSamples*> Next() = 0;
  virtual std::string TextOf(RecordPlace place) const = 0;
};

inline constexpr int32_t kMaxReaderThreads = 1024;
// Text that one of several threads parses at a time: some 0.6 ms of work, so that handing over
// costs nothing beside it, and small enough for a core's cache together with its samples.
inline constexpr int64_t kBlockTextBytes = 256 << 10;

// threads in [1, kMaxReaderThreads]; 1: Next parses on the caller's thread, and none is started.
// schema and vocabulary (RowParser::Create) must outlive the feed.
std::unique_ptr<SampleFeed> NewSampleFeed(const TableSchema* schema, std::vector<std::string> paths,
                                          OpenText open, const Vocabulary* vocabulary,
                                          int32_t threads,
                                          int64_t block_text_bytes = kBlockTextBytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_SAMPLE_FEED_H_
