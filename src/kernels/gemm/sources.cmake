list(APPEND ZOETROPE_KERNEL_SOURCES onednn.cpp gemm/gemm.cpp gemm/onednn_matmul.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS gemm/gemm_test.cpp)
