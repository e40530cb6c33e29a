// SPDX-License-Identifier: Apache-2.0
//
// CUDA's small vectors, with its alignments. Copying one is one access of the
// whole vector, so that its alignment is seen.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_VECTOR_TYPES_H_
#define TORPOR_KERNELS_CUDA_EMULATION_VECTOR_TYPES_H_

// The names are CUDA's.
// NOLINTBEGIN(readability-identifier-naming)

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  // As CUDA's: a number is a size in x.
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr dim3(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1)
      : x(in_x), y(in_y), z(in_z) {}
};

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

// NOLINTEND(readability-identifier-naming)

#endif  // TORPOR_KERNELS_CUDA_EMULATION_VECTOR_TYPES_H_
