#ifndef HOTROW_TOOLS_PLAN_PLAN_LOG_H_
#define HOTROW_TOOLS_PLAN_PLAN_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/env.h"
#include "tools/plan/plan.h"
#include "tools/plan/plan_spec.h"

namespace hotrow {

// What a plan was made from: the bytes that were read, each with a hash. So two plans can be told
// to be of the same inputs years later, also when the files have changed; where their numbers
// differ all the same, hotrow has changed.
class PlanInputs {
 public:
  // what: "spec", "hardware", "curve of items". file: where it was; counts for nothing in digest().
  void Add(std::string_view what, std::string_view file, std::string_view bytes);
  // The same of a table's curve, whose file may be large.
  void AddCurve(const PlanTable& table);

  struct Input {
    std::string what;
    std::string file;
    std::string digest;
  };
  const std::vector<Input>& all() const { return all_; }
  // The digest of all inputs in their order: 32 hexadecimal digits. Not cryptographic.
  std::string digest() const;

 private:
  std::vector<Input> all_;
};

// One line of JSON with its line feed: the moment, the inputs, and every number of the plan.
std::string PlanLogLine(const PlanSpec& spec, const Plan& plan, const PlanInputs& inputs,
                        int64_t unix_seconds);

// Appends a line to a file, which is made if missing; after OK it survives power loss. Several
// processes may do so at once: they take turns by a lock on the file, for which each waits a few
// seconds at most. A line that a process left unfinished is ended first, so that it spoils no
// other. Errors: those of Env; FailedPrecondition (the lock).
absl::Status AppendLine(Env& env, const std::string& path, std::string_view line);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLAN_LOG_H_
