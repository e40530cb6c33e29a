# SPDX-License-Identifier: Apache-2.0
# Everything comes from Debian 12 packages; docs/DEPENDENCIES.md gives reasons.
# Order matters: Debian's Protobuf has no CONFIG package, and gRPC's config
# looks for the targets that the MODULE defines.

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(tomlplusplus CONFIG REQUIRED)
find_path(TORPOR_NLOHMANN_INCLUDE nlohmann/json.hpp REQUIRED)
find_path(TORPOR_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)

find_package(PkgConfig REQUIRED)
pkg_check_modules(LMDB REQUIRED IMPORTED_TARGET lmdb)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)

if(TORPOR_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
if(TORPOR_CUDA)
  find_package(CUDAToolkit 13 REQUIRED)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    # A100, H100 and H200, B200; the PTX of the first serves what follows.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 80-virtual)
  endif()
  enable_language(CUDA)
  # CMake 3.25.1 does not know that nvcc speaks C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
