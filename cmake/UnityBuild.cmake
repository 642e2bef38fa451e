# Sources compiled several at a time, which parses headers and instantiates templates once for all of them. For builds
# that are made whole: those of .ci/run and the first demo. The release build of everybody else compiles each source by
# itself, so that a change rebuilds little and an include that is missing is seen. CLIENTS is for the release build of
# .ci/run: it does the same for the engine's folders alone, whose sources also prove that their headers stand alone.

set(HOTROW_UNITY "OFF" CACHE STRING "Compile several sources of a target at a time: ON, OFF or CLIENTS")
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/unity_groups.py)

# For the targets of a folder and of those below it. Called once all are there. Sources with flags of their own (those of
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

  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${folder})
  if(HOTROW_UNITY STREQUAL "CLIENTS" AND path MATCHES "^(base|store|cache|comm|ops|embedding)(/|$)")
    return()
  endif()

  set(lines)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(EXECUTABLE|STATIC_LIBRARY)$")
      continue()
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
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
