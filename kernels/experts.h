// SPDX-License-Identifier: Apache-2.0
//
// Rows to their experts and back (DeepSeek V4.1 section 2.10; gpt-oss, whose
// router is a softmax and whose experts have biases). A row's bits do not
// depend on the rows beside it (design D9): its k experts are in ascending
// order wherever it is summed over them.
//
// Floor: each array read once and written once.

#ifndef TORPOR_KERNELS_EXPERTS_H_
#define TORPOR_KERNELS_EXPERTS_H_

#include <cstdint>

namespace torpor::kernels {

// affinity = sqrt(log(1 + e^(logit / temperature))), divided in f32, the rest
// in double, rounded once; a NaN stays one. Chosen are the k experts of the
// highest affinity + bias (f32): a NaN counts as the highest, ties go to the
// lower id.
struct ChooseExpertsParams {
  // [n_rows, n_experts] f32: the router's logits, replaced by affinities.
  float* affinities = nullptr;
  int64_t n_rows = 0;
  int64_t n_experts = 0;
  float temperature = 1.0f;
  const float* bias = nullptr;  // [n_experts] f32; chooses, does not weigh
  // REQUIRES: 1 to n_experts.
  int64_t k = 0;
  int32_t* experts = nullptr;  // [n_rows, k], ascending in each row
};

// Chosen are the k experts of the highest logit: a NaN counts as the highest,
// ties go to the lower id. affinity = e^(logit - the row's highest), where a
// NaN is none, rounded once: GroupExperts makes of them the softmax over the
// chosen.
struct ChooseSoftmaxExpertsParams {
  // [n_rows, n_experts] f32: the router's logits, replaced by affinities.
  float* affinities = nullptr;
  int64_t n_rows = 0;
  int64_t n_experts = 0;
  // REQUIRES: 1 to n_experts.
  int64_t k = 0;
  int32_t* experts = nullptr;  // [n_rows, k], ascending in each row
};

// What each expert serves: entries [first[e], first[e + 1]), in ascending order
// of rows. An entry's weight is its affinity / (sum + 1e-20) * scale, the sum
// in f32 over the row's experts, ascending.
struct GroupExpertsParams {
  const float* affinities = nullptr;  // [n_rows, n_experts] f32
  int64_t n_rows = 0;
  int64_t n_experts = 0;
  float scale = 1.0f;
  int64_t k = 0;
  const int32_t* experts = nullptr;  // [n_rows, k], ascending in each row
  int32_t* first = nullptr;          // [n_experts + 1]
  int32_t* rows = nullptr;           // [n_rows * k]: the row of each entry
  float* weights = nullptr;          // [n_rows * k] f32
  int32_t* entries = nullptr;        // [n_rows, k]: where a row's experts are
};

// x = (x + the bias of its expert) * its weight, in place, for the entries
// [first[e], first[e + 1]) of each expert e; in f32.
struct BiasExpertsParams {
  float* x = nullptr;              // [n_entries, dim] f32, by entry
  const int32_t* first = nullptr;  // [n_experts + 1]
  int64_t n_experts = 0;
  int64_t n_entries = 0;
  int64_t dim = 0;
  const float* bias = nullptr;     // [n_experts, dim] f32
  const float* weights = nullptr;  // [n_entries] f32; null = 1
};

// out = 0 + the row's k entries, ascending, + shared; in f32.
struct SumExpertsParams {
  const float* x = nullptr;          // [n_rows * k, dim] f32, by entry
  const int32_t* entries = nullptr;  // [n_rows, k]
  int64_t n_rows = 0;
  int64_t k = 0;
  int64_t dim = 0;
  // [n_rows, dim] f32; null = none.
  const float* shared = nullptr;
  float* out = nullptr;  // [n_rows, dim] f32
};

void ChooseExpertsRef(const ChooseExpertsParams& params);
void ChooseSoftmaxExpertsRef(const ChooseSoftmaxExpertsParams& params);
void GroupExpertsRef(const GroupExpertsParams& params);
void BiasExpertsRef(const BiasExpertsParams& params);
void SumExpertsRef(const SumExpertsParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_EXPERTS_H_
