#include "tests/support/faulty_env.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_queue.h"
#include "base/philox.h"
#include "base/status_macros.h"

namespace hotrow::test {

class FaultyEnv::FaultyFile : public File {
 public:
  FaultyFile(FaultyEnv* env, std::unique_ptr<File> base) : env_(env), base_(std::move(base)) {}

  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    size_t count = bytes.size();
    HOTROW_RETURN_IF_ERROR(env_->CountCall(&count, block_bytes()));
    return base_->ReadAt(offset, bytes.first(count));
  }
  absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
    size_t count = bytes.size();
    HOTROW_RETURN_IF_ERROR(env_->CountWrite(&count, block_bytes()));
    return base_->WriteAt(offset, bytes.first(count));
  }
  absl::Status Sync() override {
    const absl::Status injected = env_->CountWrite();
    if (injected.ok()) return base_->Sync();
    if (env_->mem_ != nullptr) env_->mem_->ForgetDirtyPages(*base_);
    return injected;
  }
  absl::StatusOr<int64_t> Size() override {
    HOTROW_RETURN_IF_ERROR(env_->CountCall());
    return base_->Size();
  }
  absl::Status Truncate(int64_t size) override {
    HOTROW_RETURN_IF_ERROR(env_->CountWrite());
    return base_->Truncate(size);
  }
  absl::Status Allocate(int64_t bytes) override {
    HOTROW_RETURN_IF_ERROR(env_->CountWrite());
    return base_->Allocate(bytes);
  }
  absl::Status Close() override {
    HOTROW_RETURN_IF_ERROR(env_->CountCall());
    return base_->Close();
  }
  const std::string& path() const override { return base_->path(); }
  int64_t block_bytes() const override { return base_->block_bytes(); }
  // No descriptor: a queue of the real file system, too, goes through the calls above.

 private:
  FaultyEnv* const env_;
  const std::unique_ptr<File> base_;
};

namespace {

// Moves one element, drawn at random, out of the vector.
IoRequest* Draw(std::vector<IoRequest*>& requests, RandomStream& random) {
  std::swap(requests[random.Below(requests.size())], requests.back());
  IoRequest* const request = requests.back();
  requests.pop_back();
  return request;
}

class ShuffledIoQueue : public IoQueue {
 public:
  ShuffledIoQueue(std::unique_ptr<IoQueue> in_order, int depth, uint64_t seed)
      : in_order_(std::move(in_order)),
        depth_(static_cast<size_t>(depth)),
        random_(seed, RandomPurpose::kTest) {}

  void RunAll(std::span<IoRequest> requests,
              absl::FunctionRef<void(IoRequest& request)> on_done) override {
    size_t next = 0;
    std::vector<IoRequest*> waiting;
    std::vector<IoRequest*> carried_out;
    for (;;) {
      while (next < requests.size() && waiting.size() + carried_out.size() < depth_) {
        waiting.push_back(&requests[next++]);
      }
      if (waiting.empty() && carried_out.empty()) return;
      if (carried_out.empty() || (!waiting.empty() && random_.Below(2) == 0)) {
        IoRequest* const request = Draw(waiting, random_);
        in_order_->Run({request, 1}, [](IoRequest&) {});
        calls_ = in_order_->calls();
        carried_out.push_back(request);
      } else {
        on_done(*Draw(carried_out, random_));
      }
    }
  }
  const char* name() const override { return "shuffled"; }

 private:
  const std::unique_ptr<IoQueue> in_order_;
  const size_t depth_;
  RandomStream random_;
};

// Copies of a Status share a count, which a library keeps that ThreadSanitizer does not see into: a
// copy that one thread drops would race with the original that another replaces.
absl::Status Unshared(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

}  // namespace

FaultyEnv::FaultyEnv() : mem_(std::make_unique<MemEnv>()), base_(mem_.get()) {}
FaultyEnv::FaultyEnv(Env* base) : base_(base) {}
FaultyEnv::~FaultyEnv() = default;

void FaultyEnv::FailCall(int64_t k, absl::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failures_[k] = std::move(status);
}

void FaultyEnv::ThrowCall(int64_t k) {
  const std::lock_guard<std::mutex> lock(mutex_);
  throws_at_ = k;
}

void FaultyEnv::FailFrom(int64_t k, absl::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_from_ = k;
  fail_from_status_ = std::move(status);
}

void FaultyEnv::ShortenCall(int64_t k) {
  const std::lock_guard<std::mutex> lock(mutex_);
  shortened_.insert(k);
}

void FaultyEnv::FailWrites(uint64_t seed, uint64_t one_in, absl::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  write_coin_.emplace(seed, RandomPurpose::kTest);
  one_in_ = one_in;
  write_status_ = std::move(status);
}

void FaultyEnv::ShuffleIo(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  io_seed_ = seed;
}

int64_t FaultyEnv::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

int64_t FaultyEnv::faults() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return faults_;
}

absl::Status FaultyEnv::CountCall(size_t* io_bytes, int64_t block_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t call = calls_++;
  if (call == throws_at_) {
    ++faults_;
    throw std::bad_alloc();
  }
  if (call >= fail_from_) {
    ++faults_;
    return Unshared(fail_from_status_);
  }
  if (const auto it = failures_.find(call); it != failures_.end()) {
    ++faults_;
    return Unshared(it->second);
  }
  const auto block = static_cast<size_t>(block_bytes);
  if (io_bytes != nullptr && *io_bytes >= 2 * block && shortened_.contains(call)) {
    ++faults_;
    *io_bytes = *io_bytes / (2 * block) * block;
  }
  return absl::OkStatus();
}

absl::Status FaultyEnv::CountWrite(size_t* io_bytes, int64_t block_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (one_in_ > 0 && write_coin_->Below(one_in_) == 0) {
      ++calls_;
      ++faults_;
      return Unshared(write_status_);
    }
  }
  return CountCall(io_bytes, block_bytes);
}

absl::Status FaultyEnv::FlipBit(const std::string& path, int64_t bit_offset) {
  if (mem_ != nullptr) return mem_->FlipBit(path, bit_offset);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          base_->Open(path, OpenMode::kReadWrite));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (bit_offset < 0 || bit_offset / 8 >= size) {
    return absl::OutOfRangeError(absl::StrCat("flip a bit of ", path, ": bit ", bit_offset,
                                              " of a file of ", size, " bytes"));
  }
  std::byte byte;
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, bit_offset / 8, {&byte, 1}));
  byte ^= static_cast<std::byte>(1 << (bit_offset % 8));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, bit_offset / 8, {&byte, 1}));
  return file->Close();
}

void FaultyEnv::DropUnsyncedData() {
  HOTROW_CHECK(mem_ != nullptr);
  mem_->DropUnsyncedData();
}

void FaultyEnv::LosePower(uint64_t seed) {
  HOTROW_CHECK(mem_ != nullptr);
  mem_->LosePower(seed);
}

void FaultyEnv::SetCapacity(int64_t bytes) {
  HOTROW_CHECK(mem_ != nullptr);
  mem_->SetCapacity(bytes);
}

void FaultyEnv::SetDirectBlockBytes(int64_t bytes) {
  HOTROW_CHECK(mem_ != nullptr);
  mem_->SetDirectBlockBytes(bytes);
}

absl::StatusOr<std::unique_ptr<File>> FaultyEnv::Open(const std::string& path, OpenMode mode) {
  HOTROW_RETURN_IF_ERROR(CountCall());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_->Open(path, mode));
  return std::make_unique<FaultyFile>(this, std::move(file));
}
absl::StatusOr<std::unique_ptr<File>> FaultyEnv::OpenDirect(const std::string& path,
                                                            OpenMode mode) {
  HOTROW_RETURN_IF_ERROR(CountCall());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_->OpenDirect(path, mode));
  return std::make_unique<FaultyFile>(this, std::move(file));
}
absl::Status FaultyEnv::CreateDirs(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountWrite());
  return base_->CreateDirs(path);
}
absl::StatusOr<std::vector<std::string>> FaultyEnv::ListDir(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountCall());
  return base_->ListDir(path);
}
absl::StatusOr<bool> FaultyEnv::Exists(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountCall());
  return base_->Exists(path);
}
absl::Status FaultyEnv::Rename(const std::string& from, const std::string& to) {
  HOTROW_RETURN_IF_ERROR(CountWrite());
  return base_->Rename(from, to);
}
absl::Status FaultyEnv::Remove(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountWrite());
  return base_->Remove(path);
}
absl::Status FaultyEnv::RemoveDir(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountWrite());
  return base_->RemoveDir(path);
}
absl::Status FaultyEnv::SyncDir(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountWrite());
  return base_->SyncDir(path);
}
absl::StatusOr<int64_t> FaultyEnv::FreeBytes(const std::string& path) {
  HOTROW_RETURN_IF_ERROR(CountCall());
  return base_->FreeBytes(path);
}
absl::StatusOr<std::unique_ptr<IoQueue>> FaultyEnv::NewIoQueue(const IoQueueOptions& options) {
  HOTROW_RETURN_IF_ERROR(CountCall());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, Env::NewIoQueue(options));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (options.kind != IoQueueKind::kAuto || !io_seed_.has_value()) return queue;
  return std::make_unique<ShuffledIoQueue>(std::move(queue), options.depth, *io_seed_);
}

}  // namespace hotrow::test
