list(APPEND ZOETROPE_KERNEL_SOURCES rope/rope.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS rope/rope_test.cpp)
