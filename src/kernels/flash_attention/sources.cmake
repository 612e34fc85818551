list(APPEND ZOETROPE_KERNEL_SOURCES
  flash_attention/flash_attention.cpp
  flash_attention/reference.cpp
  flash_attention/scalar.cpp
  flash_attention/state.cpp)
list(APPEND ZOETROPE_KERNEL_TESTS
  flash_attention/testing.cpp
  flash_attention/door_test.cpp
  flash_attention/values_test.cpp)
