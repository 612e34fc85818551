list(APPEND ZOETROPE_KERNEL_SOURCES narrow/narrow.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS narrow/narrow_test.cpp)
