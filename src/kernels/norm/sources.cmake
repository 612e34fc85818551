list(APPEND ZOETROPE_KERNEL_SOURCES norm/layer_norm.cpp norm/rms_norm_rope.cpp norm/row_norm.cpp norm/reference.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS norm/norm_test.cpp)
