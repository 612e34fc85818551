# MPI, where it is installed or demanded, and tests that run under mpirun.
#
# ZOETROPE_HAVE_MPI says whether the MPI transport is built.
if(NOT DEFINED ZOETROPE_HAVE_MPI)
  if(ZOETROPE_MPI STREQUAL "OFF")
    set(ZOETROPE_HAVE_MPI FALSE)
  else()
    set(MPI_CXX_SKIP_MPICXX TRUE)
    if(ZOETROPE_MPI STREQUAL "ON")
      find_package(MPI REQUIRED COMPONENTS CXX)
    else()
      find_package(MPI QUIET COMPONENTS CXX)
    endif()
    set(ZOETROPE_HAVE_MPI ${MPI_CXX_FOUND})
  endif()
endif()

# What Open MPI needs to run quietly on a machine that is nobody's cluster: as root in a container, more ranks than
# cores, no network but (at most) the loopback interface, no probing of fabrics.
set(ZOETROPE_MPI_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
  OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_plm=isolated
  OMPI_MCA_orte_base_help_aggregate=1)
if(ZOETROPE_SANITIZE MATCHES "address")
  # Open MPI is built without frame pointers: only full unwinding finds whose leak it is, so that lsan.supp can name it.
  list(APPEND ZOETROPE_MPI_TEST_ENVIRONMENT ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:fast_unwind_on_malloc=0
       LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/lsan.supp:print_suppressions=0)
endif()

# The same as one command line, for tests that start mpirun themselves: "env NAME=value… mpirun".
list(JOIN ZOETROPE_MPI_TEST_ENVIRONMENT " " ZOETROPE_MPIRUN)
set(ZOETROPE_MPIRUN "env ${ZOETROPE_MPIRUN} ${MPIEXEC_EXECUTABLE}")

# zoetrope_mpi_test(NAME name RANKS n COMMAND program argument… [TIMEOUT seconds] [LABEL ranks] [ENVIRONMENT …])
#
# A ctest that runs `mpirun -n RANKS program argument…`, one at a time next to other tests: ranks of several would wait
# for each other's share of the cores. Does nothing in a build without MPI. A GoogleTest filter that selects no test
# fails.
function(zoetrope_mpi_test)
  if(NOT ZOETROPE_HAVE_MPI OR NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(TEST "" "NAME;RANKS;TIMEOUT;LABEL" "COMMAND;ENVIRONMENT" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT ${ZOETROPE_TEST_TIMEOUT})
  endif()
  if(NOT TEST_LABEL)
    set(TEST_LABEL ranks)
  endif()
  list(POP_FRONT TEST_COMMAND program)
  if(TARGET ${program})
    set(program $<TARGET_FILE:${program}>)
  endif()
  add_test(NAME ${TEST_NAME} COMMAND ${MPIEXEC_EXECUTABLE} -n ${TEST_RANKS} ${program} ${TEST_COMMAND})
  set_tests_properties(${TEST_NAME} PROPERTIES
    TIMEOUT ${TEST_TIMEOUT} RESOURCE_LOCK mpi LABELS ${TEST_LABEL}
    ENVIRONMENT_MODIFICATION "${ZOETROPE_TEST_MEASURES}"
    ENVIRONMENT "${ZOETROPE_TEST_ENVIRONMENT};${ZOETROPE_MPI_TEST_ENVIRONMENT};${TEST_ENVIRONMENT}"
    FAIL_REGULAR_EXPRESSION "Running 0 tests")
endfunction()
