#ifndef HOTROW_CACHE_ACCESS_TRACE_H_
#define HOTROW_CACHE_ACCESS_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "cache/key_sampler.h"

// Files of sampled table accesses, written while a model trains (docs/formats/trace.md): per step
// and table the distinct keys of the batch that are in the sample, how often each was looked up,
// and how many keys and lookups there were in all.
namespace hotrow {

class Env;
class File;

struct AccessTraceTable {
  uint32_t table = 0;  // as in RowKey
  std::string name;
};

struct AccessTraceOptions {
  std::string path;                      // required; replaced if it is there
  std::vector<AccessTraceTable> tables;  // required, distinct; names of at most 64 KiB
  double sample_rate = 0.01;             // in (0, 1], see KeySampler
  uint64_t seed = 0;                     // of the choice of keys
  Env* env = nullptr;                    // not owned; null = the real file system

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// Threads: one at a time. Cost: one hash and one comparison for a key that is not sampled.
// Durability: blocks are written as they fill, without a sync. A reader of the file of a killed
// process sees whole steps. Close makes the file durable.
// Errors: those of the file system. They are sticky: after one nothing more is written.
class AccessTraceWriter {
 public:
  static absl::StatusOr<std::unique_ptr<AccessTraceWriter>> Open(const AccessTraceOptions& options);
  // Without Close the file has no end block.
  ~AccessTraceWriter();
  AccessTraceWriter(const AccessTraceWriter&) = delete;
  AccessTraceWriter& operator=(const AccessTraceWriter&) = delete;

  // Adds the distinct keys of one table to the current step, and the lookups of each (empty: one
  // each). Once per table and step; the table must be one of the options'.
  absl::Status Add(uint32_t table, std::span<const uint64_t> keys,
                   std::span<const int32_t> lookups);
  // Ends the step. `samples` is the batch size.
  absl::Status EndStep(uint64_t step, uint32_t samples);
  absl::Status Close();

  int64_t bytes_written() const;

 private:
  struct Impl;
  explicit AccessTraceWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One step of a trace.
struct AccessTraceStep {
  struct Table {
    uint32_t table = 0;
    int64_t lookups = 0;           // of the batch, sampled or not
    int64_t unique_keys = 0;       // of the batch, sampled or not
    std::vector<uint64_t> keys;    // in the sample, distinct, in order of first appearance
    std::vector<uint32_t> counts;  // lookups of each
  };
  uint64_t step = 0;
  uint32_t samples = 0;
  std::vector<Table> tables;
};

// Threads: one at a time.
// Errors: DataLoss (not whole; names file and offset), FailedPrecondition (a newer format),
// InvalidArgument (no access trace).
class AccessTraceReader {
 public:
  static constexpr char kMagic[] = "HOTROWTR";  // the first 8 bytes of the file

  static absl::StatusOr<std::unique_ptr<AccessTraceReader>> Open(Env& env, const std::string& path);
  ~AccessTraceReader();

  const std::vector<AccessTraceTable>& tables() const { return tables_; }
  uint64_t sample_limit() const { return sample_limit_; }  // hashes up to it are in
  double sample_rate() const { return KeySampler::RateOfLimit(sample_limit_); }
  uint64_t seed() const { return seed_; }

  // The next step; false at the end.
  absl::StatusOr<bool> Next(AccessTraceStep* step);
  // Whether the writer closed the file, after Next has returned false. Otherwise the file ends
  // after the last whole step of a process that did not.
  bool complete() const { return complete_; }

 private:
  AccessTraceReader();

  absl::Status ReadHeader();
  absl::Status Damage(int64_t offset, const std::string& what) const;

  std::string path_;
  std::unique_ptr<File> file_;
  int64_t size_ = 0;
  int64_t offset_ = 0;
  int64_t steps_ = 0;
  bool ended_ = false;
  bool complete_ = false;
  std::vector<AccessTraceTable> tables_;
  uint64_t sample_limit_ = 0;
  uint64_t seed_ = 0;
  std::vector<std::byte> payload_;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_ACCESS_TRACE_H_
