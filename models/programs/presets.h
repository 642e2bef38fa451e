#ifndef HOTROW_MODELS_PROGRAMS_PRESETS_H_
#define HOTROW_MODELS_PROGRAMS_PRESETS_H_

#include <string_view>
#include <vector>

#include "base/flag_set.h"

namespace hotrow {

// The presets of a training program: settings that reproduce a result of bench/results/accuracy.md.
// Empty for an unknown program. No preset sets --data, since the user knows where the files are.
std::vector<FlagPreset> PresetsOf(std::string_view program);

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_PRESETS_H_
