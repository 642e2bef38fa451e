#include "base/io_queue.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/philox.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr int64_t kBlock = 4096;  // no device here asks for more

RandomStream Random(uint64_t seed, uint64_t stream = 0) {
  return RandomStream(seed, RandomPurpose::kTest, stream);
}

// Memory aligned for direct transfers.
HostBuffer<std::byte> Memory(int64_t bytes) {
  auto buffer = HostBuffer<std::byte>::Create(std::max<int64_t>(bytes, 1 << 20), HugePages::kTry);
  HOTROW_EXPECT_OK(buffer);
  return *std::move(buffer);
}

// The size is a multiple of 8.
void Fill(std::span<std::byte> bytes, RandomStream& random) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.Next64();
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

IoRequest Transfer(bool write, File* file, int64_t offset, std::byte* data, int64_t bytes) {
  IoRequest request;
  request.file = file;
  request.write = write;
  request.offset = offset;
  request.data = data;
  request.bytes = bytes;
  return request;
}
IoRequest Read(const std::unique_ptr<File>& file, int64_t offset, std::byte* data, int64_t bytes) {
  return Transfer(false, file.get(), offset, data, bytes);
}
IoRequest Write(const std::unique_ptr<File>& file, int64_t offset, std::byte* data, int64_t bytes) {
  return Transfer(true, file.get(), offset, data, bytes);
}

// Runs, and checks what holds for every batch: on_done once each, on this thread, results whole.
void RunBatch(IoQueue& queue, std::span<IoRequest> requests) {
  std::vector<int> done(requests.size());
  for (IoRequest& request : requests) {
    request.done = -1;  // neither need be initialised
    request.status = absl::InternalError("not run");
  }
  const std::thread::id thread = std::this_thread::get_id();
  queue.Run(requests, [&](IoRequest& request) {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    const ptrdiff_t i = &request - requests.data();
    ASSERT_GE(i, 0);
    ASSERT_LT(i, std::ssize(requests));
    ++done[static_cast<size_t>(i)];
  });
  EXPECT_EQ(std::count(done.begin(), done.end(), 1), std::ssize(done));
  for (const IoRequest& request : requests) {
    EXPECT_EQ(request.status.ok(), request.done == request.bytes) << request.status.ToString();
    EXPECT_GE(request.done, 0);
  }
}
// The same where nothing is to fail.
void RunWell(IoQueue& queue, std::span<IoRequest> requests) {
  RunBatch(queue, requests);
  for (const IoRequest& request : requests) HOTROW_ASSERT_OK(request.status);
}

struct QueueKind {
  const char* name;
  std::function<std::unique_ptr<Env>()> make_env;  // null: PosixEnv()
  IoQueueKind kind;
  const char* queue_name;
};

// The contract of IoQueue, for every kind, on buffered and on direct files.
class IoQueueTest : public testing::TestWithParam<std::tuple<QueueKind, bool>> {
 protected:
  void SetUp() override {
    // A name that real file systems and those in memory have alike, once it is made.
    dir_ = test::TempDir() + "/";
    if (kind().make_env != nullptr) {
      owned_ = kind().make_env();
      HOTROW_ASSERT_OK(env().CreateDirs(dir_));
    } else {
      const auto queue = PosixEnv().NewIoQueue({.kind = kind().kind});
      if (kind().kind == IoQueueKind::kUring && !queue.ok()) {
        GTEST_SKIP() << queue.status().ToString();
      }
    }
  }

  const QueueKind& kind() const { return std::get<0>(GetParam()); }
  Env& env() { return owned_ != nullptr ? *owned_ : PosixEnv(); }
  std::string Path(const std::string& name) const { return dir_ + name; }

  std::unique_ptr<IoQueue> Queue(int depth = 128) {
    auto queue = env().NewIoQueue({.kind = kind().kind, .depth = depth, .threads = 4});
    HOTROW_EXPECT_OK(queue);
    return *std::move(queue);
  }
  std::unique_ptr<File> Open(const std::string& name, OpenMode mode = OpenMode::kCreate) {
    auto file =
        std::get<1>(GetParam()) ? env().OpenDirect(Path(name), mode) : env().Open(Path(name), mode);
    HOTROW_EXPECT_OK(file);
    return *std::move(file);
  }
  // A file of that many random bytes; they are in `memory`, too.
  std::unique_ptr<File> RandomFile(const std::string& name, int64_t bytes, uint64_t seed,
                                   HostBuffer<std::byte>& memory) {
    memory = Memory(bytes);
    RandomStream random = Random(seed);
    Fill({memory.data(), static_cast<size_t>(bytes)}, random);
    auto file = Open(name);
    HOTROW_EXPECT_OK(WriteFull(*file, 0, {memory.data(), static_cast<size_t>(bytes)}));
    return file;
  }

  std::unique_ptr<Env> owned_;
  std::string dir_;
};

std::unique_ptr<Env> ShuffledEnv() {
  auto env = std::make_unique<test::FaultyEnv>();
  env->ShuffleIo(1);
  return env;
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, IoQueueTest,
    testing::Combine(
        testing::Values(QueueKind{"PosixUring", nullptr, IoQueueKind::kUring, "io_uring"},
                        QueueKind{"PosixThreads", nullptr, IoQueueKind::kThreads, "threads"},
                        QueueKind{"Mem", [] { return std::make_unique<test::MemEnv>(); },
                                  IoQueueKind::kAuto, "in_order"},
                        QueueKind{"MemThreads", [] { return std::make_unique<test::MemEnv>(); },
                                  IoQueueKind::kThreads, "threads"},
                        QueueKind{"FaultyPosix",
                                  [] { return std::make_unique<test::FaultyEnv>(&PosixEnv()); },
                                  IoQueueKind::kAuto, "in_order"},
                        QueueKind{"FaultyShuffled", ShuffledEnv, IoQueueKind::kAuto, "shuffled"}),
        testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) +
             (std::get<1>(info.param) ? "Direct" : "Buffered");
    });

TEST_P(IoQueueTest, SaysWhatItIs) { EXPECT_STREQ(Queue()->name(), kind().queue_name); }

TEST_P(IoQueueTest, EmptyBatchDoesNothing) {
  const auto queue = Queue();
  RunBatch(*queue, {});
  EXPECT_EQ(queue->calls(), 0);
}

TEST_P(IoQueueTest, NothingToMoveIsDone) {
  const auto file = Open("a");
  IoRequest requests[] = {Read(file, 0, nullptr, 0), Write(file, kBlock, nullptr, 0)};
  RunWell(*Queue(), requests);
  EXPECT_EQ(*file->Size(), 0);
}

TEST_P(IoQueueTest, RandomReadsGetTheirBytes) {
  constexpr int64_t kBlocks = 200;
  HostBuffer<std::byte> content;
  const auto file = RandomFile("a", kBlocks * kBlock, 1, content);
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    for (const int depth : {1, 2, 33, 128, 4096}) {
      RandomStream random = Random(seed);
      constexpr int64_t kReads = 500;
      const HostBuffer<std::byte> memory = Memory(kReads * 4 * kBlock);
      std::vector<IoRequest> reads;
      for (int64_t i = 0; i < kReads; ++i) {
        const auto blocks = static_cast<int64_t>(random.Below(5));
        const auto at = static_cast<int64_t>(random.Below(kBlocks - blocks));
        reads.push_back(Read(file, at * kBlock,
                             const_cast<std::byte*>(memory.data()) + i * 4 * kBlock,
                             blocks * kBlock));
        reads.back().user_data = static_cast<uint64_t>(i);
      }
      RunWell(*Queue(depth), reads);
      for (const IoRequest& read : reads) {
        ASSERT_EQ(read.user_data, static_cast<uint64_t>(&read - reads.data()));
        ASSERT_EQ(
            std::memcmp(read.data, content.data() + read.offset, static_cast<size_t>(read.bytes)),
            0);
      }
    }
  }
}

// Reads of one half beside writes of the other, in batches of any size, by one queue; then the
// halves change roles. A copy of the files in memory says what must be there.
TEST_P(IoQueueTest, MixedBatchesMatchAModel) {
  constexpr int64_t kBlocks = 64;
  constexpr int64_t kFiles = 3;
  for (const uint64_t seed : test::Seeds(test::ForSanitizer(3, 1))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random = Random(seed);
    std::vector<HostBuffer<std::byte>> models(kFiles);
    std::vector<std::unique_ptr<File>> files;
    for (size_t f = 0; f < kFiles; ++f) {
      files.push_back(RandomFile(absl::StrCat(seed, "-", f), kBlocks * kBlock, f, models[f]));
    }
    const auto queue = Queue(16);
    auto memory = Memory(kFiles * kBlocks * kBlock);
    for (int64_t round = 0; round < 20; ++round) {
      Fill({memory.data(), static_cast<size_t>(memory.size())}, random);
      std::vector<IoRequest> requests;
      for (int64_t i = 0; i < kFiles * kBlocks; ++i) {
        if (random.Below(3) == 0) continue;
        const bool write = (i + round) % 2 == 0;
        requests.push_back(Transfer(write, files[static_cast<size_t>(i % kFiles)].get(),
                                    i / kFiles * kBlock, memory.data() + i * kBlock, kBlock));
        requests.back().user_data = static_cast<uint64_t>(i % kFiles);
      }
      for (size_t i = requests.size(); i > 1; --i) {
        std::swap(requests[i - 1], requests[random.Below(i)]);
      }
      RunWell(*queue, requests);
      for (const IoRequest& request : requests) {
        std::byte* const model = models[request.user_data].data() + request.offset;
        if (request.write) {
          std::memcpy(model, request.data, kBlock);
        } else {
          ASSERT_EQ(std::memcmp(request.data, model, kBlock), 0);
        }
      }
    }
    for (size_t f = 0; f < kFiles; ++f) {
      auto back = Memory(kBlocks * kBlock);
      HOTROW_ASSERT_OK(ReadFull(*files[f], 0, {back.data(), kBlocks * kBlock}));
      EXPECT_EQ(std::memcmp(back.data(), models[f].data(), kBlocks * kBlock), 0);
    }
  }
}

TEST_P(IoQueueTest, LargeRequestsMoveWhole) {
  constexpr int64_t kBytes = 9 * (1 << 20) + kBlock;
  auto written = Memory(2 * kBytes);
  RandomStream random = Random(1);
  Fill({written.data(), static_cast<size_t>(2 * kBytes)}, random);
  const auto file = Open("a");
  const auto queue = Queue();
  IoRequest writes[] = {Write(file, 0, written.data(), kBytes),
                        Write(file, kBytes, written.data() + kBytes, kBytes)};
  RunWell(*queue, writes);
  auto read = Memory(2 * kBytes);
  IoRequest reads[] = {Read(file, 0, read.data(), 2 * kBytes)};
  RunWell(*queue, reads);
  EXPECT_EQ(std::memcmp(read.data(), written.data(), 2 * kBytes), 0);
}

TEST_P(IoQueueTest, ReadPastTheEndSaysHowMuchThereWas) {
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, env().Open(Path("a"), OpenMode::kCreate));
    HOTROW_ASSERT_OK(WriteFull(*file, 0, Bytes(std::string(2 * kBlock + 100, 'x'))));
  }
  const auto file = Open("a", OpenMode::kRead);
  auto memory = Memory(8 * kBlock);
  IoRequest reads[] = {Read(file, 0, memory.data(), 2 * kBlock),
                       Read(file, kBlock, memory.data() + 2 * kBlock, 3 * kBlock),
                       Read(file, 4 * kBlock, memory.data() + 5 * kBlock, kBlock)};
  RunBatch(*Queue(), reads);
  HOTROW_EXPECT_OK(reads[0].status);
  EXPECT_EQ(reads[1].done, kBlock + 100);
  EXPECT_EQ(memory[2 * kBlock], std::byte{'x'});
  EXPECT_EQ(memory[3 * kBlock + 99], std::byte{'x'});
  EXPECT_THAT(reads[1].status, test::StatusIs(Code::kOutOfRange,
                                              AllOf(HasSubstr(Path("a")), HasSubstr("offset 4096"),
                                                    HasSubstr("byte 8292"))));
  EXPECT_EQ(reads[2].done, 0);
  EXPECT_THAT(reads[2].status, test::StatusIs(Code::kOutOfRange, HasSubstr("offset 16384")));
}

TEST_P(IoQueueTest, MisalignedIsRefusedOnDirectFilesOnly) {
  const auto file = Open("a");
  HOTROW_ASSERT_OK(file->Allocate(8 * kBlock));
  auto memory = Memory(8 * kBlock);
  std::fill(memory.begin(), memory.end(), std::byte{'m'});
  IoRequest requests[] = {Write(file, 1, memory.data(), kBlock),
                          Write(file, kBlock, memory.data() + 1, kBlock),
                          Write(file, 2 * kBlock, memory.data(), kBlock - 1),
                          Read(file, 4 * kBlock + 7, memory.data() + 2 * kBlock, kBlock),
                          Read(file, 5 * kBlock, memory.data() + 3 * kBlock, kBlock)};
  RunBatch(*Queue(), requests);
  for (const IoRequest& request : std::span(requests).first(4)) {
    if (!file->direct()) {
      HOTROW_EXPECT_OK(request.status);
      continue;
    }
    EXPECT_EQ(request.done, 0);
    EXPECT_THAT(
        request.status,
        test::StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr(request.write ? "write" : "read"), HasSubstr(Path("a")),
                             HasSubstr(absl::StrCat("offset ", request.offset)),
                             HasSubstr(absl::StrCat(file->block_bytes(), " bytes")))));
  }
  HOTROW_EXPECT_OK(requests[4].status);
  if (!file->direct()) return;
  auto back = Memory(8 * kBlock);
  HOTROW_ASSERT_OK(ReadFull(*file, 0, {back.data(), 8 * kBlock}));
  EXPECT_EQ(std::count(back.begin(), back.begin() + 8 * kBlock, std::byte{0}), 8 * kBlock);
}

// A bad request fails by itself, in any place of a batch longer than the queue is deep.
TEST_P(IoQueueTest, ErrorsNamePathAndOffsetAndLeaveOthersAlone) {
  HostBuffer<std::byte> content;
  const auto file = RandomFile("a", 64 * kBlock, 1, content);
  const auto reader = Open("a", OpenMode::kRead);
  const auto closed = Open("closed");
  HOTROW_ASSERT_OK(closed->Close());
  auto memory = Memory(64 * kBlock);
  std::vector<IoRequest> requests;
  for (int64_t i = 0; i < 64; ++i) {
    requests.push_back(Read(file, i * kBlock, memory.data() + i * kBlock, kBlock));
  }
  requests[3] = Write(reader, 3 * kBlock, memory.data() + 3 * kBlock, kBlock);
  requests[20].file = closed.get();
  requests[63].offset = -kBlock;
  RunBatch(*Queue(8), requests);
  EXPECT_THAT(requests[3].status,
              test::StatusIs(Code::kFailedPrecondition,
                             "write " + Path("a") + " at offset 12288: Bad file descriptor"));
  EXPECT_THAT(requests[20].status,
              test::StatusIs(Code::kFailedPrecondition, HasSubstr("read " + Path("closed"))));
  EXPECT_THAT(
      requests[63].status,
      test::StatusIs(Code::kInvalidArgument, HasSubstr("read " + Path("a") + " at offset -4096")));
  for (size_t i = 0; i < 64; ++i) {
    if (i == 3 || i == 20 || i == 63) continue;
    HOTROW_ASSERT_OK(requests[i].status);
    const auto at = static_cast<int64_t>(i) * kBlock;
    ASSERT_EQ(std::memcmp(memory.data() + at, content.data() + at, kBlock), 0);
  }
}

// on_done may use what was read: it is there, and stays.
TEST_P(IoQueueTest, BytesAreThereWhenOnDoneIsCalled) {
  HostBuffer<std::byte> content;
  const auto file = RandomFile("a", 256 * kBlock, 1, content);
  auto memory = Memory(256 * kBlock);
  std::vector<IoRequest> reads;
  for (int64_t i = 0; i < 256; ++i) {
    reads.push_back(Read(file, i * kBlock, memory.data() + i * kBlock, kBlock));
  }
  int64_t right = 0;
  Queue(32)->Run(reads, [&](IoRequest& read) {
    right += std::memcmp(read.data, content.data() + read.offset, kBlock) == 0 ? 1 : 0;
    std::memset(read.data, 0, kBlock);  // the memory is the caller's again
  });
  EXPECT_EQ(right, 256);
  EXPECT_EQ(std::count(memory.begin(), memory.begin() + 256 * kBlock, std::byte{0}), 256 * kBlock);
}

// The memory is the caller's again when Run is left, however that is.
TEST_P(IoQueueTest, WhatOnDoneThrowsIsThrownOnWhenAllHaveEnded) {
  HostBuffer<std::byte> content;
  const auto file = RandomFile("a", 64 * kBlock, 1, content);
  auto memory = Memory(64 * kBlock);
  std::vector<IoRequest> reads;
  for (int64_t i = 0; i < 64; ++i) {
    reads.push_back(Read(file, i * kBlock, memory.data() + i * kBlock, kBlock));
    reads.back().status = absl::InternalError("not run");
  }
  const auto queue = Queue(8);
  int calls = 0;
  const auto on_done = [&](IoRequest&) {
    if (++calls == 3) throw std::runtime_error("the caller's");
  };
  EXPECT_THROW(queue->Run(reads, on_done), std::runtime_error);
  EXPECT_EQ(calls, 3);
  for (const IoRequest& read : reads) HOTROW_EXPECT_OK(read.status);
  RunWell(*queue, reads);
}

TEST_P(IoQueueTest, TwoQueuesInTwoThreadsShareFiles) {
  constexpr int64_t kBlocks = 128;
  HostBuffer<std::byte> content;
  const auto file = RandomFile("a", kBlocks * kBlock, 1, content);
  const auto other = Open("b");
  HOTROW_ASSERT_OK(other->Truncate(2 * kBlocks * kBlock));
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      const auto queue = Queue(16);
      auto memory = Memory(kBlocks * kBlock);
      for (int round = 0; round < 5; ++round) {
        std::fill(memory.begin(), memory.end(), std::byte{0});
        std::vector<IoRequest> reads;
        std::vector<IoRequest> writes;
        for (int64_t i = 0; i < kBlocks; ++i) {
          std::byte* const data = memory.data() + i * kBlock;
          reads.push_back(Read(file, i * kBlock, data, kBlock));
          writes.push_back(Write(other, (2 * i + t) * kBlock, data, kBlock));
        }
        RunWell(*queue, reads);
        EXPECT_EQ(std::memcmp(memory.data(), content.data(), kBlocks * kBlock), 0);
        RunWell(*queue, writes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto back = Memory(2 * kBlocks * kBlock);
  HOTROW_ASSERT_OK(ReadFull(*other, 0, {back.data(), 2 * kBlocks * kBlock}));
  for (int64_t i = 0; i < 2 * kBlocks; ++i) {
    ASSERT_EQ(std::memcmp(back.data() + i * kBlock, content.data() + i / 2 * kBlock, kBlock), 0);
  }
}

TEST_P(IoQueueTest, GoesFromThreadToThread) {
  HostBuffer<std::byte> content;
  const auto file = RandomFile("a", 64 * kBlock, 1, content);
  const auto queue = Queue(16);  // made here, first used there
  const auto check = [&] {
    auto memory = Memory(64 * kBlock);
    std::vector<IoRequest> reads;
    for (int64_t i = 0; i < 64; ++i) {
      reads.push_back(Read(file, i * kBlock, memory.data() + i * kBlock, kBlock));
    }
    RunWell(*queue, reads);
    EXPECT_EQ(std::memcmp(memory.data(), content.data(), 64 * kBlock), 0);
  };
  for (int i = 0; i < 3; ++i) {
    std::thread(check).join();
    std::thread(check).join();
    check();
  }
  EXPECT_STREQ(queue->name(), kind().queue_name);

  // Used by a thread that has ended; goes with this one.
  const auto used = Queue();
  std::thread([&] {
    IoRequest reads[] = {Read(file, 0, content.data(), kBlock)};
    RunWell(*used, reads);
  }).join();
}

TEST_P(IoQueueTest, WritesGrowTheFile) {
  const auto file = Open("a");
  auto memory = Memory(32 * kBlock);
  RandomStream random = Random(1);
  Fill({memory.data(), 32 * kBlock}, random);
  std::vector<IoRequest> writes;
  for (int64_t i = 31; i >= 0; --i) {
    writes.push_back(Write(file, i * kBlock, memory.data() + i * kBlock, kBlock));
  }
  RunWell(*Queue(), writes);
  EXPECT_EQ(*file->Size(), 32 * kBlock);
  auto back = Memory(32 * kBlock);
  HOTROW_ASSERT_OK(ReadFull(*file, 0, {back.data(), 32 * kBlock}));
  EXPECT_EQ(std::memcmp(back.data(), memory.data(), 32 * kBlock), 0);
}

TEST(IoQueueOptionsTest, NamesTheFieldTheLimitAndTheValue) {
  HOTROW_EXPECT_OK(IoQueueOptions{}.Validate());
  test::MemEnv mem;
  for (Env* const env : {static_cast<Env*>(&mem), &PosixEnv()}) {
    EXPECT_THAT(env->NewIoQueue({.depth = 0}),
                test::StatusIs(Code::kInvalidArgument, HasSubstr("depth must lie in [1, 4096]")));
    EXPECT_THAT(env->NewIoQueue({.depth = 4097}),
                test::StatusIs(Code::kInvalidArgument, HasSubstr("is 4097")));
    EXPECT_THAT(env->NewIoQueue({.threads = 0}),
                test::StatusIs(Code::kInvalidArgument, HasSubstr("threads must lie in [1, 256]")));
    EXPECT_THAT(env->NewIoQueue({.threads = 257}),
                test::StatusIs(Code::kInvalidArgument, HasSubstr("is 257")));
  }
}

TEST(IoQueueOptionsTest, UringIsForTheRealFileSystem) {
  test::MemEnv env;
  EXPECT_THAT(env.NewIoQueue({.kind = IoQueueKind::kUring}),
              test::StatusIs(Code::kFailedPrecondition, HasSubstr("kAuto")));
}

// --- io_uring ---------------------------------------------------------------------------------

class UringTest : public testing::Test {
 protected:
  void SetUp() override {
    auto queue = PosixEnv().NewIoQueue({.kind = IoQueueKind::kUring});
    if (!queue.ok()) GTEST_SKIP() << queue.status().ToString();
    queue_ = *std::move(queue);
    path_ = test::TempDir() + "/a";
  }
  std::unique_ptr<IoQueue> queue_;
  std::string path_;
};

TEST_F(UringTest, IsWhatAutoTakes) {
  EXPECT_STREQ((*PosixEnv().NewIoQueue({}))->name(), "io_uring");
}

TEST_F(UringTest, SubmitsAndReapsInBulk) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, PosixEnv().OpenDirect(path_, OpenMode::kCreate));
  HOTROW_ASSERT_OK(file->Allocate(2048 * kBlock));
  auto memory = Memory(2048 * kBlock);
  std::vector<IoRequest> reads;
  for (int64_t i = 0; i < 2048; ++i) {
    reads.push_back(Read(file, i * kBlock, memory.data() + i * kBlock, kBlock));
  }
  // One call for 16 that go in, one for 64 that come out, and a tail of halves; on every thread.
  constexpr int64_t kCalls = 2048 / 16 + 2048 / 64 + 16;
  RunWell(*queue_, reads);
  EXPECT_LE(queue_->calls(), kCalls);
  std::thread([&] { RunWell(*queue_, reads); }).join();
  EXPECT_LE(queue_->calls(), 2 * kCalls);
  RunWell(*queue_, reads);
  EXPECT_LE(queue_->calls(), 3 * kCalls);
}

TEST_F(UringTest, FilesOfOtherEnvsGoThroughTheirOwnCalls) {
  test::MemEnv mem;
  test::FaultyEnv faulty(&PosixEnv());
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto here, mem.Open("/a", OpenMode::kCreate));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto there, faulty.OpenDirect(path_, OpenMode::kCreate));
  const int64_t calls = faulty.calls();
  auto memory = Memory(4 * kBlock);
  std::memcpy(memory.data(), "mem", 3);
  std::memcpy(memory.data() + kBlock, "posix", 5);
  IoRequest writes[] = {Write(here, 0, memory.data(), kBlock),
                        Write(there, 0, memory.data() + kBlock, kBlock)};
  RunWell(*queue_, writes);
  IoRequest reads[] = {Read(here, 0, memory.data() + 2 * kBlock, kBlock),
                       Read(there, 0, memory.data() + 3 * kBlock, kBlock)};
  RunWell(*queue_, reads);
  EXPECT_EQ(std::memcmp(memory.data(), memory.data() + 2 * kBlock, 2 * kBlock), 0);
  EXPECT_EQ(faulty.calls() - calls, 2);
}

// A pipe gives what it has: the one way to make the kernel fall short on purpose.
class PipeFile : public File {
 public:
  explicit PipeFile(int fd) : fd_(fd) {}
  absl::StatusOr<int64_t> ReadAt(int64_t, std::span<std::byte>) override { return 0; }
  absl::StatusOr<int64_t> WriteAt(int64_t, std::span<const std::byte>) override { return 0; }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Size() override { return 0; }
  absl::Status Truncate(int64_t) override { return absl::OkStatus(); }
  absl::Status Close() override { return absl::OkStatus(); }
  const std::string& path() const override { return path_; }
  int descriptor() const override { return fd_; }

 private:
  const int fd_;
  const std::string path_ = "/pipe";
};

TEST_F(UringTest, ShortReadsAreContinued) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::string text(3000, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
  ASSERT_EQ(::write(ends[1], text.data(), 1000), 1000);
  std::thread writer([&] {
    for (const size_t at : {1000, 1500}) {
      int unread = 1;  // wait until the first part was taken by itself
      while (unread > 0) {
        ASSERT_EQ(::ioctl(ends[0], FIONREAD, &unread), 0);
        std::this_thread::yield();
      }
      const size_t bytes = at == 1000 ? 500 : 1000;
      ASSERT_EQ(::write(ends[1], text.data() + at, bytes), static_cast<ssize_t>(bytes));
    }
    ::close(ends[1]);
  });
  PipeFile pipe(ends[0]);
  std::string read(2600, ' ');
  const auto data = reinterpret_cast<std::byte*>(read.data());
  IoRequest whole[] = {Transfer(false, &pipe, 0, data, 2000)};
  RunWell(*queue_, whole);
  EXPECT_EQ(read.substr(0, 2000), text.substr(0, 2000));
  IoRequest cut[] = {Transfer(false, &pipe, 2000, data + 2000, 600)};
  RunBatch(*queue_, cut);
  EXPECT_THAT(cut[0].status, test::StatusIs(Code::kOutOfRange, HasSubstr("byte 2500")));
  EXPECT_EQ(read.substr(0, 2500), text.substr(0, 2500));
  writer.join();
  ::close(ends[0]);
}

// On a real file system that is full: a write gets what fits, and then a name for what does not.
class SmallDiskTest : public testing::TestWithParam<IoQueueKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SmallDiskTest,
                         testing::Values(IoQueueKind::kUring, IoQueueKind::kThreads),
                         [](const auto& info) {
                           return info.param == IoQueueKind::kUring ? "Uring" : "Threads";
                         });

TEST_P(SmallDiskTest, WriteThatDoesNotFitIsNamed) {
  const std::string dir = test::TempDir();
  std::string skipped;
  std::thread([&] {  // the file system is this thread's alone
    const auto queue = PosixEnv().NewIoQueue({.kind = GetParam()});
    if (!queue.ok()) {
      skipped = queue.status().ToString();
      return;
    }
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=65536") != 0) {
      skipped = absl::StrCat("mount: ", std::strerror(errno));
      return;
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, PosixEnv().Open(dir + "/a", OpenMode::kCreate));
    auto memory = Memory(40 * kBlock);
    IoRequest fits[] = {Write(file, 0, memory.data(), 4 * kBlock)};
    RunWell(**queue, fits);
    IoRequest writes[] = {Write(file, 4 * kBlock, memory.data(), 40 * kBlock)};
    RunBatch(**queue, writes);
    EXPECT_EQ(writes[0].done, 12 * kBlock);
    EXPECT_THAT(writes[0].status,
                test::StatusIs(Code::kResourceExhausted,
                               HasSubstr("write " + dir + "/a at offset 65536: No space left")));
  })
      .join();
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

// Lets this thread's calls of one system call fail with this error from now on.
bool RefuseSystemCall(unsigned number, unsigned error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_number),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(NoUringTest, AutoTakesThreadsAndUringSaysWhy) {
  for (const int error_number : {EPERM, ENOSYS}) {
    std::thread([error_number] {
      ASSERT_TRUE(RefuseSystemCall(SYS_io_uring_setup, static_cast<unsigned>(error_number)));
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto queue, PosixEnv().NewIoQueue({}));
      EXPECT_STREQ(queue->name(), "threads");
      EXPECT_THAT(PosixEnv().NewIoQueue({.kind = IoQueueKind::kUring}),
                  test::StatusIs(Code::kFailedPrecondition, HasSubstr("threads")));
    }).join();
  }
}

// The kernel takes no more requests, as when it is out of memory; and then lets no ring be made.
TEST_F(UringTest, PlainCallsStepInWhenTheRingTakesNothing) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto file, PosixEnv().Open(path_, OpenMode::kCreate));
  auto content = Memory(300 * kBlock);
  RandomStream random = Random(1);
  Fill({content.data(), 300 * kBlock}, random);
  HOTROW_ASSERT_OK(WriteFull(*file, 0, {content.data(), 300 * kBlock}));
  for (const bool used_before : {false, true}) {
    std::thread([&] {
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto queue,
                                  PosixEnv().NewIoQueue({.kind = IoQueueKind::kUring}));
      const auto check = [&] {
        auto memory = Memory(300 * kBlock);
        std::vector<IoRequest> reads;
        for (int64_t i = 0; i < 300; ++i) {
          reads.push_back(Read(file, i * kBlock, memory.data() + i * kBlock, kBlock));
        }
        RunWell(*queue, reads);
        EXPECT_EQ(std::memcmp(memory.data(), content.data(), 300 * kBlock), 0);
      };
      if (used_before) check();
      ASSERT_TRUE(RefuseSystemCall(SYS_io_uring_enter, EAGAIN));
      const int64_t calls = queue->calls();
      check();
      EXPECT_GE(queue->calls(), calls + 300);  // one by one
      check();                                 // a new ring, which does not work either
      ASSERT_TRUE(RefuseSystemCall(SYS_io_uring_setup, ENOMEM));
      check();
    }).join();
  }
}

// --- FaultyEnv --------------------------------------------------------------------------------

class FaultyQueueTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kRequests = 12;

  void SetUp() override {
    if (GetParam()) env_.ShuffleIo(7);
    HOTROW_ASSERT_OK_AND_ASSIGN(file_, env_.OpenDirect("/a", OpenMode::kCreate));
    HOTROW_ASSERT_OK_AND_ASSIGN(queue_, env_.NewIoQueue({.depth = 8}));
    Prepare();
    HOTROW_ASSERT_OK(file_->Sync());
    HOTROW_ASSERT_OK(env_.SyncDir("/"));
  }

  // Block i of the file gets the i-th letter, block i of the memory its capital. Every other
  // request writes, the others read.
  void Prepare() {
    const auto fill = [this](char first) {
      for (int64_t i = 0; i < kRequests; ++i) {
        std::fill_n(memory_.data() + i * kBlock, kBlock, static_cast<std::byte>(first + i));
      }
    };
    fill('a');
    HOTROW_ASSERT_OK(WriteFull(*file_, 0, {memory_.data(), kRequests * kBlock}));
    fill('A');
    requests_.clear();
    for (int64_t i = 0; i < kRequests; ++i) {
      requests_.push_back(
          Transfer(i % 2 == 0, file_.get(), i * kBlock, memory_.data() + i * kBlock, kBlock));
    }
  }

  // Requests that are OK have done their work, and others nothing.
  void CheckBlocks() {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env_, "/a"));
    for (int64_t i = 0; i < kRequests; ++i) {
      const IoRequest& request = requests_[static_cast<size_t>(i)];
      const bool wrote = request.write && request.status.ok();
      const bool read = !request.write && request.status.ok();
      EXPECT_EQ(text.substr(static_cast<size_t>(i * kBlock), kBlock),
                std::string(kBlock, static_cast<char>((wrote ? 'A' : 'a') + i)));
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(request.data), kBlock),
                std::string(kBlock, static_cast<char>((read ? 'a' : 'A') + i)));
    }
  }

  test::FaultyEnv env_;
  HostBuffer<std::byte> memory_ = Memory(kRequests * kBlock);
  std::unique_ptr<File> file_;
  std::vector<IoRequest> requests_;
  std::unique_ptr<IoQueue> queue_;
};
INSTANTIATE_TEST_SUITE_P(Orders, FaultyQueueTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Shuffled" : "InOrder"; });

TEST_P(FaultyQueueTest, EachTransferIsACallThatCanFail) {
  for (int64_t k = 0; k < kRequests; ++k) {
    SCOPED_TRACE(k);
    Prepare();
    const int64_t calls = env_.calls();
    env_.FailCall(calls + k, absl::DataLossError("injected"));
    RunBatch(*queue_, requests_);
    EXPECT_EQ(env_.calls() - calls, kRequests);
    std::vector<ptrdiff_t> failed;
    for (const IoRequest& request : requests_) {
      if (request.status.ok()) continue;
      failed.push_back(&request - requests_.data());
      EXPECT_THAT(request.status, test::StatusIs(Code::kDataLoss, "injected"));
    }
    EXPECT_EQ(failed.size(), 1u);
    EXPECT_TRUE(GetParam() || failed == std::vector<ptrdiff_t>{k});
    CheckBlocks();
  }
}

TEST_P(FaultyQueueTest, ATransferWithoutMemoryFailsAlone) {
  Prepare();
  env_.ThrowCall(env_.calls() + 1);
  RunBatch(*queue_, requests_);
  EXPECT_EQ(std::count_if(
                requests_.begin(), requests_.end(),
                [](const IoRequest& request) { return absl::IsResourceExhausted(request.status); }),
            1);
  CheckBlocks();
}

TEST_P(FaultyQueueTest, ShortTransfersAreContinuedInWholeBlocks) {
  const int64_t calls = env_.calls();
  // 4096 bytes go as 2048, 1024, 512, 512: less than two blocks of the disk are not cut.
  for (int64_t k = 0; k < kRequests * 4; ++k) env_.ShortenCall(calls + k);
  RunWell(*queue_, requests_);
  EXPECT_EQ(env_.calls() - calls, kRequests * 4);
  EXPECT_EQ(env_.faults(), kRequests * 3);
  EXPECT_EQ(queue_->calls(), kRequests * 4);
  CheckBlocks();
}

TEST_P(FaultyQueueTest, DeadDiskFailsEveryRequestAndPowerLossKeepsSomeWrites) {
  int kept = 0;
  int lost = 0;
  RunBatch(*queue_, requests_);
  IoRequest again = Write(file_, 0, memory_.data(), kBlock);
  env_.FailFrom(env_.calls(), absl::UnavailableError("gone"));
  RunBatch(*queue_, {&again, 1});
  EXPECT_THAT(again.status, test::StatusIs(Code::kUnavailable, "gone"));
  env_.FailFrom(INT64_MAX, absl::OkStatus());
  env_.LosePower(3);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env_, "/a"));
  for (int64_t i = 0; i < kRequests; i += 2) {
    const char letter = text[static_cast<size_t>(i * kBlock)];
    ASSERT_TRUE(letter == 'A' + i || letter == 'a' + i);
    ++(letter == 'A' + i ? kept : lost);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(lost, 0);
}

TEST(ShuffledQueueTest, OrdersDifferBySeedAndRepeatWithIt) {
  // In what order requests were carried out, as the calls that got each failure tell, and in what
  // order they were reported.
  const auto run = [](uint64_t seed, int depth) {
    test::FaultyEnv env;
    env.ShuffleIo(seed);
    auto file = env.Open("/a", OpenMode::kCreate);
    HOTROW_EXPECT_OK(file);
    auto memory = Memory(20 * kBlock);
    std::vector<IoRequest> writes;
    for (int64_t i = 0; i < 20; ++i) {
      writes.push_back(Write(*file, i * kBlock, memory.data() + i * kBlock, kBlock));
    }
    auto queue = env.NewIoQueue({.depth = depth});
    HOTROW_EXPECT_OK(queue);
    const int64_t calls = env.calls();
    for (int64_t k = 0; k < 20; ++k) {
      env.FailCall(calls + k, absl::DataLossError(std::string(1, static_cast<char>('a' + k))));
    }
    std::string carried_out;
    std::string reported;
    (*queue)->Run(writes, [&](IoRequest& write) {
      reported += static_cast<char>('a' + (&write - writes.data()));
    });
    for (const IoRequest& write : writes) carried_out += std::string(write.status.message());
    return std::pair(carried_out, reported);
  };
  const std::string in_order = "abcdefghijklmnopqrst";
  EXPECT_EQ(run(1, 16), run(1, 16));
  EXPECT_NE(run(1, 16).first, run(2, 16).first);
  EXPECT_NE(run(1, 16).second, run(2, 16).second);
  EXPECT_NE(run(1, 16).first, in_order);
  EXPECT_NE(run(1, 16).second, in_order);
  EXPECT_EQ(run(1, 1), std::pair(in_order, in_order));  // nothing else is in flight
}

}  // namespace
}  // namespace hotrow
