#ifndef HOTROW_TOOLS_STORE_REPORT_H_
#define HOTROW_TOOLS_STORE_REPORT_H_

#include <string>

#include "store/ssd_store.h"

// An SsdStoreReport as text.
namespace hotrow {

// For people.
std::string StoreReportText(const std::string& path, const SsdStoreReport& report);
// What is unknown is null.
std::string StoreReportJson(const std::string& path, const SsdStoreReport& report);
// A line for each damage: "FILE: offset N: WHAT".
std::string DamageText(const SsdStoreReport& report);
int64_t DamageCount(const SsdStoreReport& report);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_STORE_REPORT_H_
