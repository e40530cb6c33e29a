// SPDX-License-Identifier: Apache-2.0
//
// NumPy's default generator, as far as the model needs it: the release draws
// Engram's multipliers with numpy.random.default_rng(seed).integers(0, n).
// SeedSequence over a PCG64 with XSL-RR output, and Lemire's bounded integers.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_NUMPY_RANDOM_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_NUMPY_RANDOM_H_

#include <cstdint>

namespace torpor::replay::deepseek_v41 {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);

  uint64_t Next();
  // Uniform in [0, n), by 64-bit draws. REQUIRES: n > 2^32, below which NumPy
  // draws 32 bits.
  uint64_t Below(uint64_t n);

 private:
  unsigned __int128 state_ = 0;
  unsigned __int128 increment_ = 0;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_NUMPY_RANDOM_H_
