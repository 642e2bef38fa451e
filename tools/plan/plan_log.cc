#include "tools/plan/plan_log.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr int kLockTries = 500;
constexpr std::chrono::milliseconds kLockPause(10);

std::string HashOf(std::string_view bytes) {
  return HashBytes(0, 0, std::as_bytes(std::span(bytes))).ToHex();
}

// "2026-11-23T22:47:50Z"
std::string TimeText(int64_t unix_seconds) {
  const auto time = static_cast<time_t>(unix_seconds);
  tm parts = {};
  ::gmtime_r(&time, &parts);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02dZ", parts.tm_year + 1900, parts.tm_mon + 1,
                         parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

absl::StatusOr<std::unique_ptr<FileLock>> LockInTurn(Env& env, const std::string& path) {
  for (int tries = 1;; ++tries) {
    absl::StatusOr<std::unique_ptr<FileLock>> lock = env.LockFile(path, LockMode::kExclusive);
    if (lock.ok() || !absl::IsFailedPrecondition(lock.status()) || tries == kLockTries) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

}  // namespace

void PlanInputs::Add(std::string_view what, std::string_view file, std::string_view bytes) {
  all_.push_back({std::string(what), std::string(file), HashOf(bytes)});
}

void PlanInputs::AddCurve(const PlanTable& table) {
  const std::string& file = table.trace_file.empty() ? table.curve_file : table.trace_file;
  if (file.empty()) return;
  std::string points;
  for (const CurvePoint& point : table.curve) {
    absl::StrAppendFormat(&points, "%.17g %.17g\n", point.rows, point.hit_rate);
  }
  Add(absl::StrCat("curve of ", table.name), file, points);
}

std::string PlanInputs::digest() const {
  std::string all;
  for (const Input& input : all_) absl::StrAppend(&all, input.what, "\n", input.digest, "\n");
  return HashOf(all);
}

std::string PlanLogLine(const PlanSpec& spec, const Plan& plan, const PlanInputs& inputs,
                        int64_t unix_seconds) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["time"] = TimeText(unix_seconds);
  json["digest"] = inputs.digest();
  Json list = Json::array();
  for (const PlanInputs::Input& input : inputs.all()) {
    list.push_back({{"what", input.what}, {"file", input.file}, {"digest", input.digest}});
  }
  json["inputs"] = std::move(list);
  json["spec"] = spec.name;
  json["hardware"] = spec.hardware.name;
  json["ranks"] = spec.ranks;
  json["batch_size"] = spec.batch_size;
  json["fits"] = plan.fits;
  json["store"] = std::string(StoreKindName(plan.store));
  json["bottleneck"] = plan.bottleneck;
  Json values;
  for (const auto& [name, value] : plan.Values()) {
    values[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  }
  json["values"] = std::move(values);
  // Names of files may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status AppendLine(Env& env, const std::string& path, std::string_view line) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock, LockInTurn(env, path));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kCreate));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  std::string text;
  if (size > 0) {
    char last = 0;
    HOTROW_RETURN_IF_ERROR(ReadFull(*file, size - 1, std::as_writable_bytes(std::span(&last, 1))));
    if (last != '\n') text = "\n";
  }
  absl::StrAppend(&text, std::string(line));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, size, std::as_bytes(std::span(text))));
  HOTROW_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace hotrow
