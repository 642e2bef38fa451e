# What `cmake --install` and cpack make of the libraries and programs; docs/install.md tells their users.
#
#   hotrow_add_library and hotrow_add_binary call hotrow_install_library / _binary;
#   hotrow_add_umbrella() makes hotrow::hotrow, all libraries under one name;
#   hotrow_install_package() writes hotrowConfig.cmake, hotrow.pc and the rules of the Debian package.
#
# Nothing is listed twice: libraries, dependencies and link order come from the targets themselves. The headers that
# users include are listed in cmake/install_headers.cmake; what those include comes with them.

option(HOTROW_INSTALL "Make the rules of `cmake --install` and cpack" ${PROJECT_IS_TOP_LEVEL})

include(GNUInstallDirs)
set(HOTROW_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/hotrow)

if(BUILD_SHARED_LIBS AND PROJECT_IS_TOP_LEVEL)
  message(FATAL_ERROR "BUILD_SHARED_LIBS=ON: hotrow has static libraries only, since it promises no stable ABI yet; "
                      "configure with -DBUILD_SHARED_LIBS=OFF (they are position independent: your own shared "
                      "library can take them in)")
endif()

# Tests and benchmarks use the same functions as what is shipped, and stay at home.
function(_hotrow_is_shipped out)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(HOTROW_INSTALL AND NOT folder MATCHES "^(tests|bench)(/|$)")
    set(${out} TRUE PARENT_SCOPE)
  else()
    set(${out} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(hotrow_install_library target)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT folder MATCHES "^(tests|bench)(/|$)")
    set_property(GLOBAL APPEND PROPERTY HOTROW_LIBRARIES ${target})
  endif()
  _hotrow_is_shipped(shipped)
  if(shipped)
    install(TARGETS ${target} EXPORT hotrowTargets
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  endif()
endfunction()

function(hotrow_install_binary target)
  _hotrow_is_shipped(shipped)
  if(shipped)
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endfunction()

function(hotrow_add_umbrella)
  get_property(libraries GLOBAL PROPERTY HOTROW_LIBRARIES)
  add_library(hotrow_umbrella INTERFACE)
  add_library(hotrow::hotrow ALIAS hotrow_umbrella)
  set_target_properties(hotrow_umbrella PROPERTIES EXPORT_NAME hotrow)
  target_link_libraries(hotrow_umbrella INTERFACE ${libraries})
  if(HOTROW_INSTALL)
    install(TARGETS hotrow_umbrella EXPORT hotrowTargets)
  endif()
endfunction()

# How users of the archives get hold of what these link to. Sets in the caller: find_call (for hotrowConfig.cmake),
# module (of pkg-config) or flags (for the linker where there is no module), and debian (the -dev package).
function(_hotrow_describe dependency)
  set(find_call "")
  set(module "")
  set(flags "")
  set(debian "")
  if(dependency MATCHES "^absl::(.+)$")
    set(find_call "find_dependency(absl)")
    set(module "absl_${CMAKE_MATCH_1}")
    # Abseil's names carry its release, so the archives link with that release alone.
    set(debian "libabsl-dev")
    if(absl_VERSION MATCHES "^[0-9]+$")
      math(EXPR next "${absl_VERSION} + 1")
      set(find_call "find_dependency(absl ${absl_VERSION} EXACT)")
      set(debian "libabsl-dev (>= ${absl_VERSION}), libabsl-dev (<< ${next})")
    endif()
  elseif(dependency STREQUAL "Threads::Threads")
    set(find_call "find_dependency(Threads)")
    set(flags "-pthread")
  elseif(dependency STREQUAL "OpenMP::OpenMP_CXX")
    set(find_call "find_dependency(OpenMP COMPONENTS CXX)")
    set(flags "${OpenMP_CXX_FLAGS}")
  elseif(dependency STREQUAL "OneDNN::dnnl")
    set(find_call "find_dependency(OneDNN)")
    set(flags "-ldnnl")
    set(debian "libdnnl-dev")
  elseif(dependency STREQUAL "ZLIB::ZLIB")
    set(find_call "find_dependency(ZLIB)")
    set(module "zlib")
    set(debian "zlib1g-dev")
  elseif(dependency MATCHES "^CUDA::(.+)$")
    # The toolkit comes from NVIDIA's packages, whose names differ by release: none is named for Debian.
    set(find_call "find_dependency(CUDAToolkit)")
    set(flags "-L${CUDAToolkit_LIBRARY_DIR} -l${CMAKE_MATCH_1} -ldl -lrt -pthread")
  elseif(dependency STREQUAL "PkgConfig::LIBURING")
    set(find_call "find_dependency(PkgConfig)\npkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET GLOBAL liburing)")
    set(module "liburing")
    set(debian "liburing-dev")
  elseif(dependency MATCHES "^RocksDB::")
    set(find_call "find_dependency(RocksDB CONFIG)")
    set(module "rocksdb")
    set(debian "librocksdb-dev")
  elseif(dependency STREQUAL "MPI::MPI_CXX")
    set(find_call "find_dependency(MPI COMPONENTS CXX)")
    list(JOIN MPI_CXX_LIBRARIES " " flags)
    set(debian "libopenmpi-dev")
  elseif(dependency MATCHES "^(dl|rt|m)$")
    set(flags "-l${dependency}")
  elseif(dependency MATCHES "^-")
    set(flags "${dependency}")
  else()
    message(FATAL_ERROR "a library of hotrow links to ${dependency}: say in _hotrow_describe of "
                        "cmake/HotrowInstall.cmake how users of the installed libraries find that")
  endif()
  foreach(name find_call module flags debian)
    set(${name} "${${name}}" PARENT_SCOPE)
  endforeach()
endfunction()

function(hotrow_install_package)
  if(NOT HOTROW_INSTALL)
    return()
  endif()

  install(CODE "set(source_dir \"${PROJECT_SOURCE_DIR}\")
                set(include_dir \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")"
          COMPONENT development)
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake COMPONENT development)

  # A library is made after those it uses, so the reverse is the order in which a linker wants the archives.
  get_property(libraries GLOBAL PROPERTY HOTROW_LIBRARIES)
  list(REVERSE libraries)
  set(archives "")
  set(find_calls "")
  set(public_modules "")
  set(private_modules "")
  set(public_flags "")
  set(private_flags "")
  set(debian_packages "")
  set(definitions "")
  foreach(library IN LISTS libraries)
    string(APPEND archives " -l${library}")
    get_target_property(more ${library} INTERFACE_COMPILE_DEFINITIONS)
    if(more)
      list(APPEND definitions ${more})
    endif()
    get_target_property(links ${library} INTERFACE_LINK_LIBRARIES)
    foreach(link IN LISTS links)
      # What a library uses in its sources only, CMake keeps as LINK_ONLY.
      set(visibility public)
      if(link MATCHES "^\\$<LINK_ONLY:(.+)>$")
        set(visibility private)
        set(link "${CMAKE_MATCH_1}")
      endif()
      if(NOT link OR link MATCHES "^hotrow(::|_)" OR link MATCHES "^\\$<BUILD_INTERFACE:")
        continue()
      endif()
      _hotrow_describe("${link}")
      list(APPEND find_calls ${find_call})
      list(APPEND ${visibility}_modules ${module})
      list(APPEND ${visibility}_flags ${flags})
      list(APPEND debian_packages ${debian})
    endforeach()
  endforeach()
  foreach(list find_calls public_modules private_modules public_flags private_flags debian_packages definitions)
    list(REMOVE_DUPLICATES ${list})
  endforeach()
  if(public_modules)
    list(REMOVE_ITEM private_modules ${public_modules})
  endif()
  if(public_flags)
    list(REMOVE_ITEM private_flags ${public_flags})
  endif()

  # --- hotrowConfig.cmake -----------------------------------------------------------------------------
  include(CMakePackageConfigHelpers)
  list(JOIN find_calls "\n" HOTROW_FIND_CALLS)
  list(TRANSFORM libraries REPLACE "^hotrow_" "" OUTPUT_VARIABLE components)
  list(SORT components)
  list(JOIN components ", " HOTROW_COMPONENTS)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/package)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hotrowConfig.cmake.in ${generated}/hotrowConfig.cmake
                                INSTALL_DESTINATION ${HOTROW_INSTALL_CMAKEDIR}
                                NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${generated}/hotrowConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(EXPORT hotrowTargets NAMESPACE hotrow:: DESTINATION ${HOTROW_INSTALL_CMAKEDIR} COMPONENT development)
  install(FILES ${generated}/hotrowConfig.cmake ${generated}/hotrowConfigVersion.cmake
                ${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake
          DESTINATION ${HOTROW_INSTALL_CMAKEDIR} COMPONENT development)

  # --- hotrow.pc --------------------------------------------------------------------------------------
  set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  foreach(dir LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
      set(PC_${dir} "${CMAKE_INSTALL_${dir}}")
    else()
      set(PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
    endif()
  endforeach()
  if(IS_ABSOLUTE "${pc_dir}")
    set(PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
  else()
    file(RELATIVE_PATH up /x/${pc_dir} /x)  # found from where hotrow.pc lies, so the tree may move
    string(REGEX REPLACE "/$" "" up "${up}")
    set(PC_PREFIX "\${pcfiledir}/${up}")
  endif()
  set(PC_ARCHIVES "${archives}")
  list(JOIN public_flags " " PC_LIBS)
  list(JOIN private_flags " " PC_LIBS_PRIVATE)
  list(JOIN public_modules ", " PC_REQUIRES)
  list(JOIN private_modules ", " PC_REQUIRES_PRIVATE)
  set(PC_CFLAGS "")
  foreach(definition IN LISTS definitions)
    string(APPEND PC_CFLAGS " -D${definition}")
  endforeach()
  if(HOTROW_HAVE_CUDA)
    list(GET CUDAToolkit_INCLUDE_DIRS 0 cuda_include)
    string(APPEND PC_CFLAGS " -I${cuda_include}")
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/hotrow.pc.in ${generated}/hotrow.pc @ONLY)
  install(FILES ${generated}/hotrow.pc DESTINATION ${pc_dir} COMPONENT development)

  # --- documents: README.md links to docs/ ------------------------------------------------------------
  install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
          DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright
          COMPONENT programs)  # the name under which Debian looks for it
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND AND TARGET hotrow)  # sbom.spdx.json, and the licences of what is compiled in
    install(CODE "execute_process(
      COMMAND \"${Python3_EXECUTABLE}\" \"${PROJECT_SOURCE_DIR}/cmake/sbom.py\" ${PROJECT_VERSION}
              \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\" \"$<TARGET_FILE:hotrow>\"
      COMMAND_ERROR_IS_FATAL ANY)" COMPONENT programs)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs
          FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")

  # --- cpack ------------------------------------------------------------------------------------------
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME hotrow)
  set(CPACK_PACKAGE_VENDOR "hotrow")
  set(CPACK_PACKAGE_CONTACT "hotrow maintainers <hotrow@localhost>" CACHE STRING "Maintainer of the package")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  string(JOIN "\n" CPACK_DEBIAN_PACKAGE_DESCRIPTION
         "Programs that train recommendation models, and the static C++ libraries,"
         "headers, CMake and pkg-config files to build such programs.")
  # The programs' libraries are read off them; who links the archives needs what these link to.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  list(JOIN debian_packages ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
  include(CPack)
endfunction()
