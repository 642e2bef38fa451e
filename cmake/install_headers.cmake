# Installs the public headers: those below, what they include, and nothing else. Run by `cmake --install`
# (cmake/HotrowInstall.cmake sets source_dir and include_dir).

cmake_policy(VERSION 3.20)
set(roots
    # Tables: lookups, updates, tiers, checkpoints, metrics; ranks.
    embedding/embedding_collection.h
    models/saving/checkpoint_writer.h
    comm/mpi_communicator.h
    comm/nccl_communicator.h
    comm/thread_communicator.h
    base/exposition.h
    base/text_server.h
    # Kernels of the dense part.
    ops/training/bce_loss.h
    ops/layers/cross_network.h
    ops/training/dense_optimizer.h
    ops/interactions/dot_interaction.h
    ops/interactions/fm_interaction.h
    ops/layers/mlp.h
    # A trainer of one's own model (docs/models.md).
    models/programs/train_program.h
    models/zoo/layers/dense_layers.h
    # Scoring.
    models/serving/live_scorer.h)

set(found "")
while(roots)
  list(POP_FRONT roots header)
  if(header IN_LIST found)
    continue()
  endif()
  list(APPEND found ${header})
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${source_dir}/${header} DESTINATION ${include_dir}/hotrow/${folder})
  file(STRINGS ${source_dir}/${header} lines REGEX "^#include \"")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" name "${line}")
    if(EXISTS ${source_dir}/${name})
      list(APPEND roots ${name})
    endif()
  endforeach()
endwhile()
