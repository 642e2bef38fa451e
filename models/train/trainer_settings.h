#ifndef HOTROW_MODELS_TRAIN_TRAINER_SETTINGS_H_
#define HOTROW_MODELS_TRAIN_TRAINER_SETTINGS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/flag_set.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// What a setting decides, and which runs and ranks must share its value.
enum class SettingRole {
  kBits,             // bits of the run: shared by all ranks and by a run that resumes
  kAlike,            // collective calls or what is stored: shared by all ranks
  kAlikeInPresence,  // the same, but it counts only whether the value is 0 or empty
  kOwn,              // neither: each rank may have its own
};

// The part of a run that a setting of role kBits belongs to. Manifests list them in this order.
enum class SettingPart {
  kRun,
  kTableOptimizer,
  kDenseOptimizer,
  kSchedule,
  kStart,
  kExchange,
  kDevice
};

// The value that a setting has for checkpoints older than the setting. It stays when a default
// changes. At most one member is set; none: all checkpoints have the setting.
struct OlderSetting {
  const char* value = nullptr;
  const char* same_as = nullptr;  // the value of this other setting
  bool as_now = false;            // unknown: the value of the run that resumes

  constexpr bool known() const { return value != nullptr || same_as != nullptr || as_now; }
};

// One field of TrainerOptions.
struct TrainerSetting {
  // The flag without dashes, or the path in TrainerOptions of a field that has no flag.
  const char* name;
  const char* flag = nullptr;   // the flag where it came after the name; null: the name
  const char* group = nullptr;  // heading in --help; null: it has no flag
  const char* help = nullptr;
  // Legal words, if another header owns them; --help lists them after `help`.
  std::vector<std::string_view> (*words)() = nullptr;
  const char* help_default = nullptr;  // for --help, if the value itself says too little
  SettingRole role = SettingRole::kOwn;
  SettingPart part = SettingPart::kRun;
  OlderSetting older;
  // Binds the field of these options: parsing, bounds, text.
  FlagField (*bind)(TrainerOptions& options);

  bool is_flag() const { return group != nullptr; }
  const char* flag_name() const { return flag != nullptr ? flag : name; }
  std::string Help() const;
  FlagValue Value(const TrainerOptions& options) const;
  std::string Text(const TrainerOptions& options) const { return FlagText(Value(options)); }
};

// All settings in the order of --help; settings without a flag stand next to related ones.
std::span<const TrainerSetting> TrainerSettings();
const TrainerSetting* FindTrainerSetting(std::string_view name);  // null: there is none
// EmbeddingCollectionOptions::name_option: "--cache_bytes" of "cache.bytes".
std::string FlagOfOption(std::string_view path);

// Checks whole numbers against the lower bounds of their flags. Errors: InvalidArgument, which
// names the flag, the limit and the value.
absl::Status CheckLowerBounds(const TrainerOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAINER_SETTINGS_H_
