#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/views_impl.h"
#include "models/data/ctr_batch.h"
#include "models/data/data_source.h"
#include "models/data/open_data_source.h"
#include "models/data/sample_feed.h"

// A child of a fork may read it, with threads that it starts.
struct hotrow_data : hotrow::capi::Handle {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::shared_ptr<hotrow::DataSource> source;
};
struct hotrow_reader : hotrow::capi::Handle {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::shared_ptr<hotrow::DataSource> source;
  std::unique_ptr<hotrow::DataReader> reader;  // goes before the source; null: it has failed
};
struct hotrow_samples {
  hotrow::CtrBatch batch;
};

namespace hotrow::capi {
namespace {

std::string Describe(const DataSchema& schema) {
  using Json = nlohmann::ordered_json;
  Json features = Json::array();
  for (const DataFeature& feature : schema.features) {
    features.push_back({{"name", feature.name},
                        {"table", feature.table},
                        {"num_embeddings", feature.num_embeddings},
                        {"max_hotness", feature.max_hotness}});
  }
  const Json out = {{"name", schema.name},
                    {"num_dense", schema.num_dense},
                    {"dense", schema.dense},
                    {"labels", schema.labels},
                    {"train_samples", schema.train_samples},
                    {"valid_samples", schema.valid_samples},
                    {"test_samples", schema.test_samples},
                    {"features", std::move(features)}};
  return out.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

hotrow_samples_view ViewOf(const CtrBatch& batch, const DataSchema& schema,
                           int64_t global_batch_size) {
  hotrow_samples_view out = {};
  out.struct_size = sizeof(out);
  out.batch_size = batch.batch_size;
  out.num_features = std::ssize(schema.features);
  out.dense = batch.dense.data();
  out.labels = batch.labels.data();
  out.values = batch.values.data();
  out.offsets = batch.offsets.data();
  out.weights = batch.weights.empty() ? nullptr : batch.weights.data();
  out.num_values = std::ssize(batch.values);
  out.num_dense = schema.num_dense;
  out.num_labels = batch.num_labels;
  out.global_batch_size = global_batch_size;
  return out;
}

hotrow_data_options DefaultDataOptions() {
  hotrow_data_options out = {};
  out.struct_size = sizeof(out);
  out.reader_threads = ReaderThreads().reading;
  out.shuffle_bytes = OpenDataOptions().shuffle_bytes;
  out.world_size = 1;
  return out;
}

absl::Status OpenData(const char* spec, const hotrow_data_options& options, hotrow_data** data) {
  HOTROW_RETURN_IF_ERROR(NotNull(spec, "spec"));
  HOTROW_RETURN_IF_ERROR(NotNull(data, "data"));
  const int32_t threads = options.reader_threads;
  if (threads < 1 || threads > kMaxReaderThreads) {
    return absl::InvalidArgumentError(absl::StrCat("options.reader_threads: is ", threads,
                                                   ", must be in [1, ", kMaxReaderThreads, "]"));
  }
  if (options.reserved != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.reserved: is ", options.reserved, ", must be 0"));
  }
  HOTROW_RETURN_IF_ERROR(CheckCount(options.shuffle_bytes, "options.shuffle_bytes"));
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.rank: is ", options.rank,
                     ", must be in [0, options.world_size = ", options.world_size, ")"));
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> source,
                          OpenDataSource(spec, options.seed,
                                         {.threads = {.opening = threads, .reading = threads},
                                          .shuffle_bytes = options.shuffle_bytes}));
  *data = new hotrow_data{{}, options.rank, options.world_size, std::move(source)};
  return absl::OkStatus();
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow;        // NOLINT: what follows is the C interface
using namespace hotrow::capi;  // NOLINT

extern "C" {

hotrow_status hotrow_data_open(const char* spec, uint64_t seed, hotrow_data** data) {
  return Call([&] {
    hotrow_data_options options = DefaultDataOptions();
    options.seed = seed;
    return OpenData(spec, options, data);
  });
}

void hotrow_data_options_default(hotrow_data_options* options, uint64_t struct_size) {
  WriteDefault(DefaultDataOptions(), options, struct_size);
}

hotrow_status hotrow_data_open_with(const char* spec, const hotrow_data_options* options,
                                    hotrow_data** data) {
  return Call([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const hotrow_data_options taken,
                            TakeStruct(options, DefaultDataOptions(), "options"));
    return OpenData(spec, taken, data);
  });
}

void hotrow_data_destroy(hotrow_data* data) {
  CallVoid([&] { Destroy(data); });
}

hotrow_status hotrow_data_describe(hotrow_data* data, char* text, uint64_t size, uint64_t* needed) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(data, "data"));
    return GiveText(Describe(data->source->schema()), text, size, needed);
  });
}

hotrow_status hotrow_reader_open(hotrow_data* data, const char* split, int64_t epoch,
                                 int64_t first_sample, hotrow_reader** reader) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(data, "data"));
    HOTROW_RETURN_IF_ERROR(NotNull(reader, "reader"));
    HOTROW_RETURN_IF_ERROR(NotNull(split, "split"));
    Split parsed = Split::kTrain;
    HOTROW_RETURN_IF_ERROR(TakeWord(kSplitWords, split, "split", &parsed));
    if (epoch < 0 || first_sample < 0) {
      return absl::InvalidArgumentError(absl::StrCat(epoch < 0 ? "epoch" : "first_sample", ": is ",
                                                     epoch < 0 ? epoch : first_sample,
                                                     ", must be at least 0"));
    }
    auto made = std::make_unique<hotrow_reader>();
    made->rank = data->rank;
    made->world_size = data->world_size;
    made->source = data->source;
    HOTROW_ASSIGN_OR_RETURN(made->reader, data->source->OpenSplit(parsed, epoch, first_sample));
    *reader = made.release();
    return absl::OkStatus();
  });
}

void hotrow_reader_destroy(hotrow_reader* reader) {
  CallVoid([&] { Destroy(reader); });
}

hotrow_status hotrow_samples_create(hotrow_samples** samples) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(samples, "samples"));
    *samples = new hotrow_samples;
    return absl::OkStatus();
  });
}

void hotrow_samples_destroy(hotrow_samples* samples) { delete samples; }

hotrow_status hotrow_reader_next(hotrow_reader* reader, int64_t max_samples,
                                 hotrow_samples* samples, hotrow_samples_view* view) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(reader, "reader"));
    HOTROW_RETURN_IF_ERROR(NotNull(samples, "samples"));
    HOTROW_RETURN_IF_ERROR(
        TakeStruct(view, hotrow_samples_view{.struct_size = sizeof(hotrow_samples_view)}, "view")
            .status());
    if (max_samples < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_samples: is ", max_samples, ", must be at least 1"));
    }
    if (reader->reader == nullptr) {
      return absl::FailedPreconditionError(
          "reader: had no memory for samples that it had passed; open one at the first of them");
    }
    // Without memory it may have passed samples that nobody has: the next ones must not come for
    // them.
    std::unique_ptr<DataReader> its = std::move(reader->reader);
    absl::StatusOr<int64_t> global_batch_size =
        its->NextSlice(max_samples, reader->rank, reader->world_size, &samples->batch);
    reader->reader = std::move(its);
    HOTROW_RETURN_IF_ERROR(global_batch_size.status());
    WriteDefault(ViewOf(samples->batch, reader->source->schema(), *global_batch_size), view,
                 view->struct_size);
    return absl::OkStatus();
  });
}

}  // extern "C"
