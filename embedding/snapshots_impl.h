#ifndef HOTROW_EMBEDDING_SNAPSHOTS_IMPL_H_
#define HOTROW_EMBEDDING_SNAPSHOTS_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace.h"
#include "embedding/options.h"
#include "embedding/stats.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

// Snapshots takes snapshots of the tiers while training goes on: a thread writes the rows that were
// dirty when one began, and another tidies the store up ahead of it. See BeginSnapshot and
// AnnounceSnapshot of EmbeddingCollection, whose calls these are, for what they promise.
//
// Threads: the caller's, but AddTo, which any thread may call.
class Snapshots {
 public:
  // tiers outlives this. notify_room is called, on any thread, when a snapshot has let go of rows
  // that it had pinned or held back.
  Snapshots(const EmbeddingCollectionOptions& options, TraceRecorder* trace, Tiers* tiers,
            std::function<void()> notify_room);
  ~Snapshots() { Stop(); }
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  void Announce();
  absl::Status Begin(SnapshotId id);
  absl::StatusOr<bool> Prepared();
  absl::Status Wait();
  absl::Status Prepare(SnapshotId id);
  // Waits for the threads.
  void Join();
  // Join, after the snapshot that is being written was told to fail.
  void Stop();

  void AddTo(EmbeddingStats* stats) const;

 private:
  // The one that was begun last.
  struct State {
    SnapshotId id = 0;
    bool done = true;
    absl::Status status;
    int64_t begin_ns = 0;
    // Over all of them.
    int64_t count = 0;
    int64_t failed = 0;
    int64_t pause_ns = 0;
    int64_t pause_ns_max = 0;
    int64_t prepare_ns = 0;
  };

  absl::Status CheckName(SnapshotId id) const;
  bool done() const;
  void Tidy();
  // On the snapshot's thread.
  absl::Status Write(SnapshotId id, bool tidy);
  void EndCapture();
  void Finish(absl::Status status);

  const bool kept_;  // there is a place for them
  TraceRecorder* const trace_;
  Tiers* const tiers_;
  const std::function<void()> notify_room_;

  mutable std::mutex mutex_;  // guards state_
  State state_;
  bool tidied_ = false;  // since the last snapshot was begun
  std::atomic<bool> stopping_{false};
  std::thread write_thread_;
  std::thread tidy_thread_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SNAPSHOTS_IMPL_H_
