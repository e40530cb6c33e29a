// SPDX-License-Identifier: Apache-2.0
//
// CUDA's device functions for emulated kernels. Warps have 32 lanes; thread
// (x, y, z) of a block is number x + y * size.x + z * size.x * size.y of it.
// Each collective takes the place that calls it: reports name it, and threads
// that wait at different barriers are told apart by it.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_INTRINSICS_H_
#define TORPOR_KERNELS_CUDA_EMULATION_INTRINSICS_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace torpor::kernels::emulation {

struct Place {
  const char* file = nullptr;
  int line = 0;

  // As a default argument: the caller of the function that has it.
  static constexpr Place Here(const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    return {file, line};
  }
  friend bool operator==(const Place&, const Place&) = default;
};

enum class WarpOp : uint8_t {
  kSync,
  kShuffle,
  kShuffleXor,
  kShuffleUp,
  kShuffleDown,
  kBallot,
};

void BlockBarrier(Place place);
// Waits for the lanes of `mask`, each with a value and an operand, and returns
// the value of the lane that `op` asks for (all ones when that is not in the
// mask), or the ballot's bits.
uint64_t WarpCollective(WarpOp op, uint32_t mask, uint64_t value, int operand,
                        Place place);

template <typename T>
T Shuffle(WarpOp op, uint32_t mask, T value, int operand, Place place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    const auto bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<T>(
        static_cast<uint32_t>(WarpCollective(op, mask, bits, operand, place)));
  } else {
    const auto bits = std::bit_cast<uint64_t>(value);
    return std::bit_cast<T>(WarpCollective(op, mask, bits, operand, place));
  }
}

}  // namespace torpor::kernels::emulation

// The names are CUDA's.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

inline void __syncthreads(torpor::kernels::emulation::Place place =
                              torpor::kernels::emulation::Place::Here()) {
  torpor::kernels::emulation::BlockBarrier(place);
}

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       torpor::kernels::emulation::Place place =
                           torpor::kernels::emulation::Place::Here()) {
  using torpor::kernels::emulation::WarpOp;
  torpor::kernels::emulation::WarpCollective(WarpOp::kSync, mask, 0, 0, place);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane,
              torpor::kernels::emulation::Place place =
                  torpor::kernels::emulation::Place::Here()) {
  using torpor::kernels::emulation::WarpOp;
  return torpor::kernels::emulation::Shuffle(WarpOp::kShuffle, mask, value,
                                             lane, place);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask,
                  torpor::kernels::emulation::Place place =
                      torpor::kernels::emulation::Place::Here()) {
  using torpor::kernels::emulation::WarpOp;
  return torpor::kernels::emulation::Shuffle(WarpOp::kShuffleXor, mask, value,
                                             lane_mask, place);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta,
                 torpor::kernels::emulation::Place place =
                     torpor::kernels::emulation::Place::Here()) {
  using torpor::kernels::emulation::WarpOp;
  return torpor::kernels::emulation::Shuffle(WarpOp::kShuffleUp, mask, value,
                                             static_cast<int>(delta), place);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                   torpor::kernels::emulation::Place place =
                       torpor::kernels::emulation::Place::Here()) {
  using torpor::kernels::emulation::WarpOp;
  return torpor::kernels::emulation::Shuffle(WarpOp::kShuffleDown, mask, value,
                                             static_cast<int>(delta), place);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              torpor::kernels::emulation::Place place =
                                  torpor::kernels::emulation::Place::Here()) {
  using torpor::kernels::emulation::WarpOp;
  return static_cast<unsigned>(torpor::kernels::emulation::WarpCollective(
      WarpOp::kBallot, mask, predicate != 0 ? 1 : 0, 0, place));
}

inline int __any_sync(unsigned mask, int predicate,
                      torpor::kernels::emulation::Place place =
                          torpor::kernels::emulation::Place::Here()) {
  return __ballot_sync(mask, predicate, place) != 0 ? 1 : 0;
}

inline int __all_sync(unsigned mask, int predicate,
                      torpor::kernels::emulation::Place place =
                          torpor::kernels::emulation::Place::Here()) {
  return __ballot_sync(mask, predicate, place) == mask ? 1 : 0;
}

// Global or shared memory; each returns what was there before.
int atomicAdd(int* at, int value);
unsigned atomicAdd(unsigned* at, unsigned value);
unsigned long long atomicAdd(unsigned long long* at, unsigned long long value);
float atomicAdd(float* at, float value);
int atomicMax(int* at, int value);
unsigned atomicMax(unsigned* at, unsigned value);
unsigned long long atomicMax(unsigned long long* at, unsigned long long value);
int atomicMin(int* at, int value);
unsigned atomicMin(unsigned* at, unsigned value);
unsigned long long atomicMin(unsigned long long* at, unsigned long long value);
int atomicCAS(int* at, int compare, int value);
unsigned atomicCAS(unsigned* at, unsigned compare, unsigned value);
unsigned long long atomicCAS(unsigned long long* at, unsigned long long compare,
                             unsigned long long value);

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
// A GPU's may be off by two units in the last place.
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }

inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }

inline int __popc(unsigned v) { return std::popcount(v); }
// The lowest set bit, counted from 1; 0 when none is set.
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }

template <typename T>
T __ldg(const T* at) {
  return *at;
}

constexpr int min(int a, int b) { return b < a ? b : a; }
constexpr unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
constexpr long min(long a, long b) { return b < a ? b : a; }
constexpr unsigned long min(unsigned long a, unsigned long b) {
  return b < a ? b : a;
}
inline float min(float a, float b) { return fminf(a, b); }
constexpr int max(int a, int b) { return a < b ? b : a; }
constexpr unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
constexpr long max(long a, long b) { return a < b ? b : a; }
constexpr unsigned long max(unsigned long a, unsigned long b) {
  return a < b ? b : a;
}
inline float max(float a, float b) { return fmaxf(a, b); }

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)

#endif  // TORPOR_KERNELS_CUDA_EMULATION_INTRINSICS_H_
