// Ranks that the caller connects: the callbacks of the C interface over threads of this process.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hotrow/hotrow.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::HasSubstr;

// The transport: what mpi4py or torch.distributed would be.
struct Channel {
  std::unique_ptr<Communicator> own;
  // Exchanges of all channels until they fail; null: they never do.
  std::shared_ptr<std::atomic<int>> calls_left;
  bool throws = false;  // Duplicate does
};

hotrow_status Told(const absl::Status& status, char* text, uint64_t text_size) {
  if (status.ok()) return HOTROW_OK;
  const std::string message(status.message());
  const size_t n = std::min<size_t>(message.size(), text_size - 1);
  std::memcpy(text, message.data(), n);
  text[n] = '\0';
  return static_cast<hotrow_status>(status.code());
}

hotrow_status Exchange(void* user, const char*, const void* const* send, const int64_t* send_bytes,
                       void* const* recv, const int64_t* recv_bytes, double, char* text,
                       uint64_t text_size) {
  auto& channel = *static_cast<Channel*>(user);
  if (channel.calls_left != nullptr && channel.calls_left->fetch_sub(1) <= 0) {
    return Told(absl::DataLossError("the cable was cut"), text, text_size);
  }
  const int n = channel.own->world_size();
  std::vector<int64_t> send_offsets;
  std::vector<int64_t> recv_offsets;
  std::vector<char> out;
  int64_t in_bytes = 0;
  for (int p = 0; p < n; ++p) {
    send_offsets.push_back(std::ssize(out));
    recv_offsets.push_back(in_bytes);
    const auto* const bytes = static_cast<const char*>(send[p]);
    out.insert(out.end(), bytes, bytes + send_bytes[p]);
    in_bytes += recv_bytes[p];
  }
  std::vector<char> in(static_cast<size_t>(in_bytes));
  const size_t size = static_cast<size_t>(n);
  const absl::Status status = channel.own->AllToAllV({.send = out.data(),
                                                      .send_bytes = {send_bytes, size},
                                                      .send_offsets = send_offsets,
                                                      .recv = in.data(),
                                                      .recv_bytes = {recv_bytes, size},
                                                      .recv_offsets = recv_offsets});
  if (!status.ok()) return Told(status, text, text_size);
  for (size_t p = 0; p < size; ++p) {
    if (recv_bytes[p] > 0) {
      std::memcpy(recv[p], in.data() + recv_offsets[p], static_cast<size_t>(recv_bytes[p]));
    }
  }
  return HOTROW_OK;
}

hotrow_status Duplicate(void* user, void** made, char* text, uint64_t text_size) {
  if (static_cast<Channel*>(user)->throws) throw std::bad_alloc();
  absl::StatusOr<std::unique_ptr<Communicator>> other =
      static_cast<Channel*>(user)->own->Duplicate();
  if (!other.ok()) return Told(other.status(), text, text_size);
  *made = new Channel{*std::move(other), static_cast<Channel*>(user)->calls_left};
  return HOTROW_OK;
}

void Release(void* user) { delete static_cast<Channel*>(user); }

void Abort(void* user, const char* message) { static_cast<Channel*>(user)->own->Abort(message); }

hotrow_status Status(void* user, char* text, uint64_t text_size) {
  return Told(static_cast<Channel*>(user)->own->status(), text, text_size);
}

// What rank 1 alone does wrong, in the second step.
enum class Wrong {
  kNothing,
  kOptions,
  kNoPlace,   // for the handle
  kNoMemory,  // a callback throws
  kBatch,
  kOutput,
  kGradient,
  kTable,
  kNoText,    // for the digest
  kNoAnswer,  // to hotrow_checkpoint_poll
  kOwnError
};

// What one rank does. Returns the digest, or the message of the first error. dir: of a checkpoint
// at the end; "": none. on_gpu: each rank on one.
std::string RankMain(std::unique_ptr<Communicator> own, int calls_left, Wrong wrong,
                     const std::string& dir, bool on_gpu) {
  const int rank = own->rank();
  hotrow_communicator_callbacks callbacks;
  hotrow_communicator_callbacks_default(&callbacks, sizeof(callbacks));
  callbacks.rank = rank;
  callbacks.world_size = own->world_size();
  callbacks.user = new Channel{
      std::move(own), calls_left < 0 ? nullptr : std::make_shared<std::atomic<int>>(calls_left),
      wrong == Wrong::kNoMemory};
  callbacks.exchange = Exchange;
  callbacks.duplicate = Duplicate;
  callbacks.release = Release;
  callbacks.abort = Abort;
  callbacks.status = Status;
  hotrow_communicator* communicator = nullptr;
  if (hotrow_communicator_create(&callbacks, &communicator) != HOTROW_OK) {
    return hotrow_error_message();
  }
  const char* const feature = "item";
  hotrow_table table;
  hotrow_table_default(&table, sizeof(table));
  table.name = "items";
  table.embedding_dim = 2;
  table.feature_names = &feature;
  table.num_features = 1;
  hotrow_collection_options options;
  hotrow_collection_options_default(&options, sizeof(options));
  options.tables = &table;
  options.num_tables = 1;
  options.max_batch_size = 8;
  options.store_memory_bytes = 16 << 20;
  options.communicator = communicator;
  options.checkpoint_dir = dir.c_str();
  hotrow_context* context = nullptr;
  if (on_gpu) {
    options.cache_device_bytes = 1 << 20;
    hotrow_context_options gpu;
    hotrow_context_options_default(&gpu, sizeof(gpu));
    gpu.device = "cuda";
    gpu.device_index = rank;
    if (hotrow_context_create(&gpu, &context) != HOTROW_OK) return hotrow_error_message();
  }
  if (wrong == Wrong::kOptions) options.prefetch_depth = -1;
  hotrow_collection* tables = nullptr;
  hotrow_status status =
      hotrow_collection_create(context, &options, wrong == Wrong::kNoPlace ? nullptr : &tables);
  hotrow_context_destroy(context);
  const std::unique_ptr<hotrow_communicator, decltype(&hotrow_communicator_destroy)> kept(
      wrong == Wrong::kOwnError ? communicator : nullptr, hotrow_communicator_destroy);
  if (kept == nullptr) hotrow_communicator_destroy(communicator);  // the collection keeps it
  if (status != HOTROW_OK) return hotrow_error_message();

  // Together the samples 0 to 3 of each step, whoever has them.
  const int per_rank = 4 / callbacks.world_size;
  std::string out;
  for (uint64_t step = 0; status == HOTROW_OK && step < 3; ++step) {
    std::vector<uint64_t> ids;
    std::vector<int64_t> lengths(static_cast<size_t>(per_rank), 1);
    std::vector<float> rows(static_cast<size_t>(2 * per_rank));
    for (int i = 0; i < per_rank; ++i) ids.push_back(10 * step + 100 * (rank * per_rank + i));
    const auto is = [&](Wrong what) { return step == 1 && wrong == what; };
    const hotrow_bags bags = {.values = ids.data(),
                              .offsets = nullptr,
                              .lengths = lengths.data(),
                              .weights = nullptr,
                              .num_values = per_rank,
                              .values_type = is(Wrong::kBatch) ? 77 : HOTROW_UINT64,
                              .bags_type = HOTROW_INT64};
    const hotrow_batch batch = {.struct_size = sizeof(hotrow_batch),
                                .batch_size = per_rank,
                                .bags = &bags,
                                .num_features = 1};
    const hotrow_matrix matrix = {.data = rows.data(),
                                  .rows = per_rank,
                                  .cols = 2,
                                  .stride = 2,
                                  .type = HOTROW_FLOAT32,
                                  .reserved = 0};
    hotrow_matrix narrow = matrix;
    narrow.cols = 1;
    const hotrow_matrix& output = is(Wrong::kOutput) ? narrow : matrix;
    const hotrow_matrix& gradient = is(Wrong::kGradient) ? narrow : matrix;
    hotrow_step* handle = nullptr;
    if (is(Wrong::kOwnError)) hotrow_communicator_abort(communicator, "its data end");
    if (is(Wrong::kTable)) {
      status = hotrow_read_rows(tables, "shops", nullptr, 0, &matrix, nullptr);
    }
    if (is(Wrong::kNoText)) status = hotrow_digest(tables, nullptr, 1 << 20, nullptr);
    if (status == HOTROW_OK) status = hotrow_prefetch(tables, &batch, &handle);
    if (status == HOTROW_OK) status = hotrow_step_lookup(handle, &output, nullptr, 0);
    if (status == HOTROW_OK) status = hotrow_step_update(handle, &gradient, nullptr, 0, 1);
    if (status != HOTROW_OK) out = hotrow_error_message();
    // A device may still read and write the memory of the step.
    if (hotrow_wait(tables) != HOTROW_OK && status == HOTROW_OK) {
      status = HOTROW_INTERNAL;
      out = hotrow_error_message();
    }
    hotrow_step_destroy(handle);
  }
  if (status == HOTROW_OK && !dir.empty()) {
    status = hotrow_checkpoint_begin(tables, nullptr, 0);
    if (status == HOTROW_OK) {
      status = wrong == Wrong::kNoAnswer ? hotrow_checkpoint_poll(tables, nullptr)
                                         : hotrow_checkpoint_wait(tables);
    }
  }
  char text[1024];
  if (status == HOTROW_OK) status = hotrow_digest(tables, text, sizeof(text), nullptr);
  if (status == HOTROW_OK) out = text;
  if (out.empty()) out = hotrow_error_message();
  hotrow_collection_destroy(tables);
  return out;
}

// cut_after: exchanges of rank 1 until its transport fails; below 0: never.
std::vector<std::string> RunRanks(int world_size, int cut_after = -1, Wrong wrong = Wrong::kNothing,
                                  bool on_gpu = false) {
  auto ends = CreateThreadCommunicators(world_size, {.timeout_seconds = 10});
  EXPECT_TRUE(ends.ok());
  std::vector<std::string> out(static_cast<size_t>(world_size));
  const std::string dir = wrong == Wrong::kNoAnswer ? TempDir() : "";
  std::vector<std::thread> ranks;
  for (int r = 0; r < world_size; ++r) {
    const auto i = static_cast<size_t>(r);
    ranks.emplace_back([&, i, r] {
      out[i] = RankMain(std::move((*ends)[i]), r == 1 ? cut_after : -1,
                        r == 1 ? wrong : Wrong::kNothing, dir, on_gpu);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return out;
}

TEST(CapiRanksTest, RanksOverCallbacksTrainTheSameRows) {
  const std::vector<std::string> alone = RunRanks(1);
  EXPECT_THAT(alone[0], HasSubstr("\"rows\":12"));
  for (const int world_size : {2, 4}) {
    for (const std::string& digest : RunRanks(world_size)) EXPECT_EQ(digest, alone[0]);
  }
}

TEST(CapiRanksTest, ATransportThatFailsIsTheErrorOfAllRanks) {
  for (const int calls : {0, 1, 3}) {
    const std::vector<std::string> said = RunRanks(2, calls);
    EXPECT_THAT(said[1], HasSubstr("the cable was cut")) << calls;
    EXPECT_THAT(said[0], HasSubstr("the cable was cut")) << calls;
  }
}

// Emulated ones, which take memory of the host for theirs, as ctest runs them.
bool HasTwoGpus() {
  std::string found(4096, '\0');
  return hotrow_environment(found.data(), found.size(), nullptr) == HOTROW_OK &&
         found.find("\"emulated GPU\"") != found.rfind("\"emulated GPU\"");
}

TEST(CapiRanksTest, WhatOneRankRefusesEndsTheOthersAtOnce) {
  const std::pair<Wrong, const char*> cases[] = {{Wrong::kOptions, "prefetch_depth=-1"},
                                                 {Wrong::kNoPlace, "collection: is null"},
                                                 {Wrong::kNoMemory, "out of memory"},
                                                 {Wrong::kBatch, "values_type"},
                                                 {Wrong::kOutput, "EmbeddingOutput.pooled"},
                                                 {Wrong::kGradient, "EmbeddingGradient.pooled"},
                                                 {Wrong::kTable, "no \"shops\""},
                                                 {Wrong::kNoText, "the buffer: is null"},
                                                 {Wrong::kNoAnswer, "committed: is null"},
                                                 {Wrong::kOwnError, "its data end"}};
  for (const bool on_gpu : {false, true}) {
    if (on_gpu && !HasTwoGpus()) continue;
    for (const auto& [wrong, cause] : cases) {
      SCOPED_TRACE(std::string(cause) + (on_gpu ? ", on GPUs" : ""));
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<std::string> said = RunRanks(2, -1, wrong, on_gpu);
      EXPECT_THAT(said[0], HasSubstr("rank 1 ended the job: "));
      EXPECT_THAT(said[0], HasSubstr(cause));
      EXPECT_THAT(said[1], HasSubstr(cause));
      EXPECT_LT(std::chrono::steady_clock::now() - begin,
                std::chrono::seconds(5));  // the timeout: 10
    }
  }
}

TEST(CapiRanksTest, CallbacksThatAreMissingAreNamed) {
  hotrow_communicator_callbacks callbacks;
  hotrow_communicator_callbacks_default(&callbacks, sizeof(callbacks));
  hotrow_communicator* communicator = nullptr;
  EXPECT_EQ(hotrow_communicator_create(&callbacks, &communicator), HOTROW_INVALID_ARGUMENT);
  EXPECT_THAT(hotrow_error_message(), HasSubstr("world_size"));
  callbacks.world_size = 2;
  EXPECT_EQ(hotrow_communicator_create(&callbacks, &communicator), HOTROW_INVALID_ARGUMENT);
  EXPECT_THAT(hotrow_error_message(), HasSubstr("exchange"));
  // A program that was built with the first header has fewer, and is understood.
  callbacks.struct_size = offsetof(hotrow_communicator_callbacks, status);
  EXPECT_EQ(hotrow_communicator_create(&callbacks, &communicator), HOTROW_INVALID_ARGUMENT);
  EXPECT_THAT(hotrow_error_message(), HasSubstr("exchange"));
}

}  // namespace
}  // namespace hotrow::test
