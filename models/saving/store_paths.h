#ifndef HOTROW_MODELS_SAVING_STORE_PATHS_H_
#define HOTROW_MODELS_SAVING_STORE_PATHS_H_

#include <cstdint>
#include <string>

namespace hotrow {

// A rank's own directory below `path`: path/rank-00002-of-00004. A single rank has path itself.
std::string RankDir(const std::string& path, int32_t rank, int32_t world_size);

// Where a rank's snapshots of a memory store lie that --save_dir=dir or --checkpoint_dir=dir
// writes: RankDir of dir/tables.
std::string SavedTablesDir(const std::string& dir, int32_t rank = 0, int32_t world_size = 1);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_STORE_PATHS_H_
