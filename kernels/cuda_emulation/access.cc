// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_emulation/access.h"

#include <link.h>

#include <string>
#include <vector>

#include "kernels/cuda_emulation/block.h"
#include "kernels/cuda_emulation/device_memory.h"

namespace torpor::kernels::emulation {
namespace {

struct Access {
  uintptr_t at;
  size_t n;
  AccessKind kind;
  const void* pc;
};

std::string Verb(AccessKind kind, const char* ending) {
  switch (kind) {
    case AccessKind::kRead:
      return std::string("read") + ending;
    case AccessKind::kWrite:
      return *ending == '\0' ? "wrote" : std::string("write") + ending;
    case AccessKind::kAtomic:
      return *ending == '\0' ? "updated atomically" : "updates atomically";
  }
  return "";
}

std::string What(const Access& access) {
  return Verb(access.kind, "s") + " " + std::to_string(access.n) + " bytes";
}

// "buffer 3+16"; what lies before the buffer has a negative offset.
std::string At(const std::string& name, uintptr_t begin, uintptr_t at) {
  return name + (at < begin ? "-" + std::to_string(begin - at)
                            : "+" + std::to_string(at - begin));
}

// Reports an access that must not happen; false.
bool Refuse(Thread& thread, Fault fault, const Access& access,
            const std::string& text) {
  thread.runner->Report(fault, thread, What(access) + " " + text, access.pc);
  return false;
}

// Segments of the program that are not writable: constants of kernels.
bool IsConstant(uintptr_t address, size_t n) {
  struct Range {
    uintptr_t begin, end;
  };
  static const auto* const ranges = [] {
    auto* found = new std::vector<Range>;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* out) {
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            const bool is_constant =
                header.p_type == PT_GNU_RELRO ||
                (header.p_type == PT_LOAD && (header.p_flags & PF_W) == 0);
            if (!is_constant) continue;
            const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
            static_cast<std::vector<Range>*>(out)->push_back(
                {begin, begin + header.p_memsz});
          }
          return 0;
        },
        found);
    return found;
  }();
  for (const Range& range : *ranges) {
    if (address >= range.begin && address + n <= range.end) return true;
  }
  return false;
}

std::string Since(const Conflict& conflict, const Thread& thread) {
  const Toucher& other = conflict.other;
  const std::string verb = Verb(conflict.other_kind, "");
  if (conflict.kind == Conflict::Kind::kBlockRace) {
    if (other.block == thread.who.block) {
      return "which several blocks " + verb + " in this launch";
    }
    return "which block " + std::to_string(other.block) + " " + verb +
           " in this launch";
  }
  uint32_t lanes = other.lanes;
  if (other.warp == thread.who.warp) lanes &= ~(1u << thread.who.lane);
  if (lanes == 0) return "which several threads " + verb + " since the barrier";
  const auto lane = static_cast<uint32_t>(__builtin_ctz(lanes));
  return "which " + thread.runner->Name(other.warp * kWarpLanes + lane) + " " +
         verb + " since the barrier";
}

void Tell(Thread& thread, const Access& access, const Conflict& conflict,
          const std::string& name, uintptr_t begin) {
  const std::string place = At(name, begin, access.at);
  BlockRunner& runner = *thread.runner;
  switch (conflict.kind) {
    case Conflict::Kind::kNone:
      return;
    case Conflict::Kind::kUninitialised:
      runner.Report(Fault::kUninitialised, thread,
                    What(access) + " at " + place +
                        ", which nobody wrote since it was made",
                    access.pc);
      return;
    case Conflict::Kind::kRace:
    case Conflict::Kind::kBlockRace:
      runner.Report(
          conflict.kind == Conflict::Kind::kRace ? Fault::kRace
                                                 : Fault::kBlockRace,
          thread,
          What(access) + " at " + place + ", " + Since(conflict, thread),
          access.pc);
      return;
  }
}

bool CheckShared(Thread& thread, const Access& access) {
  BlockSharedMemory& shared = thread.runner->shared();
  const BlockSharedMemory::Part& part = shared.Nearest(access.at);
  const auto begin = reinterpret_cast<uintptr_t>(part.begin);
  const size_t offset = access.at - begin;
  if (offset >= part.bytes || access.n > part.bytes - offset) {
    return Refuse(thread, Fault::kOutOfBounds, access,
                  "at " + At(part.name, begin, access.at) + ", which has " +
                      std::to_string(part.bytes) + " bytes");
  }
  const Conflict conflict =
      shared.Touch(access.at, access.n, access.kind, thread.who);
  if (conflict.kind != Conflict::Kind::kNone) {
    Tell(thread, access, conflict, part.name, begin);
  }
  return true;
}

bool CheckDevice(Thread& thread, const Access& access) {
  DeviceMemory& memory = DeviceMemory::Get();
  const DeviceMemory::Buffer* buffer = memory.Find(access.at);
  if (buffer == nullptr) {
    return Refuse(thread, Fault::kOutOfBounds, access, "in no device buffer");
  }
  const std::string& name = buffer->name;
  const uintptr_t begin = buffer->begin;
  const size_t offset = access.at - begin;
  if (offset >= buffer->bytes || access.n > buffer->bytes - offset) {
    return Refuse(thread, Fault::kOutOfBounds, access,
                  "at " + At(name, begin, access.at) + ", which has " +
                      std::to_string(buffer->bytes) + " bytes");
  }
  if (!buffer->is_live) {
    return Refuse(thread, Fault::kUseAfterFree, access,
                  "at " + At(name, begin, access.at) + ", which was freed");
  }
  Conflict conflict;
  if (thread.runner->launch().schedule.n_host_threads > 1) {
    MutexLock lock(&memory.touch_mutex());
    conflict = buffer->shadow->Touch(offset, access.n, access.kind, thread.who);
  } else {
    conflict = buffer->shadow->Touch(offset, access.n, access.kind, thread.who);
  }
  if (conflict.kind != Conflict::Kind::kNone) {
    Tell(thread, access, conflict, name, begin);
  }
  return true;
}

bool CheckOther(Thread& thread, const Access& access) {
  const KernelCall& call = thread.runner->launch().call;
  const size_t offset = access.at - reinterpret_cast<uintptr_t>(call.call);
  const bool is_argument =
      offset < call.call_bytes && access.n <= call.call_bytes - offset;
  if (is_argument || IsConstant(access.at, access.n)) {
    if (access.kind == AccessKind::kRead) return true;
    return Refuse(thread, Fault::kReadOnly, access,
                  is_argument ? "of the kernel's arguments" : "of constants");
  }
  return Refuse(thread, Fault::kOutOfBounds, access,
                "outside device buffers, shared memory and its own stack");
}

// False when the access must not happen.
bool Check(Thread& thread, const Access& access, size_t alignment) {
  const size_t past = access.at % alignment;
  if (past != 0) {
    return Refuse(thread, Fault::kMisaligned, access,
                  "at an address that is " + std::to_string(past) +
                      " past a multiple of " + std::to_string(alignment));
  }
  if (thread.runner->shared().Contains(access.at)) {
    return CheckShared(thread, access);
  }
  if (DeviceMemory::Get().Contains(access.at)) {
    return CheckDevice(thread, access);
  }
  return CheckOther(thread, access);
}

}  // namespace

void CheckAccess(const void* at, size_t n, AccessKind kind, size_t alignment,
                 const void* pc) {
  Thread* thread = running;
  if (thread == nullptr || n == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (thread->fiber.OnStack(address)) return;
  // Nothing that owns memory is left on the stack when it is dropped.
  if (!Check(*thread, {address, n, kind, pc}, alignment)) {
    thread->runner->Drop(*thread);
  }
}

}  // namespace torpor::kernels::emulation
