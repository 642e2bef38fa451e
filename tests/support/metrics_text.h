#ifndef HOTROW_TESTS_SUPPORT_METRICS_TEXT_H_
#define HOTROW_TESTS_SUPPORT_METRICS_TEXT_H_

#include <algorithm>
#include <map>
#include <string>

#include "base/exposition_reader.h"
#include "gtest/gtest.h"
#include "tests/support/test_util.h"

// Texts of metrics read back.
namespace hotrow::test {

using MetricLabels = std::map<std::string, std::string>;

// The value of the sample with these labels.
inline double Value(const MetricFamilies& families, const std::string& name,
                    const MetricLabels& labels = {}) {
  const size_t part = name.find("_count");
  const auto family = families.find(name.substr(0, part));
  if (family != families.end()) {
    for (const MetricSample& sample : family->second.samples) {
      if (sample.name == name && sample.labels == labels) return sample.value;
    }
  }
  ADD_FAILURE() << name << " has no such sample";
  return -1;
}

// Adds up a family's samples.
inline double Sum(const MetricFamilies& families, const std::string& name) {
  double sum = 0;
  for (const MetricSample& sample : families.at(name).samples) sum += sample.value;
  return sum;
}

inline MetricFamilies Parsed(const std::string& text) {
  auto families = ParseExposition(text);
  HOTROW_EXPECT_OK(families);
  return families.ok() ? *families : MetricFamilies();
}

// No counter of `now` is below what it was.
inline void ExpectGrown(const MetricFamilies& before, const MetricFamilies& now) {
  for (const auto& [name, family] : before) {
    if (family.kind == "gauge") continue;
    const auto at = now.find(name);
    ASSERT_NE(at, now.end()) << name;
    for (const MetricSample& older : family.samples) {
      const auto newer = std::find_if(
          at->second.samples.begin(), at->second.samples.end(), [&](const MetricSample& sample) {
            return sample.name == older.name && sample.labels == older.labels;
          });
      ASSERT_NE(newer, at->second.samples.end()) << name;
      EXPECT_GE(newer->value, older.value) << name;
    }
  }
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_METRICS_TEXT_H_
