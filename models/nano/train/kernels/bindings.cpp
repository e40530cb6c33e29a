// SPDX-License-Identifier: Apache-2.0
#include <sys/syscall.h>
#include <torch/extension.h>
#include <unistd.h>

using at::Tensor;
std::vector<Tensor> attention(Tensor q, Tensor k, Tensor v, int64_t window,
                              double scale);
std::vector<Tensor> attention_backward(Tensor go, Tensor q, Tensor k, Tensor v,
                                       Tensor o, Tensor lse, int64_t window,
                                       double scale);
Tensor mlp(Tensor x, Tensor wgu, Tensor wd);
std::vector<Tensor> mlp_backward(Tensor gy, Tensor x, Tensor wgu, Tensor wd);

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
  syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA);
  m.def("attention", &attention);
  m.def("attention_backward", &attention_backward);
  m.def("mlp", &mlp);
  m.def("mlp_backward", &mlp_backward);
}
