#include "tools/command.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "models/train/trainer_options.h"

namespace hotrow {
namespace {

std::string GeneralHelp() {
  std::string out =
      "hotrow: inspects, verifies, converts and plans tables and their files, trains models, "
      "scores\nand serves.\n"
      "Usage: hotrow COMMAND ...\n"
      "\n"
      "Commands\n";
  for (const Command& command : Commands()) {
    absl::StrAppendFormat(&out, "  %-24s %s\n", absl::StrCat(command.name, " ", command.operands),
                          command.summary);
  }
  absl::StrAppend(
      &out,
      "\n"
      "hotrow COMMAND --help describes a command and its flags, hotrow --version tells the "
      "version.\n"
      "Exit status: 0 success, 1 damage, 2 wrong usage or a file that cannot be opened.\n");
  return out;
}

std::string CommandNames() {
  std::string out;
  for (const Command& command : Commands()) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", command.name);
  }
  return out;
}

bool IsFlag(std::string_view argument) { return argument.size() > 1 && argument[0] == '-'; }

}  // namespace

std::span<const Command> Commands() {
  static const std::array commands = {
      kApplyCommand,    kBenchServeCommand, kCalibrateCommand, kCompactCommand, kEraseCommand,
      kExportCommand,   kImportCommand,     kInspectCommand,   kPackCommand,    kPlanCommand,
      kQuantizeCommand, kScoreCommand,      kServeCommand,     kTopCommand,     kTraceCommand,
      kTrainCommand,    kVerifyCommand};
  return commands;
}

absl::Status ParseArguments(const Command& command, std::span<const char* const> arguments,
                            FlagSet* flags, std::vector<std::string>* operands) {
  const std::vector<std::string> wanted = absl::StrSplit(command.operands, ' ', absl::SkipEmpty());
  // FlagSet takes flags alone. Operands at the end are as many as are still missing, and those
  // between flags follow one with its value: what follows another may be its value.
  size_t begin = 0;
  size_t end = arguments.size();
  while (begin < end && !IsFlag(arguments[begin])) operands->emplace_back(arguments[begin++]);
  const size_t leading = operands->size();
  while (begin < end && operands->size() < wanted.size() && !IsFlag(arguments[end - 1])) {
    operands->emplace(operands->begin() + static_cast<std::ptrdiff_t>(leading), arguments[--end]);
  }
  std::vector<const char*> rest = {command.name};
  size_t between = leading;
  bool may_be_value = false;
  for (const char* const argument : arguments.subspan(begin, end - begin)) {
    if (!IsFlag(argument) && !may_be_value && operands->size() < wanted.size()) {
      operands->emplace(operands->begin() + static_cast<std::ptrdiff_t>(between++), argument);
      continue;
    }
    may_be_value = IsFlag(argument) && !absl::StrContains(argument, '=');
    rest.push_back(argument);
  }
  HOTROW_RETURN_IF_ERROR(flags->Parse(static_cast<int>(rest.size()), rest.data()));
  if (flags->help_requested()) {
    const bool of_topic = std::any_of(arguments.begin(), arguments.end(), [](const char* argument) {
      return std::string_view(argument).starts_with("--help=");
    });
    if (of_topic) {
      std::fputs(flags->Help().c_str(), stdout);
      operands->clear();
      return absl::OkStatus();
    }
    std::printf("hotrow %s: %s\nUsage: hotrow %s %s [--flag=value ...]\n\n%s\n%s", command.name,
                command.summary, command.name, command.operands, command.details,
                flags->Help().c_str());
    operands->clear();
    return absl::OkStatus();
  }
  if (operands->size() < wanted.size()) {
    return absl::InvalidArgumentError(absl::StrCat(wanted[operands->size()],
                                                   " is missing; usage: hotrow ", command.name, " ",
                                                   command.operands, " [--flag=value ...]"));
  }
  if (operands->size() > wanted.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", (*operands)[wanted.size()], "\"; usage: hotrow ",
                     command.name, " ", command.operands, " [--flag=value ...]"));
  }
  return absl::OkStatus();
}

std::string VersionText() {
  const std::string commit = HOTROW_COMMIT;
  return commit.empty() ? Version() : absl::StrCat(Version(), ", commit ", commit);
}

int RunCommandLine(int argc, const char* const* argv) {
  std::string_view name = argc > 1 ? argv[1] : "";
  std::span<const char* const> arguments = std::span(argv, static_cast<size_t>(argc));
  arguments = arguments.subspan(std::min<size_t>(2, arguments.size()));
  constexpr const char* kHelp = "--help";
  if (name == "help" && !arguments.empty()) {  // hotrow help COMMAND
    name = arguments[0];
    arguments = {&kHelp, 1};
  }
  if (name == kHelp || name == "-help" || name == "-h" || name == "help") {
    std::fputs(GeneralHelp().c_str(), stdout);
    return kExitGood;
  }
  if (name == "--version") {
    std::printf("hotrow %s\n", VersionText().c_str());
    return kExitGood;
  }
  if (name.empty()) {
    std::fprintf(stderr, "hotrow: which command? There are: %s; hotrow --help says more\n",
                 CommandNames().c_str());
    return kExitUsage;
  }
  const std::span<const Command> commands = Commands();
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& c) { return name == c.name; });
  if (command == commands.end()) {
    std::fprintf(stderr,
                 "hotrow: there is no command \"%s\"; there are: %s; hotrow --help says more\n",
                 std::string(name).c_str(), CommandNames().c_str());
    return kExitUsage;
  }
  const absl::StatusOr<int> status = command->run(*command, arguments);
  if (status.ok()) return *status;
  std::fprintf(stderr, "hotrow %s: %s\n", command->name,
               std::string(status.status().message()).c_str());
  return absl::IsDataLoss(status.status()) ? kExitDamage : kExitUsage;
}

}  // namespace hotrow
