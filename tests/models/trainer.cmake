hotrow_add_test(
  NAME models_trainer_test
  SOURCES batch_reader_test.cc
          byte_stream_test.cc
          checkpoint_schedule_test.cc
          flag_set_test.cc
          pretrained_rows_test.cc
          run_header_test.cc
          run_metrics_test.cc
          run_watch_test.cc
          sample_feed_test.cc
          step_mailbox_test.cc
          trainer_tasks_test.cc
          trainer_test.cc
          ${PROJECT_SOURCE_DIR}/tests/support/failing_threads.cc
  DEPS hotrow::models_cli nlohmann_json::nlohmann_json ZLIB::ZLIB)

hotrow_add_test(
  NAME models_ranks_test
  SOURCES trainer_feedback_test.cc trainer_ranks_test.cc trainer_row_life_test.cc
          trainer_windows_test.cc ${PROJECT_SOURCE_DIR}/tests/support/failing_threads.cc
  DEPS hotrow::models)

hotrow_add_test(
  NAME dlrm_cli_test
  WHOLE
  NO_TSAN
  SOURCES dlrm_cli_test.cc
  DEPS hotrow::base nlohmann_json::nlohmann_json)
target_compile_definitions(dlrm_cli_test PRIVATE HOTROW_DLRM_BINARY="$<TARGET_FILE:dlrm>")
add_dependencies(dlrm_cli_test dlrm)

# What a trained model scores, against the trainer's evaluation.
hotrow_add_test(
  NAME models_serving_test
  SOURCES disk_scorer_test.cc onnx_dense_test.cc quantize_model_test.cc scorer_test.cc
  DEPS hotrow::models nlohmann_json::nlohmann_json
  SLOW "ScorerRealData*")
target_compile_definitions(models_serving_test PRIVATE HOTROW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# Scorers that follow a model while it is trained, also by a process that is killed.
hotrow_add_test(
  NAME live_scorer_test
  SOURCES live_scorer_test.cc
  DEPS hotrow::models
  SLOW "LiveScorerKillTest.*")

# What a trainer needs around its steps: schedules, saved models, logs, records for the planner.
hotrow_add_test(
  NAME models_saving_test
  NO_TSAN
  SOURCES access_recorder_test.cc
          json_text_test.cc
          learning_rate_test.cc
          mllog_test.cc
          saved_model_test.cc
          saving_parts_test.cc
  DEPS hotrow::models nlohmann_json::nlohmann_json)

# Ranks as processes. Slow: more kills.
if(HOTROW_MPI_TESTS)
  add_executable(rank_kill_main rank_kill_main.cc)
  _hotrow_configure(rank_kill_main)
  _hotrow_place_among_tests(rank_kill_main)
  target_link_libraries(rank_kill_main PRIVATE hotrow::models hotrow_test_support)

  hotrow_add_test(
    NAME ranks_cli_test
    WHOLE
    PROCESSORS 2
    SOURCES rank_kill_test.cc ranks_cli_test.cc
    DEPS hotrow::base nlohmann_json::nlohmann_json
    SLOW "RankKillSlowTest.*" "RanksCliTest.ARankThatIsKilledIsNamedAndTheRunGoesOn")
  target_compile_definitions(ranks_cli_test PRIVATE
    HOTROW_DLRM_BINARY="$<TARGET_FILE:dlrm>" HOTROW_RANK_KILL_MAIN="$<TARGET_FILE:rank_kill_main>"
    HOTROW_MPI_ENVIRONMENT="${HOTROW_MPI_TEST_ENVIRONMENT_JOINED}"
    HOTROW_MPIEXEC="${MPIEXEC_EXECUTABLE}" HOTROW_MPIEXEC_NUMPROC_FLAG="${MPIEXEC_NUMPROC_FLAG}")
  add_dependencies(ranks_cli_test dlrm rank_kill_main)
endif()
