#ifndef HOTROW_TOOLS_PLAN_PAGE_TEMPLATE_H_
#define HOTROW_TOOLS_PLAN_PAGE_TEMPLATE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hotrow {

extern const char kPlanPage[];  // tools/plan/plan_page.html, compiled in

// Fills a page in. A subset of Mustache:
//   {{name}}               the value, escaped for HTML; {{.}} is the element of a list of strings
//   {{#name}}...{{/name}}  for each element of a list; once for an object or true
//   {{^name}}...{{/name}}  once where that would be nothing: an empty list, false, no such value
// A name is looked up in the innermost element, then outwards. A section's tag that has a line for
// itself leaves no line. The page is the program's own: mistakes in it end the program.
std::string FillPage(std::string_view page, const nlohmann::ordered_json& values);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PAGE_TEMPLATE_H_
