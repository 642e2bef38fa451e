#ifndef HOTROW_TOOLS_PLAN_SPEC_TEXT_H_
#define HOTROW_TOOLS_PLAN_SPEC_TEXT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace hotrow {

// A value of a spec with its place, for errors.
struct SpecNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  // Defined where a node is complete: clang makes them too early, where `fields` needs one.
  SpecNode();
  SpecNode(const SpecNode&);
  SpecNode(SpecNode&&) noexcept;
  SpecNode& operator=(const SpecNode&);
  SpecNode& operator=(SpecNode&&) noexcept;
  ~SpecNode();

  Kind kind = Kind::kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar in quotes: never a number
  std::vector<SpecNode> items;
  std::vector<std::pair<std::string, SpecNode>> fields;  // in order; keys are distinct
  int line = 0;                                          // from 1
  int column = 0;

  // Null when there is none.
  const SpecNode* Find(std::string_view key) const;
};

// Reads JSON, and the part of YAML 1.2 that people write by hand: maps and lists by indentation or
// in { } and [ ], plain and quoted scalars, comments, one document. (JSON is such a map in { }, so
// one reader serves both, and keeps line and column of everything, which a JSON library forgets.)
// Errors name what it does not read: tabs as indentation, anchors, tags, block scalars, several
// documents.
// Errors: InvalidArgument, "NAME:LINE:COLUMN: what".
absl::StatusOr<SpecNode> ParseSpecText(std::string_view text, std::string_view name);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_SPEC_TEXT_H_
