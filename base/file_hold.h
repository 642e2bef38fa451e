#ifndef HOTROW_BASE_FILE_HOLD_H_
#define HOTROW_BASE_FILE_HOLD_H_

#include "base/env.h"

namespace hotrow {

// Holds on open files: a reader asks those who would write over the file to take another one first.
// A hold is a shared flock, which needs no permission to write and ends with the File, however its
// process ends. Where the file system has no locks, and on Envs of tests, nothing is ever held.
void HoldFile(File& file);
// Whether another opening of the file, in this process or another, holds it.
bool IsFileHeld(File& file);

}  // namespace hotrow

#endif  // HOTROW_BASE_FILE_HOLD_H_
