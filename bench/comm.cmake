# comm_bench measures collective calls beside the raw ones of MPI and NCCL.
hotrow_add_bench(
  NAME comm_bench
  SOURCES comm_bench.cc
  DEPS hotrow::comm hotrow::models_cli absl::strings absl::str_format nlohmann_json::nlohmann_json)
if(HOTROW_HAVE_MPI)
  target_compile_definitions(comm_bench PRIVATE HOTROW_BENCH_MPI=1)
  target_link_libraries(comm_bench PRIVATE MPI::MPI_CXX)
endif()
if(HOTROW_HAVE_NCCL)
  target_compile_definitions(comm_bench PRIVATE HOTROW_BENCH_NCCL=1)
  target_include_directories(comm_bench SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
  target_link_libraries(comm_bench PRIVATE ${NCCL_LIBRARY})
endif()
# Rows and gradients between ranks, by exchange type.
hotrow_add_bench(
  NAME shuffle_bench
  SOURCES shuffle_bench.cc
  DEPS hotrow::models_cli absl::strings absl::str_format nlohmann_json::nlohmann_json)
if(HOTROW_BUILD_TESTS)
  add_test(NAME ShuffleBenchWithThreads
           COMMAND shuffle_bench --threads=3 --rows=1000 --batch_size=300 --steps=5)
  set_tests_properties(ShuffleBenchWithThreads PROPERTIES
    LABELS unit TIMEOUT 120 PASS_REGULAR_EXPRESSION "int8 stochastic")
  # That it runs, not how fast.
  add_test(NAME CommBenchWithThreads COMMAND comm_bench --threads=3 --max_bytes=64KiB --repeats=2)
  set_tests_properties(CommBenchWithThreads PROPERTIES
    LABELS unit TIMEOUT 120 PASS_REGULAR_EXPRESSION "threads  broadcast      3       65532")
  if(HOTROW_HAVE_MPI AND MPIEXEC_EXECUTABLE AND NOT HOTROW_SANITIZE)
    add_test(NAME CommBenchUnderMpirun
             COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2 $<TARGET_FILE:comm_bench> --max_bytes=64KiB
                     --repeats=2)
    set_tests_properties(CommBenchUnderMpirun PROPERTIES
      LABELS "unit;mpi" TIMEOUT 120 PASS_REGULAR_EXPRESSION "mpi      broadcast      2       65536"
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1")
  endif()
endif()
