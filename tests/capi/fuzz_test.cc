// Drawn calls of the C interface: handles in any state, arguments that are wrong in any place. None
// may end the process, each failure must say why, and the tables must work afterwards. What a
// caller promises stays true: handles were not destroyed. tests/capi/drawn_calls.h has the rest.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hotrow/hotrow.h"
#include "tests/capi/drawn_calls.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

struct Tables {
  hotrow_collection* handle = nullptr;  // null: destroyed
  std::vector<std::string> features;
  int64_t dim = 0;
  int64_t num_pooled = 0;
  int64_t num_unpooled = 0;
  bool has_checkpoints = false;
  bool closed = false;
};

struct Step {
  hotrow_step* handle = nullptr;
  size_t tables = 0;
  int64_t batch_size = 0;
  std::vector<int64_t> lookups;  // of each unpooled feature
};

class Fuzzer : public DrawnCalls {
 public:
  // gpu: null, or a context whose tables lie on a GPU that has all memory of this process.
  explicit Fuzzer(uint64_t seed, std::span<const uint8_t> drawn = {}, hotrow_context* gpu = nullptr)
      : DrawnCalls(seed, drawn), dir_(TempDir()), gpu_(gpu) {}
  ~Fuzzer() {
    for (Step& step : steps_) hotrow_step_destroy(step.handle);
    for (Tables& tables : tables_) hotrow_collection_destroy(tables.handle);
    for (hotrow_saved* saved : saved_) hotrow_saved_destroy(saved);
  }

  void Run(int calls) {
    for (int call = 0; call < calls && !testing::Test::HasFailure(); ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      Draw();
    }
    for (size_t i = 0; i < tables_.size(); ++i) ExpectWorks(i);
  }

 private:
  // ---- Making ----
  void MakeTables() {
    if (std::count_if(tables_.begin(), tables_.end(), [](auto& t) { return t.handle; }) >= 3) {
      return;
    }
    Tables made;
    const int64_t num_tables = 1 + Below(2);
    made.dim = 1 + Below(5);
    std::vector<std::string> names;
    std::vector<std::array<const char*, 2>> features(static_cast<size_t>(num_tables));
    static constexpr std::array<const char*, 4> kNames = {"a", "b", "c", "d"};
    static constexpr std::array<const char*, 4> kOptimizers = {"sgd", "adam", "rowwise_adagrad",
                                                               nullptr};
    static constexpr std::array<const char*, 3> kPoolings = {"sum", "mean", "none"};
    std::vector<hotrow_table> tables(static_cast<size_t>(num_tables));
    hotrow_optimizer optimizer;
    hotrow_optimizer_default(&optimizer, sizeof(optimizer));
    optimizer.kind = Rarely() ? "steepest" : kOptimizers[static_cast<size_t>(Below(4))];
    if (Rarely()) optimizer.weight_decay_mode = "table";
    if (Rarely()) optimizer.learning_rate = -1;
    optimizer.struct_size = static_cast<uint64_t>(OddOr(sizeof(optimizer)));
    // A larger struct than there is would be a promise that is broken.
    if (optimizer.struct_size > sizeof(optimizer) && optimizer.struct_size <= 4096) {
      optimizer.struct_size = 4097;
    }
    for (size_t t = 0; t < tables.size(); ++t) {
      hotrow_table& table = tables[t];
      hotrow_table_default(&table, sizeof(table));
      table.name = Null(kNames[t]);
      table.embedding_dim = Rarely() ? -Below(2) : made.dim;
      features[t] = {kNames[2 * t], kNames[2 * t + 1]};
      table.feature_names = Null(features[t].data());
      table.num_features = Rarely() ? Below(3) : 1 + Below(2);
      const char* const pooling = kPoolings[static_cast<size_t>(Below(3))];
      table.pooling = Rarely() ? "max" : pooling;
      table.optimizer = &optimizer;
      table.initializer = Rarely() ? "zeros" : nullptr;
      table.max_row_gradient_norm = Rarely() ? -1.0f : gpu_ == nullptr ? 0.5f : 0;
      table.num_embeddings = Rarely() ? Below(2) * (kDrawnKeys + 1) - 1 : 0;
      table.max_hotness = Rarely() ? Below(2) * 8 - 1 : 0;
      const char* const admissions[] = {"always", "lookups:2", "lookups:2:3", "coin:0.5", "coin:2"};
      table.admission = Rarely() ? admissions[Below(5)] : nullptr;
      table.ttl_steps = Rarely() ? Below(6) - 1 : 0;
      table.min_rows = Rarely() ? Below(6) - 1 : 0;
      table.max_rows = Rarely() ? Below(20) - 1 : 0;
      const char* const scores[] = {"none", "max", "sum", "last", "best"};
      table.score = Rarely() ? scores[Below(5)] : nullptr;
      table.max_rows_by = Rarely() ? "score" : nullptr;
      table.serve_rows = Rarely() ? "int8" : nullptr;
      table.read_only_features = Rarely() ? features[t].data() : nullptr;
      table.num_read_only_features = table.read_only_features == nullptr ? 0 : Below(3);
      for (int64_t f = 0; f < table.num_features; ++f) {
        made.features.emplace_back(features[t][static_cast<size_t>(f)]);
        if (std::strcmp(pooling, "none") == 0) {
          ++made.num_unpooled;
        } else {
          ++made.num_pooled;
        }
      }
    }
    hotrow_collection_options options;
    hotrow_collection_options_default(&options, sizeof(options));
    options.tables = Null(tables.data());
    options.num_tables = num_tables;
    options.max_batch_size = Rarely() ? Below(2) * 4098 - 1 : kDrawnSamplesMax;
    options.max_gradient_norm = Rarely() ? -1.0f : gpu_ == nullptr ? 2 : 0;
    options.store_memory_bytes = OddOr(16 << 20);
    options.cache_bytes = Rarely() ? Odd() : Below(2) * (8 << 20);
    options.prefetch_depth = Rarely() ? Odd() : Below(3);
    options.evaluation_staging_bytes = Rarely() ? -Below(2) : 1 << 20;
    options.exchange_forward = Rarely() ? "fp16" : nullptr;
    options.admission_bytes = Rarely() ? Below(400) : 1 << 20;
    options.row_limit_steps = Rarely() ? Below(4) : 2;
    options.resume = Below(2) == 0 ? 1 : 0;
    const std::string path = (dir_ / std::to_string(Below(3))).string();
    const std::string store = path + "-store";
    if (Below(3) == 0) options.checkpoint_dir = path.c_str();
    if (Below(3) == 0) {
      options.store = Rarely() ? "tape" : "ssd";
      options.store_path = Null(store.c_str());
      options.store_disk_bytes = OddOr(256 << 20);
      if (options.cache_bytes == 0) options.cache_bytes = 8 << 20;
    }
    options.init_from = Rarely() ? path.c_str() : nullptr;
    if (gpu_ != nullptr) {
      if (options.store == nullptr) options.cache_bytes = 0;  // rows lie in host memory already
      options.cache_device_bytes = OddOr(4 << 20);
      options.cache_device_index_bytes = Rarely() ? OddOr(1 << 20) : 0;
    }
    int64_t bytes = 0;
    Check(hotrow_min_cache_bytes(gpu_, Null(&options), Null(&bytes)));
    hotrow_collection* handle = nullptr;
    if (Check(hotrow_collection_create(gpu_, Null(&options), &handle)) != HOTROW_OK) {
      EXPECT_EQ(handle, nullptr);
      return;
    }
    made.handle = handle;
    made.has_checkpoints = options.checkpoint_dir != nullptr;
    tables_.push_back(std::move(made));
  }

  std::unique_ptr<Matrices> MakeMatrices(const Tables& tables, int64_t batch_size,
                                         const std::vector<int64_t>& lookups, bool good) {
    auto out = std::make_unique<Matrices>();
    out->pooled = Matrix(out.get(), batch_size, tables.num_pooled * tables.dim, good);
    for (const int64_t n : lookups) {
      out->unpooled.push_back(Matrix(out.get(), n, tables.dim, good));
    }
    if (!good && Rarely()) out->unpooled.push_back(Matrix(out.get(), 1, tables.dim, good));
    out->num_unpooled = std::ssize(out->unpooled);
    if (!good && Rarely()) out->num_unpooled = Below(out->num_unpooled + 1) - (Below(2));
    const bool wanted = tables.num_pooled > 0;
    out->pooled_or_null = wanted != (!good && Rarely()) ? &out->pooled : nullptr;
    return out;
  }

  // The lookups of the features with pooling "none", in their order; the collection says which.
  std::vector<int64_t> UnpooledLookups(const Tables& tables, const Batch& batch) {
    uint64_t needed = 0;
    std::string text(8192, '\0');
    hotrow_collection_describe(tables.handle, text.data(), text.size(), &needed);
    std::vector<int64_t> out;
    size_t at = 0;
    for (const int64_t n : batch.lookups) {
      at = text.find("\"pooling\":\"", at);
      if (at == std::string::npos) break;
      at += 11;
      if (text.compare(at, 4, "none") == 0) out.push_back(n);
    }
    return out;
  }

  // ---- Calls ----
  Tables* AnyTables() {
    if (tables_.empty()) return nullptr;
    return &tables_[static_cast<size_t>(Below(std::ssize(tables_)))];
  }

  void Draw() {
    switch (Below(17)) {
      case 0:
        return MakeTables();
      case 1:
      case 2:
      case 3:
        return Prefetch();
      case 4:
      case 5:
      case 6:
      case 7:
        return UseStep();
      case 8:
        return Evaluate();
      case 9:
        return Rows();
      case 10:
        return Texts();
      case 11:
        return Snapshots();
      case 12:
        return Checkpoints();
      case 13:
        return Saved();
      case 14:
        return Data();
      case 15:
        return Pack();
      default:
        return End();
    }
  }

  void Prefetch() {
    Tables* const tables = AnyTables();
    if (tables == nullptr || tables->handle == nullptr) return;
    // Given away with a call in place.
    auto batch = MakeBatch(std::ssize(tables->features), Below(2) == 0);
    PlaceBatch(batch.get());
    Step step = {.tables = static_cast<size_t>(tables - tables_.data()),
                 .batch_size = batch->batch.batch_size,
                 .lookups = UnpooledLookups(*tables, *batch)};
    const hotrow_batch* const given = Null(&batch->batch);
    const hotrow_status status =
        Below(2) == 0
            ? hotrow_prefetch(tables->handle, given, &step.handle)
            : hotrow_prefetch_in_place(
                  tables->handle, given, [](void* user) { delete static_cast<Batch*>(user); },
                  batch.release(), &step.handle);
    if (Check(status) != HOTROW_OK) {
      EXPECT_EQ(step.handle, nullptr);
      return;
    }
    steps_.push_back(std::move(step));
    if (steps_.size() > 6) DestroyStep(0);
  }

  void UseStep() {
    if (steps_.empty()) return;
    const auto i = static_cast<size_t>(Below(std::ssize(steps_)));
    const Step& step = steps_[i];
    const auto matrices =
        MakeMatrices(tables_[step.tables], step.batch_size, step.lookups, Below(2) == 0);
    const hotrow_matrix* const unpooled = matrices->unpooled.data();
    const float factor = Rarely() ? -3.0f : 1;
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        Check(hotrow_step_lookup(step.handle, matrices->pooled_or_null, Null(unpooled),
                                 matrices->num_unpooled));
        break;
      case 3:
      case 4:
        Check(hotrow_step_update(step.handle, matrices->pooled_or_null, Null(unpooled),
                                 matrices->num_unpooled, factor));
        break;
      case 5:
        Check(hotrow_step_begin_lookup(Null(step.handle)));
        break;
      case 6:
        Check(hotrow_step_begin_update(step.handle, matrices->pooled_or_null, Null(unpooled),
                                       matrices->num_unpooled));
        break;
      default:
        DestroyStep(i);
        return;
    }
    Wait(step.tables);
  }

  // Says of some that their arrays may lie on the GPU.
  void PlaceBatch(Batch* batch) {
    if (batch->batch.struct_size < sizeof(batch->batch)) return;
    batch->batch.on_device = static_cast<int32_t>(Rarely() ? Below(4) - 1 : Below(2));
    if (gpu_ == nullptr && !Rarely()) batch->batch.on_device = 0;
  }
  // For matrices that are freed after the call.
  void Wait(size_t tables) {
    if (gpu_ != nullptr && tables_[tables].handle != nullptr) hotrow_wait(tables_[tables].handle);
  }

  void Evaluate() {
    Tables* const tables = AnyTables();
    if (tables == nullptr || tables->handle == nullptr) return;
    if (Rarely()) Check(hotrow_collection_use_stream(tables->handle, nullptr));
    const auto batch = MakeBatch(std::ssize(tables->features), Below(2) == 0);
    PlaceBatch(batch.get());
    const auto matrices = MakeMatrices(*tables, std::clamp<int64_t>(batch->batch.batch_size, 0, 9),
                                       UnpooledLookups(*tables, *batch), Below(2) == 0);
    Check(hotrow_evaluate(tables->handle, &batch->batch, matrices->pooled_or_null,
                          matrices->unpooled.data(), matrices->num_unpooled));
    Wait(static_cast<size_t>(tables - tables_.data()));
  }

  struct Visit {
    Fuzzer* fuzzer;
    Tables* tables;
  };
  // A callback that does what it must not do.
  static hotrow_status VisitRows(void* user, const uint64_t*, const float*, int64_t, int64_t) {
    const auto& visit = *static_cast<Visit*>(user);
    Fuzzer& fuzzer = *visit.fuzzer;
    int64_t steps = 0;
    EXPECT_EQ(hotrow_steps(visit.tables->handle, &steps), HOTROW_FAILED_PRECONDITION);
    if (fuzzer.Below(2) == 0 && !fuzzer.steps_.empty()) fuzzer.DestroyStep(0);
    if (fuzzer.Rarely()) {
      hotrow_collection_destroy(visit.tables->handle);
      visit.tables->handle = nullptr;
    }
    return fuzzer.Rarely() ? static_cast<hotrow_status>(fuzzer.Below(40)) : HOTROW_OK;
  }

  void Rows() {
    Tables* const tables = AnyTables();
    if (tables == nullptr || tables->handle == nullptr) return;
    const char* const table = Rarely() ? "z" : Null("a");
    if (Below(3) == 0) {
      Visit visit = {this, tables};
      const hotrow_status status =
          hotrow_for_each_row(tables->handle, table, Rarely() ? nullptr : VisitRows, &visit);
      if (status == HOTROW_OK) ++good_;
      return;
    }
    const int64_t n = Below(5);
    const auto keys = std::make_unique<uint64_t[]>(static_cast<size_t>(n));
    const auto found = std::make_unique<uint8_t[]>(static_cast<size_t>(n));
    if (Below(3) == 0) {
      if (Below(3) == 0) {
        int64_t erased = 0;
        Check(hotrow_erase_older_than(tables->handle, table, Rarely() ? -1 : Below(9),
                                      Null(&erased)));
        return;
      }
      if (Below(2) == 0) {
        Matrices memory;
        const int64_t once = std::min<int64_t>(n, Rarely() ? 2 : 1);  // all keys are 0
        const hotrow_matrix rows = Matrix(&memory, once, Rarely() ? 3 : tables->dim, Below(2) == 0);
        Check(hotrow_write_rows(tables->handle, table, Null(keys.get()), Rarely() ? -1 : once,
                                Null(&rows)));
        return;
      }
      Check(hotrow_erase(tables->handle, table, Null(keys.get()), Rarely() ? -1 : n));
      return;
    }
    Matrices memory;
    const hotrow_matrix rows = Matrix(&memory, n, tables->dim, Below(2) == 0);
    Check(hotrow_read_rows(tables->handle, table, Null(keys.get()), Rarely() ? -1 : n, Null(&rows),
                           Null(found.get())));
  }

  void Texts() {
    Tables* const tables = AnyTables();
    hotrow_collection* const handle = tables == nullptr ? nullptr : tables->handle;
    const auto of = [&](auto function) {
      Text([&](char* text, uint64_t size, uint64_t* needed) {
        return function(handle, text, size, needed);
      });
    };
    of(hotrow_collection_describe);
    of(hotrow_stats);
    of(hotrow_metrics);
    of(hotrow_digest);
    of(hotrow_checkpoint_newest);
    int64_t steps = 0;
    Check(hotrow_steps(handle, Null(&steps)));
    Check(hotrow_flush(handle));
    Check(hotrow_settle(Null(handle)));
  }

  void Snapshots() {
    Tables* const tables = AnyTables();
    hotrow_collection* const handle = tables == nullptr ? nullptr : tables->handle;
    const auto name = static_cast<uint64_t>(Below(4));
    switch (Below(7)) {
      case 0:
        Check(hotrow_snapshot_announce(handle));
        break;
      case 1:
        Check(hotrow_snapshot_begin(handle, name));
        break;
      case 2: {
        int32_t prepared = 0;
        Check(hotrow_snapshot_prepared(handle, Null(&prepared)));
        break;
      }
      case 3:
        Check(hotrow_snapshot_wait(handle));
        break;
      case 4:
        Check(hotrow_snapshot_commit(handle, name));
        break;
      case 5:
        Check(hotrow_snapshot_drop(handle, name));
        break;
      default: {
        int64_t count = 0;
        const auto size = static_cast<int64_t>(Below(3));
        const auto names = std::make_unique<uint64_t[]>(static_cast<size_t>(size));
        Check(hotrow_snapshot_list(handle, Null(names.get()), size, Null(&count)));
      }
    }
  }

  void Checkpoints() {
    Tables* const tables = AnyTables();
    hotrow_collection* const handle = tables == nullptr ? nullptr : tables->handle;
    const auto bytes = std::make_unique<char[]>(3);
    const hotrow_blob blobs[] = {{"state", Null(bytes.get()), 3}, {Null("state2"), nullptr, 0}};
    int32_t committed = 0;
    switch (Below(3)) {
      case 0:
        Check(hotrow_checkpoint_begin(handle, Null(blobs), Below(4) - 1 > 2 ? 2 : Below(3)));
        break;
      case 1:
        Check(hotrow_checkpoint_poll(handle, Null(&committed)));
        break;
      default:
        Check(hotrow_checkpoint_wait(handle));
    }
  }

  void Saved() {
    const std::string path = (dir_ / std::to_string(Below(3))).string();
    const std::string arrays = path + "-arrays";
    const std::string back = path + "-back";
    if (Below(4) == 0) {
      hotrow_export_options out;
      hotrow_export_options_default(&out, sizeof(out));
      out.from = Null(path.c_str());
      out.to = Null(arrays.c_str());
      out.shard_bytes = OddOr(64);
      out.memory_bytes = OddOr(1 << 20);
      if (out.memory_bytes > 1 << 20) out.memory_bytes = 3;
      Check(hotrow_export(Null(&out)));
      hotrow_import_options in;
      hotrow_import_options_default(&in, sizeof(in));
      in.from = Null(arrays.c_str());
      in.to = Null(back.c_str());
      in.store = Rarely() ? "ssd" : nullptr;
      in.store_memory_bytes = 16 << 20;
      in.memory_bytes = 1 << 20;
      Check(hotrow_import(Null(&in)));
      std::error_code ignored;
      std::filesystem::remove_all(arrays, ignored);
      std::filesystem::remove_all(back, ignored);
      return;
    }
    hotrow_saved* saved = nullptr;
    if (Check(hotrow_saved_open(Null(path.c_str()), &saved)) == HOTROW_OK) saved_.push_back(saved);
    saved = saved_.empty() ? nullptr : saved_.back();
    Text([&](char* text, uint64_t size, uint64_t* needed) {
      return hotrow_saved_describe(saved, text, size, needed);
    });
    uint64_t needed = 0;
    const auto size = static_cast<uint64_t>(Below(5));
    const auto bytes = std::make_unique<char[]>(size);
    Check(hotrow_saved_blob(saved, Rarely() ? "none" : Null("state"), bytes.get(), size, &needed));
    if (saved_.size() > 3) {
      hotrow_saved_destroy(saved_.front());
      saved_.erase(saved_.begin());
    }
  }

  void Data() {
    static constexpr std::array<const char*, 6> kSpecs = {
        "synthetic:tables=2,rows=50,samples=9,dense=1",
        "synthetic:tables=-1",
        "synthetic:",
        "none",
        "",
        "table:/nowhere.json"};
    hotrow_data* data = nullptr;
    const char* const spec = Null(Rarely() ? kSpecs[static_cast<size_t>(Below(6))] : kSpecs[0]);
    if (Rarely()) {
      hotrow_data_options options;
      hotrow_data_options_default(&options, sizeof(options));
      options.reader_threads = static_cast<int32_t>(OddOr(2));
      Check(hotrow_data_open_with(spec, Null(&options), &data));
    } else {
      Check(hotrow_data_open(spec, 1, &data));
    }
    Text([&](char* text, uint64_t size, uint64_t* needed) {
      return hotrow_data_describe(data, text, size, needed);
    });
    hotrow_reader* reader = nullptr;
    hotrow_samples* samples = nullptr;
    Check(
        hotrow_reader_open(data, Rarely() ? "monday" : Null("train"), OddOr(0), OddOr(2), &reader));
    hotrow_data_destroy(data);
    Check(hotrow_samples_create(Null(&samples)));
    hotrow_samples_view view = {};
    view.struct_size = Rarely() ? 3 : sizeof(view);
    Check(hotrow_reader_next(reader, Rarely() ? -1 : 1 + Below(9), samples, Null(&view)));
    hotrow_samples_destroy(samples);
    hotrow_reader_destroy(reader);
  }

  void Pack() {
    const std::string dir = (dir_ / ("pack" + std::to_string(packs_++))).string();
    static constexpr std::array<const char*, 3> kNames = {"a", "b", "b"};
    hotrow_packer_options options;
    hotrow_packer_options_default(&options, sizeof(options));
    options.dir = Null(dir.c_str());
    options.features = Null(kNames.data());
    options.num_features = Rarely() ? OddOr(3) : 2;
    if (options.num_features > 3) options.num_features = 3;  // more would be a broken promise
    if (Rarely()) options.tables = kNames.data();
    options.num_dense = SmallOddOr(1);
    options.block_samples = OddOr(2);
    const std::array<int64_t, 3> most = {OddOr(3), OddOr(3), 0};
    if (Below(2) == 0) options.max_hotness = most.data();
    if (Below(2) == 0 && options.num_dense <= std::ssize(kNames)) options.dense = kNames.data();
    if (Below(2) == 0) options.dense_precision = Rarely() ? "half" : "fp16";
    hotrow_packer* packer = nullptr;
    Check(hotrow_packer_create(Null(&options), &packer));
    for (int64_t i = 0; i < Below(4); ++i) {
      const auto batch = MakeBatch(2, Below(2) == 0);
      Matrices memory;
      const int64_t size = std::clamp<int64_t>(batch->batch.batch_size, 0, kDrawnSamplesMax + 1);
      const hotrow_matrix dense = Matrix(&memory, size, 1, Below(3) > 0);
      const hotrow_matrix labels = Matrix(&memory, size, 1, Below(3) > 0);
      float* const label = memory.memory.back().get();
      for (int64_t r = 0; !Rarely() && labels.cols == 1 && r < labels.rows; ++r) {
        if (labels.stride > 0) label[r * labels.stride] = 1;
      }
      Check(hotrow_packer_append(packer, Rarely() ? "monday" : Null("train"), Null(&batch->batch),
                                 Null(&dense), Null(&labels)));
    }
    if (Check(hotrow_packer_finish(packer)) == HOTROW_OK) {
      hotrow_data* data = nullptr;
      EXPECT_EQ(hotrow_data_open(("packed:" + dir).c_str(), 1, &data), HOTROW_OK)
          << hotrow_error_message();
      hotrow_data_destroy(data);
    }
    hotrow_packer_destroy(packer);
  }

  void DestroyStep(size_t i) {
    hotrow_step_destroy(steps_[i].handle);
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void End() {
    Tables* const tables = AnyTables();
    if (tables == nullptr) return;
    if (Below(3) == 0) {
      if (Check(hotrow_collection_close(tables->handle)) == HOTROW_OK) tables->closed = true;
    } else if (Rarely()) {
      hotrow_collection_abandon(tables->handle);
      tables->closed = true;
    } else if (Below(3) == 0) {
      hotrow_collection_destroy(tables->handle);
      tables->handle = nullptr;
    }
  }

  // After any refusal a good step and a good evaluation work.
  void ExpectWorks(size_t i) {
    Tables& tables = tables_[i];
    if (tables.handle == nullptr || tables.closed) return;
    std::erase_if(steps_, [&](const Step& step) {
      if (step.tables == i) hotrow_step_destroy(step.handle);
      return step.tables == i;
    });
    const auto batch = MakeBatch(std::ssize(tables.features), true);
    const auto matrices =
        MakeMatrices(tables, batch->batch.batch_size, UnpooledLookups(tables, *batch), true);
    hotrow_step* step = nullptr;
    ASSERT_EQ(hotrow_prefetch(tables.handle, &batch->batch, &step), HOTROW_OK)
        << hotrow_error_message();
    EXPECT_EQ(hotrow_step_lookup(step, matrices->pooled_or_null, matrices->unpooled.data(),
                                 matrices->num_unpooled),
              HOTROW_OK)
        << hotrow_error_message();
    EXPECT_EQ(hotrow_step_update(step, matrices->pooled_or_null, matrices->unpooled.data(),
                                 matrices->num_unpooled, 1),
              HOTROW_OK)
        << hotrow_error_message();
    EXPECT_EQ(hotrow_step_update(step, matrices->pooled_or_null, matrices->unpooled.data(),
                                 matrices->num_unpooled, 1),
              HOTROW_FAILED_PRECONDITION);
    hotrow_step_destroy(step);
    EXPECT_EQ(hotrow_evaluate(tables.handle, &batch->batch, matrices->pooled_or_null,
                              matrices->unpooled.data(), matrices->num_unpooled),
              HOTROW_OK)
        << hotrow_error_message();
    Wait(i);
  }

  const std::filesystem::path dir_;
  hotrow_context* const gpu_;
  int64_t packs_ = 0;
  std::vector<Tables> tables_;
  std::vector<Step> steps_;
  std::vector<hotrow_saved*> saved_;
};

TEST(CapiFuzzTest, DrawnCallsEndInAStatus) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "shows no threads that the tests of collections do not show";
#endif
  int64_t good = 0;
  for (const uint64_t seed : Seeds(SlowRuns(100, ForSanitizer(6, 2)))) {
    SCOPED_TRACE("HOTROW_TEST_SEED=" + std::to_string(seed));
    Fuzzer fuzzer(seed);
    fuzzer.Run(600);
    good += fuzzer.good();
    if (HasFailure()) return;
  }
  EXPECT_GT(good, 50);  // not all of it is refused
}

// A context of the emulated GPU, where that takes any memory for its own; null: there is none.
hotrow_context* EmulatedGpu() {
  std::string found(4096, '\0');
  if (std::getenv("HOTROW_EMULATED_GPU_ANY_MEMORY") == nullptr ||
      hotrow_environment(found.data(), found.size(), nullptr) != HOTROW_OK ||
      found.find("\"emulated\"") == std::string::npos) {
    return nullptr;
  }
  hotrow_context_options options;
  hotrow_context_options_default(&options, sizeof(options));
  options.device = "cuda";
  hotrow_context* gpu = nullptr;
  EXPECT_EQ(hotrow_context_create(&options, &gpu), HOTROW_OK) << hotrow_error_message();
  return gpu;
}

TEST(CapiFuzzTest, DrawnCallsOnAGpuEndInAStatus) {
  hotrow_context* const gpu = EmulatedGpu();
  if (gpu == nullptr) GTEST_SKIP() << "needs an emulated GPU, as ctest runs it";
  int64_t good = 0;
  for (const uint64_t seed : Seeds(SlowRuns(20, 2))) {
    SCOPED_TRACE("HOTROW_TEST_SEED=" + std::to_string(seed));
    Fuzzer fuzzer(seed, {}, gpu);
    fuzzer.Run(200);
    good += fuzzer.good();
    if (HasFailure()) break;
  }
  hotrow_context_destroy(gpu);
  EXPECT_GT(good, 50);
}

}  // namespace

#ifdef HOTROW_FUZZ_CALLS
// libFuzzer draws the first choices (tests/fuzz). An odd size: on the emulated GPU, if there is
// one.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hotrow_context* const gpu = EmulatedGpu();
  {
    Fuzzer fuzzer(size, {data, size}, size % 2 == 1 ? gpu : nullptr);
    fuzzer.Run(40);
  }
  RemoveTempDirs();
  if (testing::Test::HasFailure()) std::abort();
  return 0;
}
#endif

}  // namespace hotrow::test
