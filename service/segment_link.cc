// SPDX-License-Identifier: Apache-2.0

#include "service/segment_link.h"

#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/device_segment.h"
#include "service/fd_socket.h"
#include "service/shm_segment.h"

namespace torpor::service {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{5'000};

}  // namespace

std::string UnixPathOf(const std::string& address) {
  for (const char* prefix : {"unix://", "unix:"}) {
    if (absl::StartsWith(address, prefix)) {
      return address.substr(std::char_traits<char>::length(prefix));
    }
  }
  return "";
}

absl::StatusOr<std::unique_ptr<SegmentLink>> SegmentLink::Take(
    const std::string& listen_path, const v1::DataPlaneChoice& choice,
    Flow flow, const std::shared_ptr<const kernels::CudaContext>& cuda) {
  const bool on_device = choice.plane() == v1::DATA_PLANE_CUDA_IPC;
  const kernels::CudaHandleKind kind =
      choice.cuda_handle_kind() == v1::CUDA_HANDLE_KIND_LEGACY
          ? kernels::CudaHandleKind::kLegacy
          : kernels::CudaHandleKind::kFd;
  TORPOR_ASSIGN_OR_RETURN(UniqueFd fd, ConnectUnix(FdSocketPath(listen_path)));
  const std::string& nonce = choice.nonce();
  if (send(fd.get(), nonce.data(), nonce.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(nonce.size())) {
    return absl::UnavailableError("descriptor socket: closed by the daemon");
  }
  TORPOR_ASSIGN_OR_RETURN(
      DescriptorAnswer answer,
      ReceiveDescriptors(fd.get(),
                         on_device ? DeviceSegment::DescriptorsOf(kind) : 2,
                         kAnswerLimit));
  if (answer.code != 0) {
    return absl::Status(
        static_cast<absl::StatusCode>(answer.code),
        absl::StrFormat("descriptor socket of %s: the segment was refused",
                        listen_path));
  }
  std::unique_ptr<Segment> memory;
  if (on_device) {
    TORPOR_ASSIGN_OR_RETURN(
        memory, DeviceSegment::Open(cuda, kind, std::move(answer.descriptors),
                                    choice.segment_bytes()));
  } else {
    TORPOR_ASSIGN_OR_RETURN(memory,
                            ShmSegment::Map(std::move(answer.descriptors[0]),
                                            std::move(answer.descriptors[1]),
                                            choice.segment_bytes(), flow));
  }
  return std::unique_ptr<SegmentLink>(
      new SegmentLink(std::move(fd), std::move(memory), nonce, flow));
}

bool SegmentLink::lost() const { return HungUp(connection_.get()); }

}  // namespace torpor::service
