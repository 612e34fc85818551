list(APPEND ZOETROPE_KERNEL_SOURCES conv/conv.cpp conv/onednn_convolution.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS conv/conv_test.cpp)
