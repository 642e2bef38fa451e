#ifndef HOTROW_CMAKE_PRECOMPILED_H_
#define HOTROW_CMAKE_PRECOMPILED_H_

// Precompiled for the sources of models, tools and bench: what many of them parse and what never
// changes with us. None of our headers, or a change of it would rebuild everything. A source still
// includes what it uses: -DHOTROW_PCH=OFF compiles without this.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#endif  // HOTROW_CMAKE_PRECOMPILED_H_
