list(APPEND ZOETROPE_KERNEL_SOURCES pointwise/pointwise.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS pointwise/pointwise_test.cpp)
