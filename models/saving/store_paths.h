#ifndef HOTROW_MODELS_SAVING_STORE_PATHS_H_
#define HOTROW_MODELS_SAVING_STORE_PATHS_H_

#include <cstdint>
#include <string>

namespace hotrow {

// Where a rank keeps what all ranks keep below `path`: path/rank-00002-of-00004; of a single rank
// it is path itself.
std::string RankDir(const std::string& path, int32_t rank, int32_t world_size);

// Where a rank's snapshot lies that --save_dir=dir writes with --store=memory: RankDir of
// dir/tables. With checkpoints the same.
std::string SavedTablesDir(const std::string& dir, int32_t rank = 0, int32_t world_size = 1);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_STORE_PATHS_H_
