#ifndef HOTROW_BASE_OUT_OF_ROOM_H_
#define HOTROW_BASE_OUT_OF_ROOM_H_

#include <string_view>

#include "absl/status/status.h"

// Errors whose remedy is room on a disk: its budget, its quota or the disk itself is full. They are
// ResourceExhausted, as is want of memory, which no removed file mends. So they have a mark
// besides, which callers go by, not by the text.
namespace hotrow {

absl::Status OutOfRoomError(std::string_view message);
bool IsOutOfRoom(const absl::Status& status);

// The status with another text: its code and its mark stay.
absl::Status WithText(const absl::Status& status, std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_BASE_OUT_OF_ROOM_H_
