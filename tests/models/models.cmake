hotrow_add_test(
  NAME models_dense_test
  SOURCES dcn_model_test.cc
          deepfm_model_test.cc
  DEPS hotrow::models)

hotrow_add_test(
  NAME checkpoint_test
  SOURCES checkpoint_test.cc
  DEPS hotrow::models)
hotrow_add_test(
  NAME rank_checkpoint_test
  SOURCES rank_checkpoint_test.cc
  DEPS hotrow::models)
hotrow_add_test(
  NAME train_crash_test
  SOURCES train_crash_test.cc
  DEPS hotrow::models
  LABELS crash)
# The same with 200 kills and every file call. Not by hotrow_add_test, whose timeout is shorter.
include(GoogleTest)
add_executable(train_slow_test checkpoint_test.cc train_crash_test.cc)
_hotrow_configure(train_slow_test)
set_target_properties(train_slow_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
target_compile_definitions(train_slow_test PRIVATE HOTROW_SLOW_TESTS=1)
target_link_libraries(train_slow_test PRIVATE hotrow::models hotrow_test_support GTest::gmock GTest::gtest_main)
gtest_discover_tests(train_slow_test DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES PROPERTIES LABELS slow TIMEOUT 3600)

hotrow_add_test(
  NAME model_cli_test
  SOURCES model_cli_test.cc
  DEPS hotrow::base nlohmann_json::nlohmann_json)
target_compile_definitions(model_cli_test PRIVATE HOTROW_DCN_BINARY="$<TARGET_FILE:dcn>"
                                                  HOTROW_DEEPFM_BINARY="$<TARGET_FILE:deepfm>")
add_dependencies(model_cli_test dcn deepfm)

# A minute of a process that may not have the memory that its tables take.
add_test(NAME TrainMemoryLimit
         COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/memory_limit_test.sh $<TARGET_FILE:dlrm>)
set_tests_properties(TrainMemoryLimit PROPERTIES LABELS slow TIMEOUT 1800 SKIP_RETURN_CODE 77)
