#ifndef HOTROW_CAPI_CALL_IMPL_H_
#define HOTROW_CAPI_CALL_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/enum_words.h"
#include "hotrow/hotrow.h"

// What all functions of the C interface share: errors, structs that grow, texts, words.

namespace hotrow::capi {

// Keeps the message for hotrow_error_message and returns the code. Allocates nothing.
hotrow_status Keep(hotrow_status code, std::string_view message) noexcept;
// The same in the words of callers, for as long as there is memory for them.
hotrow_status Keep(const absl::Status& status) noexcept;

// A message of models/, which names options of scorers and flags of the programs, with the names
// that hotrow.h has for them.
std::string InCallersWords(std::string_view message);

// Runs what a function of the interface does. Nothing is thrown beyond it.
template <typename Body>
hotrow_status Call(const Body& body) noexcept {
  try {
    const absl::Status status = body();
    return status.ok() ? HOTROW_OK : Keep(status);
  } catch (const std::bad_alloc&) {
    return Keep(HOTROW_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& error) {
    return Keep(HOTROW_INTERNAL, error.what());
  } catch (...) {
    return Keep(HOTROW_INTERNAL, "an exception of an unknown type");
  }
}
// The same for functions that cannot fail.
template <typename Body>
void CallVoid(const Body& body) noexcept {
  Call([&] {
    body();
    return absl::OkStatus();
  });
}

// InvalidArgument when an argument is null.
inline absl::Status NotNull(const void* argument, std::string_view name) {
  if (argument != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": is null"));
}

// What a handle points to, and the process that made it. A fork leaves the child a copy without the
// threads: nothing may call it, and who is to end it leaves it as it is.
uint64_t ProcessNumber() noexcept;  // another one in each child of fork
struct Handle {
  uint64_t process = ProcessNumber();
  bool forked() const { return process != ProcessNumber(); }
};
inline absl::Status Usable(const Handle* handle, std::string_view name) {
  if (handle == nullptr) return NotNull(handle, name);
  if (!handle->forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ", std::string(name),
      " was made by the process that forked this one, and is of no use here; make one in this "
      "process"));
}
// Ends what a handle points to, unless a fork has copied it.
template <typename T>
void Destroy(T* handle) {
  if (handle != nullptr && !handle->forked()) delete handle;
}

// A struct that begins with struct_size, with `value` for what the caller does not know.
template <typename T>
void WriteDefault(const T& value, T* out, uint64_t struct_size) {
  if (out == nullptr || struct_size < sizeof(uint64_t)) return;
  std::memset(static_cast<void*>(out), 0, struct_size);
  std::memcpy(static_cast<void*>(out), &value, std::min<uint64_t>(struct_size, sizeof(T)));
  std::memcpy(static_cast<void*>(out), &struct_size, sizeof(struct_size));
}

// The larger struct of a newer header may have fields that say nothing.
inline constexpr uint64_t kStructSizeMax = 4096;

// The size that a struct had in the first header of this interface. One that has grown since says
// which field came next.
template <typename T>
inline constexpr uint64_t kFirstSize = sizeof(T);
template <>
inline constexpr uint64_t kFirstSize<hotrow_context_options> = offsetof(hotrow_context_options,
                                                                        device_index);
template <>
inline constexpr uint64_t kFirstSize<hotrow_communicator_callbacks> =
    offsetof(hotrow_communicator_callbacks, status);
template <>
inline constexpr uint64_t kFirstSize<hotrow_table> = offsetof(hotrow_table, read_only_features);
template <>
inline constexpr uint64_t kFirstSize<hotrow_collection_options> =
    offsetof(hotrow_collection_options, admission_bytes);
template <>
inline constexpr uint64_t kFirstSize<hotrow_packer_options> = offsetof(hotrow_packer_options,
                                                                       dense);
template <>
inline constexpr uint64_t kFirstSize<hotrow_batch> = offsetof(hotrow_batch, on_device);
template <>
inline constexpr uint64_t kFirstSize<hotrow_data_options> = offsetof(hotrow_data_options,
                                                                     shuffle_bytes);
template <>
inline constexpr uint64_t kFirstSize<hotrow_samples_view> = offsetof(hotrow_samples_view,
                                                                     global_batch_size);
template <>
inline constexpr uint64_t kFirstSize<hotrow_scorer_options> = offsetof(hotrow_scorer_options,
                                                                       rows_dir);

// Takes a struct of any version. defaults: what its fields are where the caller has none. Errors:
// InvalidArgument (no struct), Unimplemented.
template <typename T>
absl::StatusOr<T> TakeStruct(const void* in, uint64_t struct_size, const T& defaults,
                             std::string_view name) {
  if (in == nullptr) return NotNull(in, name);
  if (struct_size < kFirstSize<T> || struct_size > kStructSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ".struct_size: is ", struct_size,
                     ", must be the size of the struct; call its _default function first"));
  }
  const auto* const bytes = static_cast<const unsigned char*>(in);
  const uint64_t known = std::min<uint64_t>(struct_size, sizeof(T));
  if (std::any_of(bytes + known, bytes + struct_size, [](unsigned char b) { return b != 0; })) {
    return absl::UnimplementedError(
        absl::StrCat(std::string(name), ": has fields that this library (", hotrow_version(),
                     ") does not know; leave them zero, or take a newer one"));
  }
  T out = defaults;
  std::memcpy(static_cast<void*>(&out), in, known);
  return out;
}
template <typename T>
absl::StatusOr<T> TakeStruct(const T* in, const T& defaults, std::string_view name) {
  if (in == nullptr) return NotNull(in, name);
  uint64_t struct_size = 0;
  std::memcpy(&struct_size, in, sizeof(struct_size));
  return TakeStruct<T>(static_cast<const void*>(in), struct_size, defaults, name);
}

// Copies a text with its NUL.
absl::Status GiveText(std::string_view text, char* out, uint64_t size, uint64_t* needed);
// OutOfRange when the buffer is smaller than `need`; sets *needed.
absl::Status CheckRoom(uint64_t need, const void* out, uint64_t size, uint64_t* needed);

// The text; an empty one where there is none.
inline std::string_view TextOf(const char* text) { return text == nullptr ? "" : text; }

// Puts the place of an argument in front of an error: "tables[2]: ...".
absl::Status At(std::string_view place, const absl::Status& status);

// A choice by its word; *out stays as it is for null. The error of another word lists all.
template <typename T, size_t N>
absl::Status TakeWord(const EnumWord<T> (&words)[N], const char* text, std::string_view name,
                      T* out) {
  if (text == nullptr) return absl::OkStatus();
  std::vector<std::string> legal;
  for (const EnumWord<T>& word : words) {
    if (word.name == text) {
      *out = word.value;
      return absl::OkStatus();
    }
    legal.emplace_back(word.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(name), ": is \"", text, "\", must be one of ", absl::StrJoin(legal, ", ")));
}

// The same with a function that knows the words.
template <typename T>
absl::Status TakeParsed(absl::StatusOr<T> (*parse)(std::string_view), const char* text,
                        std::string_view name, T* out) {
  if (text == nullptr) return absl::OkStatus();
  absl::StatusOr<T> parsed = parse(text);
  if (parsed.ok()) *out = *parsed;
  return At(name, parsed.status());
}

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_CALL_IMPL_H_
