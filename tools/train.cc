#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "models/programs/programs.h"
#include "tools/command.h"

namespace hotrow {
namespace {

struct Program {
  std::string_view model;
  std::string_view what;
  int (*run)(int argc, const char* const* argv);
};

#define HOTROW_PROGRAM_ROW(name, Type, what) Program{#name, what, Run##Type},
constexpr std::array kPrograms = {HOTROW_MODELS(HOTROW_PROGRAM_ROW)};
#undef HOTROW_PROGRAM_ROW

std::string Models() {
  std::string out;
  for (const Program& program : kPrograms) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", std::string(program.model));
  }
  return out;
}

// What follows the model is the program's, --help too.
absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  const std::string_view model = arguments.empty() ? "" : arguments[0];
  if (model == "--help" || model == "-help" || model == "-h") {
    std::printf("hotrow %s: %s\nUsage: hotrow %s %s [--flag=value ...]\n\n%s\nModels: %s\n",
                self.name, self.summary, self.name, self.operands, self.details, Models().c_str());
    return kExitGood;
  }
  if (model == "--list") {
    for (const Program& program : kPrograms) {
      std::printf("%-10s %s\n", std::string(program.model).c_str(),
                  std::string(program.what).c_str());
    }
    return kExitGood;
  }
  const auto* const program = std::find_if(kPrograms.begin(), kPrograms.end(),
                                           [&](const Program& p) { return p.model == model; });
  if (program == kPrograms.end()) {
    const std::string what =
        model.empty() ? "which model? There are: "
                      : absl::StrCat("there is no model \"", arguments[0], "\"; there are: ");
    return absl::InvalidArgumentError(absl::StrCat(what, Models()));
  }
  return program->run(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

const Command kTrainCommand = {
    .name = "train",
    .operands = "MODEL",
    .summary = "trains a model, as the program of its name does",
    .details =
        "`hotrow train dlrm --data=...` is `dlrm --data=...`, for installations that have one\n"
        "program. `hotrow train dlrm --help` lists the flags, `hotrow train --list` the models.\n"
        "Exit status: 0 success, 1 failure, 2 wrong usage.\n",
    .run = Run};

}  // namespace hotrow
