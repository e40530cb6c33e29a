# SPDX-License-Identifier: Apache-2.0
# torpor_emulated_kernels(target file.cu ...): an object library of CUDA sources
# compiled as C++ for the emulator of kernels/cuda_emulation/. docs/CUDA.md says
# how it works; no CUDA is needed.

function(torpor_emulated_kernels target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE torpor_options)
  # The emulator judges accesses as they are written: a compiler may not merge,
  # split or vectorise them, nor make calls of memset out of loops.
  target_compile_options(${target} PRIVATE -O1 -fno-exceptions)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fno-tree-vectorize
      -fno-tree-slp-vectorize -fno-tree-loop-distribute-patterns
      -fno-store-merging -fno-tree-sra)
  endif()
  # ThreadSanitizer's hooks, answered by the emulator, in place of whatever
  # sanitizer the build has. Where that is ThreadSanitizer itself, no hooks.
  target_compile_options(${target} PRIVATE -fno-sanitize=all)
  if(NOT TORPOR_SANITIZER STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread
      -include ${CMAKE_SOURCE_DIR}/kernels/cuda_emulation/memory_calls.h)
  endif()
endfunction()
