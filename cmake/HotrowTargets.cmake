# How hotrow's targets are made. Each folder lists its sources; nothing is globbed, no flag is set for a
# whole directory.
#
#   hotrow_add_library(NAME base SOURCES a.cc b.cc [CUDA_SOURCES a.cu] [DEPS ...])   -> hotrow_base, hotrow::base
#   hotrow_add_binary(NAME dlrm SOURCES dlrm_main.cc DEPS hotrow::models)            -> build/bin/dlrm
#   hotrow_add_test(NAME base_test SOURCES x_test.cc ... DEPS ... [LABELS unit])     -> build/bin/tests/base_test
#   hotrow_add_bench(NAME store_gather_bench SOURCES ... [CUDA_SOURCES ...] DEPS ...) -> build/bin/store_gather_bench

# The instruction set of everything we compile. x86-64-v3 (AVX2, FMA; every x86 server since 2015) keeps
# binaries movable between machines; "native" squeezes out the rest; empty means the compiler's default.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(HOTROW_MARCH "x86-64-v3" CACHE STRING "-march for all targets; empty for the compiler's default")
else()
  set(HOTROW_MARCH "" CACHE STRING "-march for all targets; empty for the compiler's default")
endif()
set(HOTROW_SANITIZE "" CACHE STRING "Sanitizers for all targets: address,undefined or thread")
option(HOTROW_WERROR "Turn warnings into errors" OFF)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

function(_hotrow_configure target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/hotrow>)
  if(HOTROW_EMULATED_GPU)  # translated headers before those that they are made of
    target_include_directories(${target} BEFORE PUBLIC
      ${HOTROW_EMULATED_DIR} ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/include)
  endif()
  # -ffp-contract=off: a*b+c rounds twice wherever it stands, so the same source gives the same bits in a
  # header inlined here and there (promise 1). Where FMA pays, the code says std::fma.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -ffp-contract=off>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${HOTROW_WERROR}>>:-Werror>)
  if(HOTROW_MARCH)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-march=${HOTROW_MARCH}>)
  endif()
  if(HOTROW_HAVE_CUDA AND NOT HOTROW_EMULATED_GPU)
    # CMake 3.25 rejects cuda_std_20 for nvcc 13, so the flag is given by hand. The host code of a .cu gets
    # the same instruction set and rounding as that of a .cc, since both compile the same inline functions.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr --fmad=false
        -Xcompiler=-Wall,-ffp-contract=off>
      $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${HOTROW_WERROR}>>:-Werror=all-warnings -Xcompiler=-Werror>)
    if(HOTROW_MARCH)
      target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=${HOTROW_MARCH}>)
    endif()
  endif()
  if(HOTROW_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HOTROW_SANITIZE} -fno-omit-frame-pointer
        -fno-sanitize-recover=all>)
    target_link_options(${target} PRIVATE -fsanitize=${HOTROW_SANITIZE})
  endif()
endfunction()

# SOURCES and, in a build with CUDA, CUDA_SOURCES of the caller's arguments.
macro(_hotrow_sources out)
  set(${out} ${ARG_SOURCES})
  if(HOTROW_HAVE_CUDA)
    _hotrow_cuda_sources(_cuda_sources ${ARG_CUDA_SOURCES})
    list(APPEND ${out} ${_cuda_sources})
  endif()
endmacro()

function(hotrow_add_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;CUDA_SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target hotrow_${ARG_NAME})
  _hotrow_sources(sources)
  add_library(${target} STATIC ${sources})
  add_library(hotrow::${ARG_NAME} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME} POSITION_INDEPENDENT_CODE ON)
  _hotrow_configure(${target})
  # nlohmann_json is headers alone: who links the installed archive does not need it.
  list(TRANSFORM ARG_PRIVATE_DEPS REPLACE "^nlohmann_json::.*$" "$<BUILD_INTERFACE:\\0>")
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  hotrow_install_library(${target})
endfunction()

function(hotrow_add_binary)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  _hotrow_configure(${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  hotrow_install_binary(${ARG_NAME})
endfunction()

# One gtest binary a folder; every TEST becomes a ctest entry. LABELS defaults to unit. What tests see in their
# environment stands in the test presets. PROCESSORS: how many it keeps busy, so that others wait; default 1.
function(hotrow_add_test)
  cmake_parse_arguments(ARG "" "NAME;PROCESSORS" "SOURCES;CUDA_SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  _hotrow_sources(sources)
  add_executable(${ARG_NAME} ${sources})
  _hotrow_configure(${ARG_NAME})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} hotrow_test_support GTest::gmock GTest::gtest_main)
  if("gpu" IN_LIST ARG_LABELS)  # all of them: cmake --build . --target gpu_tests
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests)
    endif()
    add_dependencies(gpu_tests ${ARG_NAME})
  endif()
  include(GoogleTest)
  gtest_discover_tests(${ARG_NAME} DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 PROCESSORS ${ARG_PROCESSORS})
endfunction()

function(hotrow_add_bench)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;CUDA_SOURCES;DEPS" ${ARGN})
  _hotrow_sources(sources)
  add_executable(${ARG_NAME} ${sources})
  _hotrow_configure(${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
endfunction()
