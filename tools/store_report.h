#ifndef HOTROW_TOOLS_STORE_REPORT_H_
#define HOTROW_TOOLS_STORE_REPORT_H_

#include <string>

#include "store/rocks/rocks_store.h"
#include "store/ssd/ssd_store.h"

// Reports of stores as text.
namespace hotrow {

// The report for people.
std::string StoreReportText(const std::string& path, const SsdStoreReport& report);
// What is unknown is null.
std::string StoreReportJson(const std::string& path, const SsdStoreReport& report);
// A line for each damage: "FILE: offset N: WHAT".
std::string DamageText(const SsdStoreReport& report);
int64_t DamageCount(const SsdStoreReport& report);

// The same of a RocksDB store. A line of damage is "FILE: WHAT".
std::string StoreReportText(const std::string& path, const RocksStoreReport& report);
std::string StoreReportJson(const std::string& path, const RocksStoreReport& report);
std::string DamageText(const RocksStoreReport& report);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_STORE_REPORT_H_
