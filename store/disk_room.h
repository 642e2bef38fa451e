#ifndef HOTROW_STORE_DISK_ROOM_H_
#define HOTROW_STORE_DISK_ROOM_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace hotrow {

// Rows that a cache has yet to write.
struct RowsToCome {
  int64_t row_bytes = 0;
  int64_t rows = 0;       // new ones that are to be made, and unwritten; 0: none are to be made
  int64_t changed = 0;    // that have changed or are to change, new ones among them
  int64_t unwritten = 0;  // of them, new ones that were made before
};

// What a store on a disk says of its budgets before a cache takes new rows. A cache whose rows find
// no room can give up none of them: it could serve no other row, and neither save nor erase.
class DiskRoom {
 public:
  virtual ~DiskRoom() = default;

  // Whether there is room for all of these; without any, whether a cache may go on to change rows
  // that are there. Errors: ResourceExhausted, with the mark of base/out_of_room.h where the disk
  // is meant.
  virtual absl::Status CheckRoom(std::span<const RowsToCome> to_come) = 0;

  // Whether room for rows that change is so short that a cache should write them at once. With
  // `in_snapshot` as if a snapshot had been taken of all rows: then nobody should change these
  // while it is being taken.
  virtual bool IsTight(std::span<const RowsToCome> /*to_come*/, bool /*in_snapshot*/) {
    return false;
  }
};

}  // namespace hotrow

#endif  // HOTROW_STORE_DISK_ROOM_H_
