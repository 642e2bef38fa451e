#ifndef HOTROW_EMBEDDING_ADMISSION_H_
#define HOTROW_EMBEDDING_ADMISSION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// Which keys of a table get a row when a training step looks them up. Until then they read their
// initial rows, and their gradients are dropped. docs/row_life.md.
struct Admission {
  enum class Rule {
    kAlways,
    kLookups,  // in the step of the n-th lookup in training
    kCoin,     // each lookup in training with the same probability
  };
  Rule rule = Rule::kAlways;
  // kLookups: n, at least 1; and if not 0, a key that was not looked up for more than so many steps
  // counts from 0 again.
  int64_t lookups = 1;
  int64_t forget_steps = 0;
  double probability = 1;  // kCoin; in (0, 1], used to 2^-32

  bool always() const { return rule == Rule::kAlways; }
  bool counts() const { return rule == Rule::kLookups; }
  absl::Status Validate() const;  // names the field, the limit and the value it got
  friend bool operator==(const Admission&, const Admission&) = default;
};

// "always", "lookups:3", "lookups:3:100000", "coin:0.1"; and back.
absl::StatusOr<Admission> ParseAdmission(std::string_view text);
std::string AdmissionText(const Admission& admission);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_ADMISSION_H_
