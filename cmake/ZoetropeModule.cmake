# zoetrope_compile_together(TARGET N [SEPARATE files…]): N files of the target so far as one, which parses their headers
# once. SEPARATE files are compiled alone: they define names that others define too, or are compiled in another way.
# Under a sanitizer all are, so that a file that forgets a header is found there. CMake's UNITY_BUILD names files by
# their absolute path, which ccache takes for other files in another clone.
function(zoetrope_compile_together target n)
  cmake_parse_arguments(TOGETHER "" "" "SEPARATE" ${ARGN})
  if(ZOETROPE_SANITIZE)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_ITEM sources ${TOGETHER_SEPARATE})
  set(compiled ${TOGETHER_SEPARATE})
  set(number 0)
  while(sources)
    list(SUBLIST sources 0 ${n} some)
    list(REMOVE_ITEM sources ${some})
    set(includes "")
    foreach(file ${some})
      cmake_path(ABSOLUTE_PATH file)
      cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
      string(APPEND includes "#include \"${file}\"\n")
    endforeach()
    set(together ${CMAKE_CURRENT_BINARY_DIR}/${target}_${number}.cpp)
    file(CONFIGURE OUTPUT ${together} CONTENT "${includes}" @ONLY)
    list(APPEND compiled ${together})
    math(EXPR number "${number} + 1")
  endwhile()
  set_target_properties(${target} PROPERTIES SOURCES "${compiled}")
endfunction()

# zoetrope_module(NAME SOURCES … [TESTS …] [SEPARATE …] [DEPENDS modules…] [LIBRARIES …] [TEST_LIBRARIES …])
#
# A module is a folder, a static library `zoetrope_NAME` and a test program `NAME_test`. DEPENDS names the modules it
# may include; LIBRARIES are third-party and stay private to the module. Symbols are hidden unless a public header marks
# them (zoetrope/api.h), so that an installed library that holds the module exports nothing else.
function(zoetrope_module name)
  cmake_parse_arguments(MODULE "" "" "SOURCES;TESTS;SEPARATE;DEPENDS;LIBRARIES;TEST_LIBRARIES" ${ARGN})
  set(target zoetrope_${name})
  add_library(${target} STATIC ${MODULE_SOURCES})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  if(MODULE_DEPENDS)
    list(TRANSFORM MODULE_DEPENDS PREPEND zoetrope_)
  endif()
  target_link_libraries(${target} PUBLIC ${MODULE_DEPENDS} PRIVATE zoetrope_flags ${MODULE_LIBRARIES})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                                             ZOETROPE_LIBRARIES "${MODULE_LIBRARIES}")
  set_property(GLOBAL APPEND PROPERTY ZOETROPE_MODULES ${name})
  if(NOT TARGET zoetrope_headers)
    file(WRITE ${PROJECT_BINARY_DIR}/headers.cpp "")
    add_library(zoetrope_headers STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/headers.cpp)
    target_link_libraries(zoetrope_headers PRIVATE zoetrope_flags fmt::fmt)
    set_target_properties(zoetrope_headers PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    zoetrope_precompile_headers(zoetrope_headers)
  endif()
  if(NOT "OpenMP::OpenMP_CXX" IN_LIST MODULE_LIBRARIES)  # which is compiled in another way
    zoetrope_precompile_headers(${target} zoetrope_headers)
  endif()
  if(BUILD_TESTING AND MODULE_TESTS)
    zoetrope_test(${name}_test SOURCES ${MODULE_TESTS} SEPARATE ${MODULE_SEPARATE} LIBRARIES ${target} ${MODULE_TEST_LIBRARIES})
  endif()
endfunction()

# The headers that nearly every source parses, which is a third of the time of the build: parsed once for each way of
# compiling. Not under a sanitizer, so that a source that forgets one of them is found there.
set(ZOETROPE_PARSED_ONCE <fmt/format.h> <algorithm> <filesystem> <functional> <map> <memory> <optional> <span> <string>
    <vector>)

# zoetrope_precompile_headers(TARGET [FROM]): with headers of its own, or with those of FROM, which compiles as it does.
# Done at the end of the folder's CMakeLists.txt, when it is known which sources are compiled in other ways.
function(zoetrope_precompile_headers)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL zoetrope_precompile_headers_now ${ARGN})")
endfunction()
function(zoetrope_precompile_headers_now target)
  if(ZOETROPE_SANITIZE)
    return()
  endif()
  # With them GCC 12 takes copies of short strings for writes beyond their end; the sanitizer presets keep these warnings.
  target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(ARGN)
    target_precompile_headers(${target} REUSE_FROM ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE ${ZOETROPE_PARSED_ONCE})
  endif()
endfunction()

# Tests never read what the developer's machine was tuned to: their cache folder does not exist, and none is measured.
set(ZOETROPE_TEST_ENVIRONMENT XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/no_cache)
set(ZOETROPE_TEST_MEASURES ZOETROPE_MEASURE=set:no)

# Every test has one of these labels, which ctest -L chooses by: unit (a module alone), parity (recorded runs), ranks (N
# ranks against one, MPI), cli (the program as a user runs it), server (`zoetrope serve`), python (the package for
# Python), and slow in place of them where a test takes more than a few seconds. `./run test quick` runs unit and parity.
#
# zoetrope_compiles_fast(NAME): for programs of tests. They are half of the source, and their own code is short beside
# what they call: -O1 and the parsed headers of GoogleTest take a third off the time of the build. -O0 takes another fifth
# off that of the tests, which then run for twice as long.
function(zoetrope_compiles_fast name)
  # GCC 12 then takes copies of short strings for writes beyond their end.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1 -Wno-array-bounds -Wno-stringop-overflow>)
endfunction()

# zoetrope_test(NAME SOURCES … LIBRARIES … [SEPARATE files…] [LABEL unit] [THREADS n…] [PROPERTIES …]): a GoogleTest
# program, each of its tests a ctest of its own with these properties. With THREADS, all rank tests (comm/rank_test.h)
# with n threads are one ctest, NAME.threadsn, and the rest is NAME.other: for tests that compare with a result which a
# process computes once. SEPARATE as in zoetrope_compile_together().
function(zoetrope_test name)
  cmake_parse_arguments(TEST "" "LABEL" "SOURCES;SEPARATE;LIBRARIES;PROPERTIES;THREADS" ${ARGN})
  if(NOT TEST_LABEL)
    set(TEST_LABEL unit)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE zoetrope_flags ${TEST_LIBRARIES} zoetrope_project_folders fmt::fmt
                                        GTest::gtest GTest::gmock GTest::gtest_main)
  zoetrope_compiles_fast(${name})
  if(NOT TARGET zoetrope_test_headers)
    # A program, because headers parsed for libraries (-fPIC) do not serve programs (-fPIE).
    file(WRITE ${PROJECT_BINARY_DIR}/test_headers.cpp "")
    add_executable(zoetrope_test_headers EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/test_headers.cpp)
    target_link_libraries(zoetrope_test_headers PRIVATE zoetrope_flags fmt::fmt GTest::gtest GTest::gmock
                                                        GTest::gtest_main)
    zoetrope_compiles_fast(zoetrope_test_headers)
    target_precompile_headers(zoetrope_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  target_precompile_headers(${name} REUSE_FROM zoetrope_test_headers)
  zoetrope_compile_together(${name} 8 SEPARATE ${TEST_SEPARATE})
  set(properties LABELS ${TEST_LABEL} ENVIRONMENT ${ZOETROPE_TEST_ENVIRONMENT}
                 ENVIRONMENT_MODIFICATION ${ZOETROPE_TEST_MEASURES} ${TEST_PROPERTIES})
  if(NOT TEST_THREADS)
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT ${ZOETROPE_TEST_TIMEOUT} ${properties})
    return()
  endif()
  foreach(threads ${TEST_THREADS})
    add_test(NAME ${name}.threads${threads} COMMAND ${name} --gtest_filter=*_threads${threads})
    list(APPEND others *_threads${threads})
    set_tests_properties(${name}.threads${threads} PROPERTIES FAIL_REGULAR_EXPRESSION "Running 0 tests")
  endforeach()
  list(JOIN others ":" others)
  add_test(NAME ${name}.other COMMAND ${name} --gtest_filter=-${others})
  list(TRANSFORM TEST_THREADS PREPEND ${name}.threads)
  set_tests_properties(${TEST_THREADS} ${name}.other PROPERTIES TIMEOUT ${ZOETROPE_LONG_TEST_TIMEOUT} ${properties})
endfunction()
