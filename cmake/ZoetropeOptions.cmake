# Language level, warnings, instruction set and sanitizers: everything that holds for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # tests/dependencies reads each file's flags there
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

# Where ccache is installed, what another build or clone compiled is taken again. Paths below the source folder do not
# count; the precompiled headers do by what they hold, not by their date.
find_program(ZOETROPE_CCACHE ccache)
if(ZOETROPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${ZOETROPE_CCACHE})
endif()

set(ZOETROPE_MPI AUTO CACHE STRING "Build the MPI transport: AUTO (where MPI is installed), ON or OFF")
set(ZOETROPE_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them; empty for none")
if(ZOETROPE_SANITIZE)
  set(timeout_scale 6)  # address and undefined cost up to 4 times the time, thread up to 15 on memory-bound loops
else()
  set(timeout_scale 1)
endif()
set(ZOETROPE_TEST_TIMEOUT_SCALE ${timeout_scale} CACHE STRING "Factor on every test's time limit, for slow machines")
math(EXPR ZOETROPE_TEST_TIMEOUT "600 * ${ZOETROPE_TEST_TIMEOUT_SCALE}")      # seconds, of a unit test
math(EXPR ZOETROPE_LONG_TEST_TIMEOUT "900 * ${ZOETROPE_TEST_TIMEOUT_SCALE}")  # of whole runs

# AVX2 + FMA is the floor (every x86-64 server and desktop since 2013); wider sets are chosen at run time, in files of
# which nothing is linked for others (tests/dependencies/check_instruction_sets.py).
set(ZOETROPE_FLOOR -march=x86-64-v3)
add_library(zoetrope_flags INTERFACE)
target_compile_options(zoetrope_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align ${ZOETROPE_FLOOR}
  $<$<CXX_COMPILER_ID:GNU>:-Werror>)  # clang, which only fuzzes, warns of other things
if(ZOETROPE_SANITIZE)
  add_compile_options(-fsanitize=${ZOETROPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ZOETROPE_SANITIZE})
  # GCC 12 warns of what is not there in instrumented code, of std::regex first of all.
  target_compile_options(zoetrope_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
  if(ZOETROPE_SANITIZE MATCHES "thread")
    target_compile_options(zoetrope_flags INTERFACE -Wno-tsan)
  endif()
endif()
