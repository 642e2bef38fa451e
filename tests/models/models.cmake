hotrow_add_test(
  NAME models_dense_test
  SOURCES dcn_model_test.cc
          deepfm_model_test.cc
  DEPS hotrow::models)

hotrow_add_test(
  NAME model_cli_test
  SOURCES model_cli_test.cc
  DEPS hotrow::base nlohmann_json::nlohmann_json)
target_compile_definitions(model_cli_test PRIVATE HOTROW_DCN_BINARY="$<TARGET_FILE:dcn>"
                                                  HOTROW_DEEPFM_BINARY="$<TARGET_FILE:deepfm>")
add_dependencies(model_cli_test dcn deepfm)
