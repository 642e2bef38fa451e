#ifndef HOTROW_BASE_FLAG_SET_H_
#define HOTROW_BASE_FLAG_SET_H_

#include <concepts>
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
#include "base/enum_words.h"

namespace hotrow {

using FlagValue = std::variant<int64_t, double, std::string>;

// The value as a command line or a manifest shows it. A number is the shortest text that parses to
// the same value.
std::string FlagText(const FlagValue& value);

// Reads and shows one field of a program in the field's own type. The functions below make one; the
// field outlives it.
struct FlagField {
  std::string hint;        // stands for the value in the help: "N", "FILE"
  bool is_switch = false;  // needs no value
  // Errors: InvalidArgument, which says what is legal: "takes a whole number from 1 to 9".
  std::function<absl::Status(std::string_view)> set;
  std::function<FlagValue()> get;
  // Whole numbers and bytes: the least that is legal, and a number below it that a word stands for.
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t word_value = std::numeric_limits<int64_t>::min();

  // Sets it; the error is "NAME=TEXT: takes ...".
  absl::Status SetAs(std::string_view name, std::string_view text) const;
};

namespace internal {
FlagField IntFlag(int64_t min, int64_t max, std::function<void(int64_t)> set,
                  std::function<FlagValue()> get);
FlagField WordFlag(std::string_view hint, std::vector<std::string_view> words,
                   std::function<void(size_t word)> set, std::function<std::string_view()> get);
}  // namespace internal

template <std::integral T>
FlagField IntFlag(T* field, int64_t min, int64_t max) {
  return internal::IntFlag(
      min, max, [field](int64_t value) { *field = static_cast<T>(value); },
      [field] {
        return std::in_range<int64_t>(*field) ? FlagValue(static_cast<int64_t>(*field))
                                              : FlagValue(std::to_string(*field));
      });
}
// A float shows as the double of the same shortest text: 0.02f as 0.02.
FlagField RealFlag(double* field, double min, double max);
FlagField RealFlag(float* field, double min, double max);
// Values are UTF-8.
FlagField StringFlag(std::string_view hint, std::string* field);
// On or off: --name alone and --name=true set it, --name=false clears it.
FlagField SwitchFlag(bool* field);
// Layer sizes, joined by - or by commas.
FlagField SizesFlag(std::vector<int32_t>* field);
inline constexpr int64_t kNoMinWord = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kFlagBytesMax = int64_t{1} << 60;
// Addresses of a process on x86-64.
inline constexpr int64_t kFlagMemoryBytesMax = int64_t{1} << 47;
// A byte count as ParseBytes reads it, at most bytes_max; with word_value the word "min" is legal
// too and means that number.
FlagField BytesFlag(int64_t* field, int64_t word_value = kNoMinWord,
                    int64_t bytes_max = kFlagBytesMax);

// "a, b or c".
std::string OneOf(const std::vector<std::string_view>& words);

// A value by its text, an enum by its words, with the functions of the type's owner. The error of
// `parse` says what is legal.
template <typename T, typename TextOf>
FlagField WordFlag(std::string_view hint, T* field,
                   absl::StatusOr<T> (*parse)(std::string_view text), TextOf text_of) {
  return {.hint = std::string(hint),
          .set =
              [=](std::string_view text) {
                absl::StatusOr<T> value = parse(text);
                if (value.ok()) *field = *value;
                return value.status();
              },
          .get = [=] { return FlagValue(std::string(text_of(*field))); }};
}
// The same with a table of the words (base/enum_words.h).
template <typename T>
FlagField WordFlag(std::string_view hint, T* field, std::vector<EnumWord<T>> words) {
  std::vector<std::string_view> names;
  for (const EnumWord<T>& word : words) names.push_back(word.name);
  return internal::WordFlag(
      hint, std::move(names), [=](size_t word) { *field = words[word].value; },
      [=] {
        for (const EnumWord<T>& word : words) {
          if (word.value == *field) return word.name;
        }
        return std::string_view("unknown");
      });
}

// Flags under one name.
struct FlagPreset {
  std::string name;
  std::string result;              // what it reproduces, for the help
  std::vector<std::string> flags;  // "--name=value"
};

// The flags of one program, as a table over the fields of a struct: name, group, help, legal values
// and the field that receives the value. The defaults are what the fields hold when they are added.
// (Abseil's flags are process-wide statics: a test can parse once, and an unknown flag ends the
// process with several lines.)
//
// Grammar: --name=value or --name value, one dash or two; a switch is --name or --name=value; `--`
// may end the flags. No positional arguments.
class FlagSet {
 public:
  explicit FlagSet(std::string_view program) : program_(program) {}

  // Later flags go under this heading, after those that it has already.
  void Group(std::string_view title);
  void Add(std::string_view name, FlagField field, std::string_view help);
  // The same with the fields that the functions above make.
  void AddString(std::string_view name, std::string_view hint, std::string* field,
                 std::string_view help);
  void AddInt(std::string_view name, int64_t min, int64_t max, int64_t* field,
              std::string_view help);
  void AddReal(std::string_view name, double min, double max, double* field, std::string_view help);
  void AddBytes(std::string_view name, int64_t* field, std::string_view help,
                int64_t word_value = kNoMinWord, int64_t bytes_max = kFlagBytesMax);
  void AddSizes(std::string_view name, std::vector<int32_t>* field, std::string_view help);
  void AddSwitch(std::string_view name, bool* field, std::string_view help);
  // Adds --preset=NAME, which sets the preset's flags as if they were typed before all others: a
  // flag on the command line always wins.
  void AddPresets(std::vector<FlagPreset> presets);
  // Text for the default of the last flag added, where the value itself says too little ("all
  // cores" for 0).
  void DescribeDefault(std::string_view text);

  // Errors: InvalidArgument; one line with the flag, the value it got and the values it takes.
  absl::Status Parse(int argc, const char* const* argv);
  bool help_requested() const { return help_requested_; }

  // The flags by group, then the presets, 100 columns wide.
  std::string Help() const;
  // The fields' values, in order: the effective values once defaults are resolved.
  std::vector<std::pair<std::string, FlagValue>> Values() const;
  // The same as texts, of the flags under one heading.
  std::vector<std::pair<std::string, std::string>> TextsOfGroup(std::string_view title) const;
  // The command line that was parsed with one flag changed or added, ready for a shell.
  std::string CommandLineWith(std::string_view name, std::string_view value) const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string default_text;
    size_t group = 0;
    FlagField field;
  };
  const Flag* Find(std::string_view name) const;
  absl::Status UnknownFlag(std::string_view name) const;
  absl::Status Set(const Flag& flag, std::string_view value) const;
  absl::Status ApplyPreset(std::string_view name);

  std::string program_;
  std::vector<std::string> groups_;
  size_t group_ = 0;  // of the next flag
  std::vector<Flag> flags_;
  std::vector<FlagPreset> presets_;
  std::shared_ptr<std::string> preset_ = std::make_shared<std::string>();  // the one in use
  std::vector<std::pair<std::string, std::string>> given_;
  bool help_requested_ = false;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_FLAG_SET_H_
