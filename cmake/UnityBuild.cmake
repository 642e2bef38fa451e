# Sources compiled several at a time, which parses headers and instantiates templates once for all of them: half the
# compiling. `./run` and the sanitizer builds do; the presets dev and cpu compile each source by itself, so that a change
# rebuilds little and an include that is missing is seen.

option(HOTROW_UNITY "Compile several sources of a target at a time" OFF)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/unity_groups.py)

# For the targets of a folder and of those below it. Called once all are there. Sources with their own flags (those of
# the emulated GPU) stay alone, and so do the headers of headers_alone, whose purpose that is.
function(hotrow_use_unity_builds folder)
  if(NOT HOTROW_UNITY)
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS below)
    hotrow_use_unity_builds(${subfolder})
  endforeach()

  set(lines)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(EXECUTABLE|STATIC_LIBRARY|SHARED_LIBRARY)$")
      continue()
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    # Unity files make headers of sources: GCC warns of types there that have members from anonymous namespaces.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      get_source_file_property(options ${source} DIRECTORY ${folder} COMPILE_OPTIONS)
      if(source MATCHES "\\.cc$" AND NOT options)
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
        string(APPEND lines "${target}\t${source}\n")
      endif()
    endforeach()
  endforeach()

  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/unity_sources.txt CONTENT "${lines}" @ONLY)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/unity_groups.py
    INPUT_FILE ${CMAKE_BINARY_DIR}/unity_sources.txt OUTPUT_VARIABLE grouped COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" grouped "${grouped}")
  foreach(line IN LISTS grouped)
    string(REPLACE "\t" ";" line "${line}")
    list(GET line 0 source)
    list(GET line 1 group)
    set_source_files_properties(${source} DIRECTORY ${folder} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
