#ifndef HOTROW_MODELS_DATA_TABLE_SOURCE_H_
#define HOTROW_MODELS_DATA_TABLE_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/data_source.h"
#include "models/data/file_source.h"
#include "models/data/table_schema.h"

namespace hotrow {

// Click data in delimited text files. env must outlive the source.
absl::StatusOr<std::unique_ptr<DataSource>> OpenTableSource(const TableSchema& schema,
                                                            const FileSourceOptions& options,
                                                            Env& env = PosixEnv());

// The schema's features as a DataSchema without sizes.
DataSchema DataSchemaOf(const TableSchema& schema);

// ---- The schemas we know.

// train, valid and test.csv or .csv.gz below dir; ids of all columns count together, 0..5381.
TableSchema FrappeSchema(const std::string& dir);
// MovieLens 1M: 4 and 5 stars are a click, 1 and 2 are none, 3 is left out; genres is a bag.
TableSchema MovieLensSchema(const std::vector<std::string>& paths);
// The UCI census income data: 42 columns without a header; income above 50,000 is the label.
TableSchema CensusSchema(const std::vector<std::string>& paths);
// The same data with two tasks: "income", and "never_married", whose column is then no feature.
TableSchema CensusTasksSchema(const std::vector<std::string>& paths);
// MovieLens 1M with two tasks over all ratings: "liked", 4 and 5 stars, and "disliked", 1 and 2.
TableSchema MovieLensTasksSchema(const std::vector<std::string>& paths);
// Criteo's display advertising logs: label, 13 counts, 26 words of 8 hexadecimal digits.
TableSchema CriteoSchema(const std::vector<std::string>& paths);

// The key of a missing category in CriteoSchema: above every 8 hexadecimal digits.
inline constexpr uint64_t kCriteoMissingKey = uint64_t{1} << 32;

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_SOURCE_H_
