hotrow_add_bench(
  NAME store_gather_bench
  SOURCES store_gather_bench.cc
  DEPS hotrow::store absl::flat_hash_map absl::strings)
# Stands with the tests of store/, which may include its private headers.
hotrow_add_bench(
  NAME ssd_index_bench
  SOURCES ${PROJECT_SOURCE_DIR}/tests/store/ssd_index_bench.cc
  DEPS hotrow::store)
# store_bench measures a store, or the device itself.
hotrow_add_bench(
  NAME store_bench
  SOURCES store_bench.cc store_bench_device.cc store_bench_flags.cc store_bench_stores.cc
  DEPS hotrow_measure hotrow::store hotrow::cache hotrow::models_cli absl::strings nlohmann_json::nlohmann_json)
if(HOTROW_BUILD_TESTS)
  find_package(GTest REQUIRED)
  hotrow_add_test(
    NAME store_bench_test
    WHOLE
    SOURCES ${PROJECT_SOURCE_DIR}/tests/bench/store_bench_cli_test.cc
    DEPS hotrow::base nlohmann_json::nlohmann_json)
  add_dependencies(store_bench_test store_bench)
  target_compile_definitions(store_bench_test PRIVATE HOTROW_STORE_BENCH_BINARY="$<TARGET_FILE:store_bench>")
  if(HOTROW_HAVE_ROCKSDB)
    target_compile_definitions(store_bench_test PRIVATE HOTROW_HAVE_ROCKSDB=1)
  endif()
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    add_test(NAME Dlrmv4Script COMMAND ${PROJECT_SOURCE_DIR}/tests/bench/dlrmv4_test.sh ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR})
    set_tests_properties(Dlrmv4Script PROPERTIES LABELS "unit;whole" TIMEOUT 300)
  endif()
endif()
