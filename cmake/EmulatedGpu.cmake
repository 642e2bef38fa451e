# Builds CUDA code for a GPU that is none (tests/emulated_gpu/emulated_gpu.h): our .cu files become C++, and cudart and
# NCCL a library of ours, so that kernels and what calls them are tested where there is no GPU. For tests alone.

option(HOTROW_EMULATED_GPU "Run CUDA code on an emulated GPU, for tests" OFF)
set(HOTROW_EMULATED_DIR ${CMAKE_BINARY_DIR}/emulated)

if(HOTROW_EMULATED_GPU)
  if(HOTROW_HAVE_CUDA)
    message(FATAL_ERROR "HOTROW_EMULATED_GPU needs HOTROW_CUDA=OFF: a build has one or the other")
  endif()
  set(HOTROW_HAVE_CUDA TRUE)
  set(HOTROW_HAVE_NCCL TRUE)  # tests/emulated_gpu/emulated_nccl.h
  set(NCCL_INCLUDE_DIR ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/include)
  set(NCCL_LIBRARY hotrow_emulated_gpu)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)

  # Here and not as a rule of the build: it takes a moment, headers are among them, and lines stay the same.
  set(_translated)
  foreach(_folder base bench cache ops tests/base tests/cache tests/ops tests/support)
    file(GLOB_RECURSE _found CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
         ${PROJECT_SOURCE_DIR}/${_folder}/*.cu ${PROJECT_SOURCE_DIR}/${_folder}/*.cuh)
    list(APPEND _translated ${_found})
  endforeach()
  list(REMOVE_ITEM _translated base/hopper.cuh)  # tests/emulated_gpu/include has its twin
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${_translated} tests/emulated_gpu/translate.py)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/translate.py
            ${PROJECT_SOURCE_DIR} ${HOTROW_EMULATED_DIR} ${_translated}
    COMMAND_ERROR_IS_FATAL ANY)
endif()

# The sources as they are to be compiled: a .cu of this folder becomes what translate.py made of it.
function(_hotrow_cuda_sources out)
  set(sources)
  foreach(source IN LISTS ARGN)
    if(HOTROW_EMULATED_GPU AND source MATCHES "\\.cu$")
      file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
      set(source ${HOTROW_EMULATED_DIR}/${folder}/${source}.cc)
      # What nvcc lets pass; and the checks of kernels are never those of test code (_hotrow_configure_test_code).
      set(options -Wno-unknown-pragmas -Wno-unused-function -Wno-sign-compare -Wno-maybe-uninitialized)
      if(NOT folder MATCHES "^tests/")  # what tests compile is run once
        list(APPEND options -O1)
      endif()
      if(HOTROW_SANITIZE MATCHES "undefined")
        list(APPEND options -fsanitize=null,alignment,vptr,object-size)
      endif()
      if(HOTROW_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        list(APPEND options --param=asan-instrumentation-with-call-threshold=7000)  # GCC's default
      endif()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
    endif()
    list(APPEND sources ${source})
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# What stands for CUDA::cudart_static; called once targets can be made.
function(hotrow_add_emulated_gpu)
  if(NOT HOTROW_EMULATED_GPU)
    return()
  endif()
  add_library(hotrow_emulated_gpu STATIC
    ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/emulated_cublaslt.cc
    ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/emulated_gpu.cc ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/emulated_nccl.cc)
  add_library(CUDA::cudart_static ALIAS hotrow_emulated_gpu)
  _hotrow_configure(hotrow_emulated_gpu)
  set_target_properties(hotrow_emulated_gpu PROPERTIES POSITION_INDEPENDENT_CODE ON)  # libhotrow.so has it
  target_compile_definitions(hotrow_emulated_gpu PUBLIC HOTROW_EMULATED_GPU=1)
  target_link_libraries(hotrow_emulated_gpu PUBLIC Threads::Threads)
endfunction()
