#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/handles_impl.h"
#include "capi/tables_impl.h"
#include "capi/views_impl.h"
#include "comm/run_together.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/training_state.h"

struct hotrow_saved {
  hotrow::SavedModel model;
};

namespace hotrow::capi {
namespace {

absl::StatusOr<SavedModel::BlobBytes> TakeBlobs(const hotrow_blob* blobs, int64_t num_blobs) {
  SavedModel::BlobBytes out;
  HOTROW_RETURN_IF_ERROR(CheckCount(num_blobs, "num_blobs", kBlobsMax));
  if (num_blobs > 0) HOTROW_RETURN_IF_ERROR(NotNull(blobs, "blobs"));
  for (int64_t i = 0; i < num_blobs; ++i) {
    const std::string place = absl::StrCat("blobs[", i, "]");
    HOTROW_RETURN_IF_ERROR(NotNull(blobs[i].name, absl::StrCat(place, ".name")));
    const uint64_t size = std::min<uint64_t>(blobs[i].size, INT64_MAX);
    HOTROW_RETURN_IF_ERROR(
        CheckArray(blobs[i].data, static_cast<int64_t>(size), 1, 1, absl::StrCat(place, ".data")));
    out.emplace_back(blobs[i].name, std::string(static_cast<const char*>(blobs[i].data),
                                                static_cast<size_t>(blobs[i].size)));
  }
  HOTROW_RETURN_IF_ERROR(CheckBlobs(out));
  return out;
}

absl::StatusOr<CheckpointWriter*> WriterOf(const Turn& turn) {
  HOTROW_RETURN_IF_ERROR(turn.status());
  if (turn->writer != nullptr) return turn->writer.get();
  return absl::FailedPreconditionError(
      "the collection was created without a checkpoint_dir, where checkpoints go");
}

// A call of the writer of a collection's checkpoints, which all ranks make. What the writer returns
// it returns to all, and they may go on; what is thrown is this rank's alone.
template <typename Body>
hotrow_status CallWriter(const hotrow_collection* collection, const Body& body) noexcept {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(collection, "collection"));
    const Turn turn(collection->tables);
    Communicator* const family = FamilyOf(turn->communicator);
    return EndJobIfThrown(family, [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(EndJobUnlessOk(family, turn.status()));
      HOTROW_ASSIGN_OR_RETURN(CheckpointWriter* const writer, WriterOf(turn));
      return body(*turn.operator->(), *writer);
    });
  });
}

std::string Describe(const SavedModel& model) {
  using Json = nlohmann::ordered_json;
  Json tables = Json::array();
  for (const SavedModel::Table& table : model.tables) {
    tables.push_back(
        {{"name", table.name},
         {"dim", table.dim},
         {"optimizer", table.optimizer},
         {"weights_precision", std::string(WeightsPrecisionName(table.weights_precision))},
         {"score", std::string(ScoreRuleName(table.score))}});
  }
  Json blobs = Json::array();
  for (const SavedModel::Blob& blob : model.blobs) {
    blobs.push_back({{"name", blob.name}, {"bytes", blob.bytes}});
  }
  const Json out = {{"dir", model.dir},
                    {"model", model.model},
                    {"step", model.step},
                    {"world_size", model.parts.size()},
                    {"tables", std::move(tables)},
                    {"blobs", std::move(blobs)}};
  return out.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow;        // NOLINT: what follows is the C interface
using namespace hotrow::capi;  // NOLINT

extern "C" {

hotrow_status hotrow_checkpoint_begin(hotrow_collection* collection, const hotrow_blob* blobs,
                                      int64_t num_blobs) {
  return CallWriter(collection, [&](Tables& tables, CheckpointWriter& writer) -> absl::Status {
    if (writer.busy()) {
      return absl::FailedPreconditionError(
          "a checkpoint is still being written; wait for it, or ask whether it is committed");
    }
    SavedModel model = tables.description;
    model.step = tables.collection->steps();
    const auto rates = tables.collection->learning_rates();
    if (!rates.empty()) {
      const StartOptions& start = tables.options.start;
      TrainingState state;
      state.first_step = start.learning_rates.empty() ? start.steps : start.settled_steps;
      state.steps = model.step - state.first_step;
      state.settings = DecayOf(tables.options);
      state.learning_rates.assign(rates.begin(), rates.end());
      state.settled = model.step == tables.settled_steps;
      model.training = std::make_shared<const TrainingState>(std::move(state));
    }
    absl::StatusOr<SavedModel::BlobBytes> bytes = TakeBlobs(blobs, num_blobs);
    HOTROW_RETURN_IF_ERROR(tables.collection->EndJobUnlessOk(bytes.status()));
    model.blob_bytes = std::make_shared<const SavedModel::BlobBytes>(*std::move(bytes));
    absl::Status status = writer.Begin(model, {});
    if (MadeRoom(tables, status)) status = writer.Begin(model, {});
    tables.begun = std::move(model);
    return status;
  });
}

hotrow_status hotrow_checkpoint_poll(hotrow_collection* collection, int32_t* committed) {
  return CallWriter(collection, [&](Tables& tables, CheckpointWriter& writer) -> absl::Status {
    HOTROW_RETURN_IF_ERROR(tables.collection->EndJobUnlessOk(NotNull(committed, "committed")));
    HOTROW_ASSIGN_OR_RETURN(const bool is, writer.Poll());
    if (is) tables.begun = {};
    *committed = is ? 1 : 0;
    return absl::OkStatus();
  });
}

hotrow_status hotrow_checkpoint_wait(hotrow_collection* collection) {
  return CallWriter(collection, [](Tables& tables, CheckpointWriter& writer) -> absl::Status {
    absl::Status status = writer.Wait();
    // Begun once more, unless the tables have gone on since.
    if (MadeRoom(tables, status) && tables.begun.step == tables.collection->steps()) {
      HOTROW_RETURN_IF_ERROR(writer.Begin(tables.begun, {}));
      status = writer.Wait();
    }
    if (status.ok()) tables.begun = {};
    return status;
  });
}

hotrow_status hotrow_checkpoint_newest(hotrow_collection* collection, char* text, uint64_t size,
                                       uint64_t* needed) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(collection, "collection"));
    const Turn turn(collection->tables);
    HOTROW_ASSIGN_OR_RETURN(const CheckpointWriter* const writer, WriterOf(turn));
    return GiveText(writer->newest_dir(), text, size, needed);
  });
}

hotrow_status hotrow_saved_open(const char* path, hotrow_saved** saved) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(path, "path"));
    HOTROW_RETURN_IF_ERROR(NotNull(saved, "saved"));
    HOTROW_ASSIGN_OR_RETURN(SavedModel model, ReadCheckpoint(PosixEnv(), path));
    *saved = new hotrow_saved{std::move(model)};
    return absl::OkStatus();
  });
}

void hotrow_saved_destroy(hotrow_saved* saved) { delete saved; }

hotrow_status hotrow_saved_describe(hotrow_saved* saved, char* text, uint64_t size,
                                    uint64_t* needed) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(saved, "saved"));
    return GiveText(Describe(saved->model), text, size, needed);
  });
}

hotrow_status hotrow_saved_blob(hotrow_saved* saved, const char* name, void* data, uint64_t size,
                                uint64_t* needed) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(saved, "saved"));
    HOTROW_RETURN_IF_ERROR(NotNull(name, "name"));
    for (const SavedModel::Blob& blob : saved->model.blobs) {
      if (blob.name != name) continue;
      HOTROW_RETURN_IF_ERROR(CheckRoom(static_cast<uint64_t>(blob.bytes), data, size, needed));
      HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                              ReadSavedBlob(PosixEnv(), saved->model, blob));
      if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
      return absl::OkStatus();
    }
    return absl::NotFoundError(
        absl::StrCat(saved->model.dir, ": there is no blob \"", name, "\" in it"));
  });
}

}  // extern "C"
