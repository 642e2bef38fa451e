#ifndef HOTROW_BASE_FLAG_SET_H_
#define HOTROW_BASE_FLAG_SET_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

using FlagValue = std::variant<int64_t, double, std::string>;

// Flags under one name.
struct FlagPreset {
  std::string name;
  std::string result;              // what it reproduces, for the help
  std::vector<std::string> flags;  // "--name=value"
};

// The flags of one program, as a table over the fields of a struct: name, group, help, legal values
// and the field that receives the value. The defaults are what the fields hold when they are added.
// (Abseil's flags are process-wide statics: a test could parse only once, and an unknown flag ends
// the process with a message of several lines.)
//
// Grammar: --name=value or --name value, one dash or two; a switch is --name or --name=value; `--`
// may end the flags. No positional arguments.
class FlagSet {
 public:
  explicit FlagSet(std::string_view program) : program_(program) {}

  // Flags added from here on stand under this heading.
  void Group(std::string_view title);
  // `hint` stands for the value in the help: "N", "FILE". Values are UTF-8. Fields outlive the set.
  void AddString(std::string_view name, std::string_view hint, std::string* field,
                 std::string_view help);
  void AddInt(std::string_view name, int64_t min, int64_t max, int64_t* field,
              std::string_view help);
  void AddReal(std::string_view name, double min, double max, double* field, std::string_view help);
  // A byte count as ParseBytes reads it, at most bytes_max; with `min_value` the word "min" is
  // legal too and means that number.
  static constexpr int64_t kNoMinWord = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kBytesMax = int64_t{1} << 60;
  static constexpr int64_t kMemoryBytesMax = int64_t{1} << 47;  // addresses of a process on x86-64
  void AddBytes(std::string_view name, int64_t* field, std::string_view help,
                int64_t min_value = kNoMinWord, int64_t bytes_max = kBytesMax);
  // Layer sizes, joined by - or by commas.
  void AddSizes(std::string_view name, std::vector<int32_t>* field, std::string_view help);
  // On or off: --name alone and --name=true set it, --name=false clears it.
  void AddSwitch(std::string_view name, bool* field, std::string_view help);
  // Adds --preset=NAME: it sets the preset's flags as if they were typed before all others, so that
  // a flag on the command line wins wherever it stands.
  void AddPresets(std::vector<FlagPreset> presets);
  // What the help gives as the default of the last flag added, where the value itself would not
  // tell ("all cores" for 0).
  void DescribeDefault(std::string_view text);

  // Errors: InvalidArgument; one line that names the flag, what it got and what it takes.
  absl::Status Parse(int argc, const char* const* argv);
  bool help_requested() const { return help_requested_; }

  // The flags by group, then the presets, 100 columns wide.
  std::string Help() const;
  // What the fields hold now, in order: after defaults are resolved these are the effective values.
  std::vector<std::pair<std::string, FlagValue>> Values() const;
  // The same as texts, of the flags under one heading.
  std::vector<std::pair<std::string, std::string>> TextsOfGroup(std::string_view title) const;
  // The command line that was parsed with one flag changed or added, ready for a shell.
  std::string CommandLineWith(std::string_view name, std::string_view value) const;

 private:
  struct Flag {
    std::string name;
    std::string hint;
    std::string help;
    std::string default_text;
    size_t group = 0;
    bool is_switch = false;  // needs no value
    std::function<absl::Status(std::string_view)> set;
    std::function<FlagValue()> get;
  };
  void Add(Flag flag);
  const Flag* Find(std::string_view name) const;
  absl::Status UnknownFlag(std::string_view name) const;
  absl::Status Set(const Flag& flag, std::string_view value) const;
  absl::Status ApplyPreset(std::string_view name);

  std::string program_;
  std::vector<std::string> groups_;
  std::vector<Flag> flags_;
  std::vector<FlagPreset> presets_;
  std::shared_ptr<std::string> preset_ = std::make_shared<std::string>();  // the one in use
  std::vector<std::pair<std::string, std::string>> given_;
  bool help_requested_ = false;
};

// "4096", "64MiB", "1.5G": plain bytes, KiB MiB GiB TiB PiB (powers of 1024), k M G T P or KB MB GB
// TB PB (powers of 1000); case does not matter. At most FlagSet::kBytesMax.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Breaks text at spaces into lines of at most `width` characters; line breaks in it are kept.
std::vector<std::string> WrapText(std::string_view text, size_t width);

}  // namespace hotrow

#endif  // HOTROW_BASE_FLAG_SET_H_
