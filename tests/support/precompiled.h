#ifndef HOTROW_TESTS_SUPPORT_PRECOMPILED_H_
#define HOTROW_TESTS_SUPPORT_PRECOMPILED_H_

// Precompiled for all test binaries (cmake/HotrowTargets.cmake): what most of them parse and what
// never changes with us. None of our headers, or a change of it would rebuild every test. A test
// still includes what it uses: -DHOTROW_PCH=OFF compiles without this.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
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
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#endif  // HOTROW_TESTS_SUPPORT_PRECOMPILED_H_
