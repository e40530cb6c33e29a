// SPDX-License-Identifier: Apache-2.0
//
// Messages that carry rows, without copying the rows through protobuf: fields 1
// (RowPiece, repeated) and 2 (data) of every such message are read and written
// here, the other fields as ordinary messages. The bytes are those of the
// protobuf wire format, so a client with generated code sees nothing of it.

#ifndef TORPOR_SERVICE_ROW_CODEC_H_
#define TORPOR_SERVICE_ROW_CODEC_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "torpor/v1/types.pb.h"

namespace torpor::service {

// Rows of one message stay at or below this; frames are a little more.
inline constexpr size_t kMaxRowBytesPerMessage = size_t{1} << 20;

// A decoded message: its pieces, its rows, and everything else.
struct RowMessage {
  std::vector<v1::RowPiece> pieces;
  // Contiguous; points into `owned` or into the buffer's slice.
  std::span<const uint8_t> data;

  // The bytes of fields beyond 1 and 2, as a message of their own.
  std::string rest;

  // Keeps `data` alive.
  std::vector<grpc::Slice> slices;
  std::vector<uint8_t> owned;
};

// kInvalidArgument when the bytes are no such message.
absl::StatusOr<RowMessage> DecodeRowMessage(const grpc::ByteBuffer& buffer);

// Rows gathered for one outgoing message. Their memory is handed to gRPC and
// freed when the transport has let go of it.
class RowMessageBuilder {
 public:
  RowMessageBuilder();
  ~RowMessageBuilder();
  RowMessageBuilder(const RowMessageBuilder&) = delete;
  RowMessageBuilder& operator=(const RowMessageBuilder&) = delete;

  [[nodiscard]] size_t data_bytes() const { return size_; }
  [[nodiscard]] bool empty() const { return pieces_.empty(); }

  // Room for a piece of `bytes`, to be filled before the next call; at most
  // kMaxRowBytesPerMessage in all.
  std::span<uint8_t> Append(size_t bytes);
  // Describes the bytes of the last Append.
  void Describe(const v1::RowPiece& piece);

  // The message with these fields added (may be null), and a fresh start.
  grpc::ByteBuffer Finish(const google::protobuf::MessageLite* rest);

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::vector<v1::RowPiece> pieces_;
};

// A message without rows.
grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message);
// kInvalidArgument when the bytes do not parse.
absl::Status DecodeMessage(const grpc::ByteBuffer& buffer,
                           google::protobuf::MessageLite* message);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_ROW_CODEC_H_
