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
endif()
