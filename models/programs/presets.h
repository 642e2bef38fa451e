#ifndef HOTROW_MODELS_PROGRAMS_PRESETS_H_
#define HOTROW_MODELS_PROGRAMS_PRESETS_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/flag_set.h"

namespace hotrow {

// What the presets of the training programs have in common. Each reproduces a result of
// bench/results/accuracy.md; `flags` are those in which it differs from the others. No preset sets
// --data, since the user knows where the files are.

// After BARS and FuxiCTR: Adam for all parameters, rate x 0.1 on a plateau, best epoch by
// validation, patience 2.
FlagPreset MakePreset(std::string_view name, std::string_view result,
                      std::vector<std::string> flags);

// The settings that BARS publishes for Frappe_x1.
FlagPreset FrappePreset(std::string_view name, std::string_view result,
                        const std::vector<std::string>& flags);

// First values of rows near zero.
inline constexpr char kNarrowStart[] = "--initializer=normal:0.0001";

}  // namespace hotrow

#endif  // HOTROW_MODELS_PROGRAMS_PRESETS_H_
