list(APPEND ZOETROPE_KERNEL_SOURCES
  conv/direct_amx.cpp
  conv/direct_avx2.cpp
  conv/direct_avx512.cpp
  conv/direct_avx512_bf16.cpp
  conv/direct_convolution.cpp
  conv/epilogue.cpp
  conv/frame_conv.cpp
  conv/winograd_convolution.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS conv/frame_conv_test.cpp conv/winograd_test.cpp)
# One algorithm, one file an instruction set; which of them runs is decided by the CPU at hand.
# GCC 12's own avx512fintrin.h trips its uninitialized warnings (GCC bug 105593).
set(conv_avx512_options -march=x86-64-v4 -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)
set_source_files_properties(conv/direct_avx512.cpp PROPERTIES COMPILE_OPTIONS "${conv_avx512_options}")
set_source_files_properties(conv/direct_avx512_bf16.cpp PROPERTIES
  COMPILE_OPTIONS "${conv_avx512_options};-mavx512bf16")
set_source_files_properties(conv/direct_amx.cpp PROPERTIES
  COMPILE_OPTIONS "${conv_avx512_options};-mavx512bf16;-mamx-tile;-mamx-bf16")
