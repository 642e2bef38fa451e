#ifndef HOTROW_TOOLS_COMMAND_H_
#define HOTROW_TOOLS_COMMAND_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/flag_set.h"

namespace hotrow {

// Exit statuses of all sub-commands.
inline constexpr int kExitGood = 0;
inline constexpr int kExitDamage = 1;  // damage, or the command failed
inline constexpr int kExitUsage = 2;   // wrong usage, or a file cannot be opened

// A sub-command of hotrow: its texts for --help, and the function that runs it.
struct Command {
  const char* name;      // "inspect"
  const char* operands;  // placeholders of paths, separated by blanks: "STORE"
  const char* summary;   // a line for `hotrow --help`
  const char* details;   // lines for `hotrow NAME --help`, each with its line break
  // `arguments` follow the name. Returns the exit status. An error prints one line and gives
  // kExitDamage (DataLoss) or kExitUsage (any other).
  absl::StatusOr<int> (*run)(const Command& self, std::span<const char* const> arguments);
};

// All commands, in the order of the help. A new one is a file and a line in command.cc.
std::span<const Command> Commands();
extern const Command kApplyCommand;
extern const Command kBenchServeCommand;
extern const Command kCalibrateCommand;
extern const Command kCompactCommand;
extern const Command kEraseCommand;
extern const Command kExportCommand;
extern const Command kImportCommand;
extern const Command kInspectCommand;
extern const Command kPackCommand;
extern const Command kPlanCommand;
extern const Command kQuantizeCommand;
extern const Command kScoreCommand;
extern const Command kServeCommand;
extern const Command kTopCommand;
extern const Command kTraceCommand;
extern const Command kTrainCommand;
extern const Command kVerifyCommand;

// Parses the arguments of a command into flags and operands, in any order. *operands is empty if
// help was asked for and printed. Errors: InvalidArgument.
absl::Status ParseArguments(const Command& command, std::span<const char* const> arguments,
                            FlagSet* flags, std::vector<std::string>* operands);

// "0.2.0, commit 0123456789ab"; where hotrow was built outside of a repository, "0.2.0".
std::string VersionText();

// Runs `hotrow argv[1] ...`; prints to stdout and stderr.
int RunCommandLine(int argc, const char* const* argv);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_COMMAND_H_
