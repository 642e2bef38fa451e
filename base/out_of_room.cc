#include "base/out_of_room.h"

#include "absl/strings/cord.h"

namespace hotrow {
namespace {

constexpr char kMark[] = "hotrow/out_of_room";

}  // namespace

absl::Status OutOfRoomError(std::string_view message) {
  absl::Status status = absl::ResourceExhaustedError({message.data(), message.size()});
  status.SetPayload(kMark, absl::Cord());
  return status;
}

bool IsOutOfRoom(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

absl::Status WithText(const absl::Status& status, std::string_view text) {
  if (IsOutOfRoom(status)) return OutOfRoomError(text);
  return absl::Status(status.code(), {text.data(), text.size()});
}

}  // namespace hotrow
