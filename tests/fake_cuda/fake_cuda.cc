// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_cuda/fake_cuda.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace torpor::fake_cuda {
namespace {

// Of the library that kernels/cuda_driver.cc loads.
template <typename Function>
Function* Find(const char* name) {
  void* const library = dlopen(kernels::kCudaDriverLibrary, RTLD_NOW);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "not the fake driver: %s\n", dlerror());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

kernels::CudaUuid Uuid(int ordinal) {
  kernels::CudaUuid uuid;
  uuid.bytes.fill(static_cast<uint8_t>(0xF0 + ordinal));
  return uuid;
}

void Behave(const char* words) {
  Find<void(const char*)>("torpor_fake_cuda_behave")(words);
}
uint64_t LiveBytes() {
  return Find<uint64_t()>("torpor_fake_cuda_live_bytes")();
}
uint64_t Copies() { return Find<uint64_t()>("torpor_fake_cuda_copies")(); }

}  // namespace torpor::fake_cuda
