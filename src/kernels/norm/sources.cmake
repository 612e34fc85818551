list(APPEND ZOETROPE_KERNEL_SOURCES norm/layer_norm.cpp norm/rms_norm_rope.cpp norm/rms_norm.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS norm/norm_test.cpp)
