hotrow_add_test(
  NAME models_dense_test
  WHOLE
  NO_TSAN
  SOURCES bst_model_test.cc
          ctr_model_contract.cc
          dcn_model_test.cc
          deepfm_model_test.cc
          din_model_test.cc
          dlrm_model_test.cc
          mmoe_model_test.cc
          model_graph_test.cc
          pnn_model_test.cc
          wide_deep_model_test.cc
          xdeepfm_model_test.cc
  DEPS hotrow::models)

# Slow: every file call, and 500 kills.
hotrow_add_test(
  NAME checkpoint_test
  SOURCES checkpoint_test.cc dense_average_test.cc
  DEPS hotrow::models
  SLOW "*CheckpointTest.*" "*CheckpointFaultTest.*")
hotrow_add_test(
  NAME rank_checkpoint_test
  NO_TSAN
  SOURCES rank_checkpoint_test.cc
  DEPS hotrow::models)
hotrow_add_test(
  NAME train_crash_test
  NO_TSAN
  SOURCES train_crash_test.cc
  DEPS hotrow::models
  LABELS crash
  SLOW "*TrainKillTest.*")
hotrow_add_test(
  NAME onnx_test
  WHOLE
  NO_TSAN
  SOURCES onnx_export_test.cc
          onnx_model_test.cc
  DEPS hotrow::models)
hotrow_add_test(
  NAME export_table_test
  WHOLE
  NO_TSAN
  SOURCES export_table_test.cc
  DEPS hotrow::models)
hotrow_add_test(
  NAME trainer_deltas_test
  SOURCES trainer_deltas_test.cc
  DEPS hotrow::models
  LABELS crash
  SLOW "*DeltaKillTest.*")

hotrow_add_test(
  NAME model_cli_test
  WHOLE
  NO_TSAN
  SOURCES model_cli_test.cc schema_cli_test.cc
  DEPS hotrow::models_cli nlohmann_json::nlohmann_json ZLIB::ZLIB)
target_compile_definitions(model_cli_test PRIVATE HOTROW_BST_BINARY="$<TARGET_FILE:bst>"
                                                  HOTROW_DCN_BINARY="$<TARGET_FILE:dcn>"
                                                  HOTROW_DEEPFM_BINARY="$<TARGET_FILE:deepfm>"
                                                  HOTROW_DIN_BINARY="$<TARGET_FILE:din>"
                                                  HOTROW_DLRM_BINARY="$<TARGET_FILE:dlrm>"
                                                  HOTROW_MMOE_BINARY="$<TARGET_FILE:mmoe>"
                                                  HOTROW_PNN_BINARY="$<TARGET_FILE:pnn>"
                                                  HOTROW_WIDE_DEEP_BINARY="$<TARGET_FILE:wide_deep>"
                                                  HOTROW_XDEEPFM_BINARY="$<TARGET_FILE:xdeepfm>"
                                                  HOTROW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
add_dependencies(model_cli_test bst dcn deepfm din dlrm mmoe pnn wide_deep xdeepfm)

# A minute of a process that may not have the memory that its tables take.
add_test(NAME TrainMemoryLimit
         COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/memory_limit_test.sh $<TARGET_FILE:dlrm>)
set_tests_properties(TrainMemoryLimit PROPERTIES LABELS slow TIMEOUT 1800 SKIP_RETURN_CODE 77)
