#include "models/data/table_reader.h"

#include "base/status_macros.h"

namespace hotrow {

absl::StatusOr<bool> TableReader::Next(Sample* sample) {
  while (true) {
    if (!parser_.has_value()) {
      HOTROW_ASSIGN_OR_RETURN(const bool opened, files_.OpenNext());
      if (!opened) return false;
      parser_.emplace(*files_.parser());
    }
    std::string_view record;
    while (true) {
      HOTROW_ASSIGN_OR_RETURN(const bool more, files_.Next(&record));
      if (!more) break;
      bool dropped = false;
      const absl::Status status = parser_->Parse(record, sample, &dropped);
      if (!status.ok()) return files_.At(files_.place(), status);
      if (!dropped) return true;
    }
    parser_.reset();
  }
}

}  // namespace hotrow
