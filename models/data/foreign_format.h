#ifndef HOTROW_MODELS_DATA_FOREIGN_FORMAT_H_
#define HOTROW_MODELS_DATA_FOREIGN_FORMAT_H_

#include <string_view>

namespace hotrow {

// What people give where text is expected.
struct ForeignFormat {
  std::string_view name;    // "a Parquet file"; empty: the bytes may be text
  std::string_view remedy;  // how to make text or packed data of it
};

// The format of the first and the last bytes of a file, 16 of each or all that there are.
ForeignFormat FindForeignFormat(std::string_view head, std::string_view tail);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_FOREIGN_FORMAT_H_
