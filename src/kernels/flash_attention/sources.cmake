list(APPEND ZOETROPE_KERNEL_SOURCES
  flash_attention/amx_bf16.cpp
  flash_attention/avx2.cpp
  flash_attention/avx2_int8.cpp
  flash_attention/avx512.cpp
  flash_attention/avx512_bf16.cpp
  flash_attention/avx512_int8.cpp
  flash_attention/avx_vnni_int8.cpp
  flash_attention/fixed_max.cpp
  flash_attention/flash_attention.cpp
  flash_attention/int8_attention.cpp
  flash_attention/pack.cpp
  flash_attention/reference.cpp
  flash_attention/scalar.cpp
  flash_attention/state.cpp
  flash_attention/tile_cache.cpp
  flash_attention/tile_search.cpp
  flash_attention/vector_kernel.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS
  flash_attention/testing.cpp
  flash_attention/entry_point_test.cpp
  flash_attention/exp2_coefficients_test.cpp
  flash_attention/fixed_max_test.cpp
  flash_attention/folding_test.cpp
  flash_attention/int8_attention_test.cpp
  flash_attention/int8_output_error_test.cpp
  flash_attention/log_sum_exp_test.cpp
  flash_attention/masks_test.cpp
  flash_attention/numerics_test.cpp
  flash_attention/tile_search_test.cpp
  flash_attention/values_test.cpp)
# One algorithm, one file an instruction set; which of them runs is decided by the CPU at hand.
# GCC 12's own avx512fintrin.h trips its uninitialized warnings (GCC bug 105593).
set(avx512_options -march=x86-64-v4 -mprefer-vector-width=512 -Wno-uninitialized -Wno-maybe-uninitialized)
set_source_files_properties(flash_attention/avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options}")
set_source_files_properties(flash_attention/avx512_bf16.cpp PROPERTIES
  COMPILE_OPTIONS "${avx512_options};-mavx512bf16")
set_source_files_properties(flash_attention/avx512_int8.cpp PROPERTIES
  COMPILE_OPTIONS "${avx512_options};-mavx512vnni")
set_source_files_properties(flash_attention/amx_bf16.cpp PROPERTIES
  COMPILE_OPTIONS "${avx512_options};-mavx512bf16;-mamx-tile;-mamx-bf16")
