# How hotrow's targets are made. Each folder lists its sources; nothing is globbed, no flag is set for a
# whole directory.
#
#   hotrow_add_library(NAME base SOURCES a.cc b.cc [CUDA_SOURCES a.cu] [DEPS ...])   -> hotrow_base, hotrow::base
#   hotrow_add_binary(NAME dlrm SOURCES dlrm_main.cc DEPS hotrow::models)            -> build/bin/dlrm
#   hotrow_add_test(NAME base_test SOURCES x_test.cc ... DEPS ... [LABELS gpu])      -> build/bin/tests/base_test
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

option(HOTROW_PCH "Precompile headers from outside that most sources of tests, models, tools and bench include" ON)

# A compiler cache is used when there. What it would have to look at closer, because of precompiled headers: macros that
# these define, and __TIME__, which nothing here uses.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
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
    if(HOTROW_SANITIZE MATCHES "address,undefined")
      # AddressSanitizer sees the accesses that these checks would announce; they are a tenth of the compiling.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr,object-size>)
    endif()
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

# The clients of the engine share cmake/precompiled.h. The engine's own folders do without: there an include that is missing
# shall not go unseen. Called once targets can be made.
function(hotrow_add_precompiled_headers)
  if(NOT HOTROW_PCH)
    return()
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "// Carries the precompiled header.\n")
  add_library(hotrow_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  set_target_properties(hotrow_precompiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
  _hotrow_configure(hotrow_precompiled)
  target_link_libraries(hotrow_precompiled PRIVATE absl::status absl::statusor absl::strings nlohmann_json::nlohmann_json)
  target_precompile_headers(hotrow_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
endfunction()
function(_hotrow_use_precompiled_headers target)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(HOTROW_PCH AND folder MATCHES "^(models|tools|bench)")
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)  # which CMake would give -fPIE, and one header fits one of the two
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
    else()
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    endif()
    target_precompile_headers(${target} REUSE_FROM hotrow_precompiled)
  endif()
endfunction()

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
  _hotrow_use_precompiled_headers(${target})
  hotrow_install_library(${target})
endfunction()

function(hotrow_add_binary)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  _hotrow_configure(${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  _hotrow_use_precompiled_headers(${ARG_NAME})
  hotrow_install_binary(${ARG_NAME})
endfunction()

# Flags of test code, which all test binaries share, since they share a precompiled header. What a test compiles is run
# once, so it is built to compile fast; the libraries under test are built as ever. To optimise it would be a third
# of its compiling, and half under sanitizers, which triple its code.
function(_hotrow_configure_test_code target)
  _hotrow_configure(${target})
  set(flags -O0)
  if(HOTROW_SANITIZE MATCHES "undefined")
    list(APPEND flags -fno-sanitize=alignment)
  endif()
  if(HOTROW_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Checks are calls instead of code in place: the same reports, and a quarter less to compile.
    list(APPEND flags --param=asan-instrumentation-with-call-threshold=0)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # Where it optimises, GCC 12 sees overruns in std::string that are none.
    list(APPEND flags -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
endfunction()

# A program that lies among the tests: cmake --build . --target test_binaries makes all of them, and no more than they need.
function(_hotrow_place_among_tests target)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  if(NOT TARGET test_binaries)
    add_custom_target(test_binaries)
  endif()
  add_dependencies(test_binaries ${target})
endfunction()

# A GoogleTest binary, also one with its own main.
function(_hotrow_configure_test target)
  _hotrow_configure_test_code(${target})
  _hotrow_place_among_tests(${target})
  if(HOTROW_PCH)
    target_precompile_headers(${target} REUSE_FROM hotrow_test_main)
  endif()
endfunction()

# A GoogleTest binary. ctest runs it whole, or as SHARDS processes that share its cases: NAME, or NAME.1 .. NAME.n. One case
# by its name: ./run test 'Suite.Case', or the binary with --gtest_filter. A case that crashes is named by our main
# (tests/support/case_reporter.h). What tests see in their environment stands in the test presets.
#   LABELS      default unit
#   PROCESSORS  how many it keeps busy, so that others wait; default 1
#   COST        seconds it takes, about; the longest begin first. Default 1
#   SLOW        patterns of cases that do more under HOTROW_SLOW_TESTS: NAME.slow, with the label slow
#   NO_TSAN     not built for ThreadSanitizer: what it tests has no threads, or threads that other binaries test
#   WHOLE       under AddressSanitizer part of `.ci/run all`, not of the gate: the label whole (docs/ci.md)
function(hotrow_add_test)
  cmake_parse_arguments(ARG "NO_TSAN;WHOLE" "NAME;PROCESSORS;SHARDS;COST" "SOURCES;CUDA_SOURCES;DEPS;LABELS;SLOW" ${ARGN})
  foreach(default PROCESSORS:1 SHARDS:1 COST:1 LABELS:unit)
    string(REPLACE ":" ";" default ${default})
    list(GET default 0 name)
    if(NOT ARG_${name})
      list(GET default 1 ARG_${name})
    endif()
  endforeach()
  _hotrow_sources(sources)
  if(ARG_NO_TSAN AND HOTROW_SANITIZE MATCHES "thread")
    add_executable(${ARG_NAME} EXCLUDE_FROM_ALL ${sources})  # for what the caller says of it next
    return()
  endif()
  add_executable(${ARG_NAME} ${sources})
  _hotrow_configure_test(${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} hotrow_test_support hotrow_test_main)
  if("gpu" IN_LIST ARG_LABELS)  # all of them: cmake --build . --target gpu_tests
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests)
    endif()
    add_dependencies(gpu_tests ${ARG_NAME})
  endif()
  # What the gate builds under AddressSanitizer: cmake --build . --target gate_tests.
  if(ARG_WHOLE)
    list(APPEND ARG_LABELS whole)
  else()
    if(NOT TARGET gate_tests)
      add_custom_target(gate_tests)
    endif()
    add_dependencies(gate_tests ${ARG_NAME})
  endif()
  math(EXPR cost "${ARG_COST} / ${ARG_SHARDS} + 1")
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(name ${ARG_NAME})
    set(environment)
    if(ARG_SHARDS GREATER 1)
      string(APPEND name .${shard})
      math(EXPR index "${shard} - 1")
      set(environment GTEST_TOTAL_SHARDS=${ARG_SHARDS} GTEST_SHARD_INDEX=${index})
    endif()
    add_test(NAME ${name} COMMAND ${ARG_NAME})
    set_tests_properties(${name} PROPERTIES
      LABELS "gtest;${ARG_LABELS}" TIMEOUT 900 PROCESSORS ${ARG_PROCESSORS} COST ${cost} ENVIRONMENT "${environment}")
  endforeach()
  if(ARG_SLOW)
    list(JOIN ARG_SLOW ":" patterns)
    add_test(NAME ${ARG_NAME}.slow COMMAND ${ARG_NAME} --gtest_filter=${patterns})
    set_tests_properties(${ARG_NAME}.slow PROPERTIES
      LABELS slow TIMEOUT 5400 PROCESSORS ${ARG_PROCESSORS} ENVIRONMENT HOTROW_SLOW_TESTS=0.1)
  endif()
endfunction()

function(hotrow_add_bench)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;CUDA_SOURCES;DEPS" ${ARGN})
  _hotrow_sources(sources)
  add_executable(${ARG_NAME} ${sources})
  _hotrow_configure(${ARG_NAME})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  _hotrow_use_precompiled_headers(${ARG_NAME})
endfunction()
