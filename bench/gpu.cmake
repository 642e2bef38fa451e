# gpu_bench measures the cache and the ops on a GPU. What needs none is a separate library, for its test.
add_library(hotrow_gpu_bench_plan STATIC gpu_bench_plan.cc gpu_bench_tiers.cc)
_hotrow_configure(hotrow_gpu_bench_plan)
target_link_libraries(hotrow_gpu_bench_plan PUBLIC hotrow::base hotrow::embedding nlohmann_json::nlohmann_json
                                                   absl::strings absl::str_format)
if(HOTROW_HAVE_CUDA)
  hotrow_add_bench(
    NAME gpu_bench
    SOURCES gpu_bench.cc gpu_bench_cache.cc gpu_bench_dense.cc gpu_bench_limits.cc gpu_bench_networks.cc gpu_bench_ops.cc gpu_bench_step.cc gpu_bench_tiers_cuda.cc
    CUDA_SOURCES gpu_bench_kernels.cu
    DEPS hotrow_gpu_bench_plan hotrow::cache hotrow::ops)
endif()
if(HOTROW_BUILD_TESTS)
  find_package(GTest REQUIRED)
  hotrow_add_test(
    NAME gpu_bench_plan_test
    WHOLE
    SOURCES ${PROJECT_SOURCE_DIR}/tests/bench/gpu_bench_plan_test.cc
            ${PROJECT_SOURCE_DIR}/tests/bench/gpu_bench_tiers_test.cc
    DEPS hotrow_gpu_bench_plan)
  if(HOTROW_HAVE_CUDA)
    # The program as a user runs it.
    hotrow_add_test(
      NAME gpu_bench_test
      WHOLE
      SOURCES ${PROJECT_SOURCE_DIR}/tests/bench/gpu_bench_cli_test.cc
      DEPS hotrow::base nlohmann_json::nlohmann_json absl::strings
      LABELS gpu)
    add_dependencies(gpu_bench_test gpu_bench)
  endif()
endif()
