# Optional parts of the build. Each is AUTO (use what is found), ON (fail when missing) or OFF.
# After this file, HOTROW_HAVE_<NAME> is TRUE or FALSE and hotrow_print_features() tells the reason.

set(_hotrow_features "" CACHE INTERNAL "")

function(_hotrow_feature name found detail used_by remedy)
  set(HOTROW_${name} AUTO CACHE STRING "AUTO, ON or OFF: ${used_by}")
  set_property(CACHE HOTROW_${name} PROPERTY STRINGS AUTO ON OFF)
  string(TOUPPER "${HOTROW_${name}}" want)
  if(NOT want MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "HOTROW_${name}=${HOTROW_${name}}: expected AUTO, ON or OFF")
  endif()
  set(have FALSE)
  if(want STREQUAL "OFF")
    set(why "switched off by HOTROW_${name}=OFF")
  elseif(found)
    set(have TRUE)
    set(why "${detail}")
  elseif(want STREQUAL "ON")
    message(FATAL_ERROR "HOTROW_${name}=ON, but it was not found: ${remedy}")
  else()
    set(why "not found: ${remedy}")
  endif()
  set(HOTROW_HAVE_${name} ${have} PARENT_SCOPE)
  set_property(GLOBAL APPEND PROPERTY HOTROW_FEATURE_ROWS "${name}|${have}|${used_by}|${why}")
endfunction()

function(_hotrow_wanted name out)
  if("${HOTROW_${name}}" STREQUAL "OFF")
    set(${out} FALSE PARENT_SCOPE)
  else()
    set(${out} TRUE PARENT_SCOPE)
  endif()
endfunction()

# --- Archives instead of shared libraries, for binaries that travel (tools/gpu_bundle.sh) ----------------
option(HOTROW_STATIC "Link archives where the system has them" OFF)
if(HOTROW_STATIC)
  list(PREPEND CMAKE_FIND_LIBRARY_SUFFIXES .a)
endif()

# Debian's Abseil has both kinds of library, and its CMake files name the shared ones.
function(_hotrow_use_archives)
  get_directory_property(targets IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(shared ${target} IMPORTED_LOCATION_NONE)
    string(REGEX REPLACE "\\.so(\\.[0-9.]+)?$" ".a" archive "${shared}")
    if(target MATCHES "^absl::" AND EXISTS "${archive}")
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE "${archive}" IMPORTED_SONAME_NONE "")
    endif()
  endforeach()
endfunction()

find_package(PkgConfig QUIET)

# --- CUDA ---------------------------------------------------------------------------------------------
set(_found FALSE)
set(_detail "")
_hotrow_wanted(CUDA _wanted)
if(_wanted)
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Hopper alone, as machine code, to build fast. The preset package and tools/gpu_bundle.sh name all that travel.
    set(CMAKE_CUDA_ARCHITECTURES 90-real CACHE STRING "GPU architectures")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND AND TARGET CUDA::cublasLt)
      set(_found TRUE)
      list(JOIN CMAKE_CUDA_ARCHITECTURES "," _archs)
      set(_detail "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${_archs}")
    endif()
  endif()
endif()
_hotrow_feature(CUDA "${_found}" "${_detail}" "GPU tier and kernels"
                "install the CUDA Toolkit with cuBLAS and put nvcc on PATH")

# --- NCCL ---------------------------------------------------------------------------------------------
set(_found FALSE)
_hotrow_wanted(NCCL _wanted)
if(_wanted AND HOTROW_HAVE_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(_found TRUE)
  endif()
endif()
_hotrow_feature(NCCL "${_found}" "${NCCL_LIBRARY}" "exchange between GPUs"
                "needs CUDA and libnccl-dev")

# --- MPI ----------------------------------------------------------------------------------------------
set(_found FALSE)
_hotrow_wanted(MPI _wanted)
if(_wanted)
  find_package(MPI QUIET COMPONENTS CXX)
  set(_found ${MPI_CXX_FOUND})
endif()
_hotrow_feature(MPI "${_found}" "MPI ${MPI_CXX_VERSION}" "many ranks"
                "install libopenmpi-dev and openmpi-bin")

# --- io_uring -----------------------------------------------------------------------------------------
set(_found FALSE)
_hotrow_wanted(URING _wanted)
if(_wanted AND PkgConfig_FOUND)
  pkg_check_modules(LIBURING QUIET IMPORTED_TARGET liburing)
  set(_found ${LIBURING_FOUND})
endif()
_hotrow_feature(URING "${_found}" "liburing ${LIBURING_VERSION}" "asynchronous file I/O"
                "install liburing-dev")

# --- RocksDB ------------------------------------------------------------------------------------------
set(_found FALSE)
_hotrow_wanted(ROCKSDB _wanted)
if(_wanted)
  find_package(RocksDB QUIET CONFIG)
  set(_found ${RocksDB_FOUND})
endif()
_hotrow_feature(ROCKSDB "${_found}" "RocksDB ${RocksDB_VERSION}" "RocksStore"
                "install librocksdb-dev")

# --- liblzma: of the program hotrow alone, no library links it ------------------------------------------
set(_found FALSE)
_hotrow_wanted(LZMA _wanted)
if(_wanted)
  find_package(LibLZMA QUIET)
  set(_found ${LIBLZMA_FOUND})
endif()
_hotrow_feature(LZMA "${_found}" "liblzma ${LIBLZMA_VERSION_STRING}" "traces in .xz"
                "install liblzma-dev")

# --- cpp-httplib: of the program hotrow alone, no library links it ---------------------------------------
set(_found FALSE)
set(_detail "")
_hotrow_wanted(HTTPLIB _wanted)
if(_wanted AND PkgConfig_FOUND)
  pkg_check_modules(HTTPLIB QUIET IMPORTED_TARGET cpp-httplib)
  if(HTTPLIB_FOUND)
    # tools/serve reads requests through a protected method, whose arguments are others in later versions.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_LIBRARIES PkgConfig::HTTPLIB)
    set(CMAKE_REQUIRED_FLAGS -std=c++17)
    check_cxx_source_compiles("#include <httplib.h>
      struct S : httplib::Server {
        bool Run(httplib::Stream& s, bool& b) { return process_request(s, false, b, [](httplib::Request&) {}); }
      };
      int main() { return 0; }" HOTROW_HTTPLIB_FITS)
    unset(CMAKE_REQUIRED_LIBRARIES)
    unset(CMAKE_REQUIRED_FLAGS)
    set(_found ${HOTROW_HTTPLIB_FITS})
    set(_detail "cpp-httplib ${HTTPLIB_VERSION}")
  endif()
endif()
_hotrow_feature(HTTPLIB "${_found}" "${_detail}" "hotrow serve"
                "install libcpp-httplib-dev, 0.11 to 0.14")

# --- gRPC: of the program hotrow alone, no library links it ----------------------------------------------
set(_found FALSE)
_hotrow_wanted(GRPC _wanted)
if(_wanted AND PkgConfig_FOUND AND NOT HOTROW_STATIC)  # it loads the shared Abseil, of which there must be one
  pkg_check_modules(GRPC QUIET IMPORTED_TARGET grpc++_unsecure>=1.51 protobuf)
  find_program(HOTROW_PROTOC protoc)
  find_program(HOTROW_GRPC_PLUGIN grpc_cpp_plugin)
  if(GRPC_FOUND AND HOTROW_PROTOC AND HOTROW_GRPC_PLUGIN)
    set(_found TRUE)
  endif()
endif()
_hotrow_feature(GRPC "${_found}" "grpc++ ${GRPC_grpc++_unsecure_VERSION}" "hotrow serve by gRPC"
                "install libgrpc++-dev, libprotobuf-dev, protobuf-compiler, protobuf-compiler-grpc")

# --- oneDNN: required by ops/ -------------------------------------------------------------------------
find_package(absl REQUIRED)
if(HOTROW_STATIC)
  _hotrow_use_archives()
endif()
find_package(OneDNN REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Threads REQUIRED)
if(HOTROW_STATIC)
  # What is looked for later is shared as ever: oneDNN brings its OpenMP along, and there must be one.
  list(POP_FRONT CMAKE_FIND_LIBRARY_SUFFIXES)
endif()

function(hotrow_print_features)
  get_property(rows GLOBAL PROPERTY HOTROW_FEATURE_ROWS)
  message(STATUS "")
  message(STATUS "hotrow ${PROJECT_VERSION}  ${CMAKE_BUILD_TYPE}  ${CMAKE_CXX_COMPILER_ID} "
                 "${CMAKE_CXX_COMPILER_VERSION}  -march=${HOTROW_MARCH}")
  message(STATUS "  feature   on   for                     why")
  foreach(row IN LISTS rows)
    string(REPLACE "|" ";" cells "${row}")
    list(GET cells 0 name)
    list(GET cells 1 have)
    list(GET cells 2 used_by)
    list(LENGTH cells n)
    list(SUBLIST cells 3 -1 why)
    string(REPLACE ";" " " why "${why}")
    string(LENGTH "${name}" w)
    math(EXPR pad "10 - ${w}")
    string(REPEAT " " ${pad} pad1)
    string(LENGTH "${used_by}" w)
    math(EXPR pad "24 - ${w}")
    string(REPEAT " " ${pad} pad2)
    if(have)
      set(mark "yes  ")
    else()
      set(mark "no   ")
    endif()
    message(STATUS "  ${name}${pad1}${mark}${used_by}${pad2}${why}")
  endforeach()
  message(STATUS "  Switch with -DHOTROW_<FEATURE>=AUTO|ON|OFF.")
  message(STATUS "")
endfunction()
