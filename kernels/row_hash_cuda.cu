// SPDX-License-Identifier: Apache-2.0
//
// Eight lanes a row, one for each accumulator of XXH3's long form: a stripe of
// 64 bytes is one access of them. Rows of up to 240 bytes, which have other
// forms, are the first lane's alone. The names follow xxHash's description.

#include "kernels/cuda_simt.h"
#include "kernels/device_tiles.h"
#include "kernels/row_hash_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;
constexpr int kRowsPerBlock = kThreads / kLanes;
constexpr int64_t kShortMax = 240;
constexpr int64_t kStripe = 64;
// Stripes until the secret is used up and the accumulators are scrambled.
constexpr int64_t kStripesPerBlock = 16;

constexpr uint64_t kPrime32x1 = 0x9e3779b1u;
constexpr uint64_t kPrime32x2 = 0x85ebca77u;
constexpr uint64_t kPrime32x3 = 0xc2b2ae3du;
constexpr uint64_t kPrime64x1 = 0x9e3779b185ebca87u;
constexpr uint64_t kPrime64x2 = 0xc2b2ae3d27d4eb4fu;
constexpr uint64_t kPrime64x3 = 0x165667b19e3779f9u;
constexpr uint64_t kPrime64x4 = 0x85ebca77c2b2ae63u;
constexpr uint64_t kPrime64x5 = 0x27d4eb2f165667c5u;

// XXH3's default secret as little-endian words; a kernel's argument, since
// those lie where every lane may index them.
struct Secret {
  uint64_t words[24] = {
      0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu,
      0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u,
      0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu,
      0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
      0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
      0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u,
      0x49daf0b751dd0d17u, 0x9e68d429265516d3u, 0xfca1477d58be162bu,
      0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
  };

  // The eight bytes from byte `at` on.
  TORPOR_DEVICE uint64_t operator()(int64_t at) const {
    const int64_t word = at / 8;
    const auto shift = static_cast<unsigned>(at % 8 * 8);
    if (shift == 0) return words[word];
    return words[word] >> shift | words[word + 1] << (64 - shift);
  }
};

TORPOR_DEVICE_ONLY inline uint64_t ReadBytes(const uint8_t* p, int n) {
  uint64_t v = 0;
  for (int i = 0; i < n; ++i) v |= static_cast<uint64_t>(p[i]) << (8 * i);
  return v;
}

TORPOR_DEVICE_ONLY inline uint64_t Read64(const uint8_t* p, bool aligned) {
  return aligned ? *reinterpret_cast<const uint64_t*>(p) : ReadBytes(p, 8);
}

TORPOR_DEVICE_ONLY inline uint64_t Swap64(uint64_t v) {
  uint64_t out = 0;
  for (int i = 0; i < 8; ++i) out = out << 8 | (v >> (8 * i) & 0xffu);
  return out;
}

TORPOR_DEVICE_ONLY inline uint64_t RotateLeft(uint64_t v, int n) {
  return v << n | v >> (64 - n);
}

// The two halves of the 128-bit product, folded by exclusive or.
TORPOR_DEVICE_ONLY inline uint64_t MultiplyFold(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffu;
  const uint64_t a1 = a >> 32;
  const uint64_t b0 = b & 0xffffffffu;
  const uint64_t b1 = b >> 32;
  const uint64_t low = a0 * b0;
  const uint64_t cross = (low >> 32) + (a1 * b0 & 0xffffffffu) + a0 * b1;
  const uint64_t high = (a1 * b0 >> 32) + (cross >> 32) + a1 * b1;
  return (a * b) ^ high;
}

TORPOR_DEVICE_ONLY inline uint64_t Avalanche(uint64_t h) {
  h ^= h >> 37;
  h *= 0x165667919e3779f9u;
  return h ^ h >> 32;
}

// That of XXH64.
TORPOR_DEVICE_ONLY inline uint64_t Avalanche64(uint64_t h) {
  h = (h ^ h >> 33) * kPrime64x2;
  h = (h ^ h >> 29) * kPrime64x3;
  return h ^ h >> 32;
}

TORPOR_DEVICE_ONLY inline uint64_t Mix16(const uint8_t* p, const Secret& secret,
                                         int64_t at) {
  return MultiplyFold(ReadBytes(p, 8) ^ secret(at),
                      ReadBytes(p + 8, 8) ^ secret(at + 8));
}

TORPOR_DEVICE_ONLY inline uint64_t HashUpTo16(const uint8_t* p, int64_t n,
                                              const Secret& secret) {
  const auto length = static_cast<uint64_t>(n);
  if (n > 8) {
    const uint64_t low = ReadBytes(p, 8) ^ secret(24) ^ secret(32);
    const uint64_t high = ReadBytes(p + n - 8, 8) ^ secret(40) ^ secret(48);
    return Avalanche(length + Swap64(low) + high + MultiplyFold(low, high));
  }
  if (n >= 4) {
    uint64_t h = ReadBytes(p + n - 4, 4) + (ReadBytes(p, 4) << 32);
    h ^= secret(8) ^ secret(16);
    h ^= RotateLeft(h, 49) ^ RotateLeft(h, 24);
    h *= 0x9fb21c651e98df25u;
    h ^= (h >> 35) + length;
    h *= 0x9fb21c651e98df25u;
    return h ^ h >> 28;
  }
  if (n == 0) return Avalanche64(secret(56) ^ secret(64));
  const uint64_t bytes = static_cast<uint64_t>(p[0]) << 16 |
                         static_cast<uint64_t>(p[n / 2]) << 24 |
                         static_cast<uint64_t>(p[n - 1]) | length << 8;
  return Avalanche64(bytes ^ ((secret(0) ^ secret(4)) & 0xffffffffu));
}

TORPOR_DEVICE_ONLY inline uint64_t HashUpTo240(const uint8_t* p, int64_t n,
                                               const Secret& secret) {
  uint64_t h = static_cast<uint64_t>(n) * kPrime64x1;
  if (n <= 128) {
    // Pairs of 16 bytes from both ends, as far as they go.
    for (int64_t i = 0; i < (n + 31) / 32; ++i) {
      h += Mix16(p + 16 * i, secret, 32 * i);
      h += Mix16(p + n - 16 * (i + 1), secret, 32 * i + 16);
    }
    return Avalanche(h);
  }
  for (int64_t i = 0; i < 8; ++i) h += Mix16(p + 16 * i, secret, 16 * i);
  h = Avalanche(h);
  for (int64_t i = 8; i < n / 16; ++i) {
    h += Mix16(p + 16 * i, secret, 16 * (i - 8) + 3);
  }
  return Avalanche(h + Mix16(p + n - 16, secret, 136 - 17));
}

// This lane's word of a stripe into its accumulator.
TORPOR_DEVICE_ONLY inline uint64_t Accumulate(uint64_t acc, const uint8_t* word,
                                              bool aligned, uint64_t secret) {
  const uint64_t v = Read64(word, aligned);
  const uint64_t key = v ^ secret;
  const uint64_t neighbour = __shfl_xor_sync(device::kAllLanes, v, 1);
  return acc + neighbour + (key & 0xffffffffu) * (key >> 32);
}

// Above 240 bytes; all lanes of a warp together. The first lane of a row gets
// its hash.
TORPOR_DEVICE_ONLY inline uint64_t HashLong(const uint8_t* p, int64_t n,
                                            const Secret& secret) {
  constexpr uint64_t kStart[kLanes] = {kPrime32x3, kPrime64x1, kPrime64x2,
                                       kPrime64x3, kPrime64x4, kPrime32x2,
                                       kPrime64x5, kPrime32x1};
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const uint8_t* mine = p + 8 * lane;
  const bool aligned = reinterpret_cast<uintptr_t>(p) % 8 == 0;
  uint64_t acc = 0;
  TORPOR_UNROLL
  for (int i = 0; i < kLanes; ++i) acc = lane == i ? kStart[i] : acc;
  const int64_t n_stripes = (n - 1) / kStripe;
  for (int64_t stripe = 0; stripe < n_stripes; ++stripe) {
    const int64_t in_block = stripe % kStripesPerBlock;
    acc = Accumulate(acc, mine + stripe * kStripe, aligned,
                     secret(8 * (in_block + lane)));
    if (in_block == kStripesPerBlock - 1) {
      acc = (acc ^ acc >> 47 ^ secret(128 + 8 * lane)) * kPrime32x1;
    }
  }
  // The last 64 bytes, whatever the stripes had of them.
  acc = Accumulate(acc, mine + n - kStripe, aligned && n % 8 == 0,
                   secret(121 + 8 * lane));
  const uint64_t mixed = acc ^ secret(11 + 8 * lane);
  const uint64_t other = __shfl_xor_sync(device::kAllLanes, mixed, 1);
  uint64_t sum = MultiplyFold(mixed, other);
  sum += __shfl_xor_sync(device::kAllLanes, sum, 2);
  sum += __shfl_xor_sync(device::kAllLanes, sum, 4);
  return Avalanche(sum + static_cast<uint64_t>(n) * kPrime64x1);
}

TORPOR_KERNEL(kThreads)
void RowHashKernel(RowHashParams p, Secret secret) {
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanes;
  const bool exists = row < p.n_rows;
  const bool first = threadIdx.x % kLanes == 0;
  if (p.n_bytes <= kShortMax) {
    if (!exists || !first) return;
    const uint8_t* at = p.rows + row * p.stride;
    p.out[row] = p.n_bytes <= 16 ? HashUpTo16(at, p.n_bytes, secret)
                                 : HashUpTo240(at, p.n_bytes, secret);
    return;
  }
  // A warp's lanes stay together: those without a row read the last one.
  const uint8_t* at = p.rows + (exists ? row : p.n_rows - 1) * p.stride;
  const uint64_t hash = HashLong(at, p.n_bytes, secret);
  if (exists && first) p.out[row] = hash;
}

}  // namespace

int RowHashCuda(const RowHashParams& params, CudaStream stream) {
  if (params.n_rows == 0) return 0;
  const int64_t blocks = (params.n_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  return TORPOR_LAUNCH(RowHashKernel, static_cast<unsigned>(blocks), kThreads,
                       0, stream, params, Secret{});
}

}  // namespace torpor::kernels
