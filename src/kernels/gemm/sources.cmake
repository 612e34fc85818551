list(APPEND ZOETROPE_KERNEL_SOURCES
  gemm/pack.cpp
  gemm/pack_pairs.cpp
  gemm/packed.cpp
  gemm/packed_amx.cpp
  gemm/packed_amx_int8.cpp
  gemm/packed_avx2.cpp
  gemm/packed_avx2_int8.cpp
  gemm/packed_avx512.cpp
  gemm/packed_int8.cpp
  gemm/packed_onednn.cpp
  gemm/packed_vnni256.cpp
  gemm/packed_vnni512.cpp
  gemm/stored_rows.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS
  gemm/pack_pairs_test.cpp
  gemm/packed_amx_int8_emulated.cpp
  gemm/packed_int8_test.cpp
  gemm/packed_test.cpp)
set_source_files_properties(gemm/pack_pairs.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options}")
set_source_files_properties(gemm/packed_amx.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options};-mamx-tile;-mamx-bf16")
set_source_files_properties(gemm/packed_amx_int8.cpp PROPERTIES
  COMPILE_OPTIONS "${avx512_options};-mamx-tile;-mamx-int8")
set_source_files_properties(gemm/packed_amx_int8_emulated.cpp PROPERTIES
  COMPILE_OPTIONS "${avx512_options}" SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties(gemm/packed_avx512.cpp gemm/packed_vnni512.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options}")
list(APPEND ZOETROPE_KERNEL_SOURCES gemm/thin_amx.cpp gemm/thin_avx2.cpp gemm/thin_avx512.cpp gemm/thin_gemm.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS gemm/thin_gemm_test.cpp)
set_source_files_properties(gemm/thin_avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options}")
set_source_files_properties(gemm/thin_amx.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options};-mamx-tile;-mamx-bf16")
