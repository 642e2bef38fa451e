#ifndef HOTROW_MODELS_DATA_TABLE_SCHEMA_TEXT_H_
#define HOTROW_MODELS_DATA_TABLE_SCHEMA_TEXT_H_

#include <string>
#include <vector>

#include "models/data/table_schema.h"

namespace hotrow {

// The JSON form of a schema (docs/formats/table_schema.md) without its files and splits, in one
// line: what a line of text means, as models keep it. ParseTableSchemaText reads it. Schemas that
// give equal samples of all lines may have different texts; equal schemas have equal ones.
std::string TableSchemaText(const TableSchema& schema);

// The columns of lines that have no labels: those of a file without a header but for columns that
// only labels use; of other files those that features are made of, in the order of the schema.
std::vector<std::string> UnlabelledColumns(const TableSchema& schema);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_TABLE_SCHEMA_TEXT_H_
