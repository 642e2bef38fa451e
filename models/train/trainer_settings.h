#ifndef HOTROW_MODELS_TRAIN_TRAINER_SETTINGS_H_
#define HOTROW_MODELS_TRAIN_TRAINER_SETTINGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/flag_set.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// What a setting decides, and so who must have it alike.
enum class SettingRole {
  kBits,             // the bits of the run: a run that resumes, and all ranks
  kAlike,            // collective calls, or what is stored: all ranks
  kAlikeInPresence,  // the same, but only whether it is 0 or empty counts
  kOwn,              // neither: each rank its own
};

// What of a run a setting of role kBits is of. Manifests list them in this order.
enum class SettingPart {
  kRun,
  kTableOptimizer,
  kDenseOptimizer,
  kSchedule,
  kStart,
  kExchange,
  kDevice
};

// What a checkpoint had that does not say the setting, as it is older. It stays when a default
// changes. At most one member is set; none: there is no such checkpoint.
struct OlderSetting {
  const char* value = nullptr;
  const char* same_as = nullptr;  // what this setting had
  bool as_now = false;            // what the run that resumes has: nobody knows

  constexpr bool known() const { return value != nullptr || same_as != nullptr || as_now; }
};

// One field of TrainerOptions.
struct TrainerSetting {
  // Of its flag without dashes; of a field that has no flag its path in TrainerOptions.
  const char* name;
  const char* group = nullptr;  // heading in --help; null: it has no flag
  const char* help = nullptr;
  const char* help_default = nullptr;  // where the value itself would not tell
  SettingRole role = SettingRole::kOwn;
  SettingPart part = SettingPart::kRun;
  OlderSetting older;
  // The field of these options: its type, its legal values, its text.
  FlagField (*bind)(TrainerOptions& options);

  bool is_flag() const { return group != nullptr; }
  FlagValue Value(const TrainerOptions& options) const;
  std::string Text(const TrainerOptions& options) const { return FlagText(Value(options)); }
};

// All settings, in the order of --help; settings without a flag stand by those of their kind.
std::span<const TrainerSetting> TrainerSettings();
const TrainerSetting* FindTrainerSetting(std::string_view name);  // null: there is none

// Whether whole numbers are at least what their flags take. Errors: InvalidArgument, which names
// the flag, the limit and the value it got.
absl::Status CheckLowerBounds(const TrainerOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAINER_SETTINGS_H_
