#ifndef HOTROW_MODELS_PROGRAMS_PRESETS_H_
#define HOTROW_MODELS_PROGRAMS_PRESETS_H_

#include <string_view>
#include <vector>

#include "base/flag_set.h"

namespace hotrow {

// The presets of a training program: settings that reproduce a result, see
// bench/results/accuracy.md. None for an unknown program. None sets --data: where the files lie is
// the user's.
std::vector<FlagPreset> PresetsOf(std::string_view program);

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_PRESETS_H_
