# SPDX-License-Identifier: Apache-2.0
# Warnings, include root and sanitizers that every target of ours shares.

add_library(torpor_options INTERFACE)
target_include_directories(torpor_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(torpor_options INTERFACE
  -Wall -Wextra -Wnon-virtual-dtor -Wimplicit-fallthrough
  # Options structs are filled by designated initialisers.
  -Wno-missing-field-initializers
  # A float result must not depend on what the optimiser fuses (design: exact
  # means bit-equal); kernels name their fused multiply-adds themselves.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(torpor_options INTERFACE -Wthread-safety)
else()
  # g++ 12 reports these inside libstdc++ and absl headers at -O2.
  target_compile_options(torpor_options INTERFACE
    -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-restrict
    -Wno-array-bounds -Wno-stringop-overread)
endif()

if(TORPOR_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer
    -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
  # LMDB's map is capped: the shadow of a terabyte map would not fit.
  target_compile_definitions(torpor_options INTERFACE TORPOR_SANITIZED=1)
elseif(TORPOR_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  target_compile_definitions(torpor_options INTERFACE TORPOR_SANITIZED=1)
elseif(NOT TORPOR_SANITIZER STREQUAL "")
  message(FATAL_ERROR
    "TORPOR_SANITIZER: got '${TORPOR_SANITIZER}', wanted address or thread")
endif()
