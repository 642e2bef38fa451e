# Included by tests/CMakeLists.txt; the CMakeLists.txt here is that of the outside project.
if(HOTROW_INSTALL)
  set(_flags "")
  if(HOTROW_SANITIZE)
    set(_flags "-fsanitize=${HOTROW_SANITIZE}")
  endif()
  add_test(NAME ConsumerBuildsAgainstInstalledTree
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_install.sh ${CMAKE_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR}/consumer
                   ${CMAKE_COMMAND} ${CMAKE_GENERATOR} ${CMAKE_CXX_COMPILER} ${_flags})
  set_tests_properties(ConsumerBuildsAgainstInstalledTree PROPERTIES LABELS unit TIMEOUT 300)
endif()
