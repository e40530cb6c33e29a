// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/source_line.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>

namespace torpor::kernels::emulation {
namespace {

std::string FirstLine(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  char line[512] = "";
  if (std::fgets(line, sizeof(line), pipe) == nullptr) line[0] = '\0';
  pclose(pipe);
  std::string out(line);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

std::string SourceLine(const void* pc) {
  Dl_info info;
  if (dladdr(pc, &info) == 0) return "";
  char offset[32];
  // One back: the line of the call, not of what follows it.
  std::snprintf(
      offset, sizeof(offset), "%#lx",
      static_cast<unsigned long>(reinterpret_cast<uintptr_t>(pc) - 1 -
                                 reinterpret_cast<uintptr_t>(info.dli_fbase)));
  const std::string module = info.dli_fname;
  std::string line;
  if (module.find('\'') == std::string::npos) {
    line = FirstLine("addr2line -s -e '" + module + "' " + offset +
                     " 2>/dev/null");
  }
  // "(discriminator 2)" may follow.
  line = line.substr(0, line.find(' '));
  if (line.empty() || line[0] == '?') line = module + "+" + offset;
  return line;
}

}  // namespace torpor::kernels::emulation
