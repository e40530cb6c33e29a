// SPDX-License-Identifier: Apache-2.0

#include "service/row_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/mutex.h"

namespace torpor::service {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr uint32_t kPieceTag =
    WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kDataTag =
    WireFormatLite::MakeTag(2, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

absl::Status Malformed() {
  return absl::InvalidArgumentError("row message: not a protobuf message");
}

// Row buffers are all of one size and go around: fresh ones would cost page
// faults for every message.
class BufferCache {
 public:
  uint8_t* Take() {
    MutexLock lock(&mu_);
    if (!idle_.empty()) {
      uint8_t* buffer = idle_.back();
      idle_.pop_back();
      return buffer;
    }
    return static_cast<uint8_t*>(
        std::aligned_alloc(64, kMaxRowBytesPerMessage));
  }
  void Return(uint8_t* buffer) {
    {
      MutexLock lock(&mu_);
      if (idle_.size() < kKept) {
        idle_.push_back(buffer);
        return;
      }
    }
    std::free(buffer);
  }

 private:
  static constexpr size_t kKept = 32;
  Mutex mu_;
  std::vector<uint8_t*> idle_ ABSL_GUARDED_BY(mu_);
};

BufferCache& Buffers() {
  static auto* const cache = new BufferCache;
  return *cache;
}

void ReturnBuffer(void* buffer) {
  Buffers().Return(static_cast<uint8_t*>(buffer));
}

// The `n` bytes at `offset` of a message, in one piece.
void TakeData(RowMessage* out, uint64_t offset, size_t n) {
  uint64_t at = 0;
  for (const grpc::Slice& slice : out->slices) {
    if (offset >= at && offset + n <= at + slice.size()) {
      out->data = {slice.begin() + (offset - at), n};
      return;
    }
    at += slice.size();
  }
  // The rows lie across slices: join them.
  out->owned.resize(n);
  size_t copied = 0;
  at = 0;
  for (const grpc::Slice& slice : out->slices) {
    const uint64_t from = std::max<uint64_t>(offset + copied, at);
    const uint64_t to = std::min<uint64_t>(offset + n, at + slice.size());
    if (from < to) {
      std::memcpy(out->owned.data() + copied, slice.begin() + (from - at),
                  to - from);
      copied += to - from;
    }
    at += slice.size();
  }
  out->data = out->owned;
}

}  // namespace

absl::StatusOr<RowMessage> DecodeRowMessage(const grpc::ByteBuffer& buffer) {
  RowMessage out;
  if (!buffer.Dump(&out.slices).ok()) return Malformed();
  grpc::ByteBuffer copy = buffer;  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  CodedInputStream in(&reader);
  // A field that is longer than what follows would end with the message.
  const auto left = [&] {
    return buffer.Length() - static_cast<size_t>(in.CurrentPosition());
  };
  StringOutputStream rest_stream(&out.rest);
  {
    CodedOutputStream rest(&rest_stream);
    for (;;) {
      const uint32_t tag = in.ReadTag();
      if (tag == 0) break;
      if (tag == kPieceTag) {
        uint32_t n = 0;
        if (!in.ReadVarint32(&n) || n > left()) return Malformed();
        const auto limit = in.PushLimit(static_cast<int>(n));
        v1::RowPiece piece;
        if (!piece.MergeFromCodedStream(&in) || !in.ConsumedEntireMessage()) {
          return Malformed();
        }
        in.PopLimit(limit);
        out.pieces.push_back(std::move(piece));
      } else if (tag == kDataTag) {
        uint32_t n = 0;
        if (!in.ReadVarint32(&n) || n > left()) return Malformed();
        const auto offset = static_cast<uint64_t>(in.CurrentPosition());
        if (!in.Skip(static_cast<int>(n))) return Malformed();
        TakeData(&out, offset, n);
      } else if (!WireFormatLite::SkipField(&in, tag, &rest)) {
        return Malformed();
      }
    }
    if (!in.ConsumedEntireMessage()) return Malformed();
  }
  return out;
}

RowMessageBuilder::RowMessageBuilder() = default;
RowMessageBuilder::~RowMessageBuilder() {
  if (data_ != nullptr) Buffers().Return(data_);
}

std::span<uint8_t> RowMessageBuilder::Append(size_t bytes) {
  if (data_ == nullptr) data_ = Buffers().Take();
  assert(size_ + bytes <= kMaxRowBytesPerMessage);
  const std::span<uint8_t> out(data_ + size_, bytes);
  size_ += bytes;
  return out;
}

void RowMessageBuilder::Describe(const v1::RowPiece& piece) {
  pieces_.push_back(piece);
}

grpc::ByteBuffer RowMessageBuilder::Finish(
    const google::protobuf::MessageLite* rest) {
  std::string head;
  {
    StringOutputStream stream(&head);
    CodedOutputStream out(&stream);
    if (rest != nullptr) rest->SerializeToCodedStream(&out);
    for (const v1::RowPiece& piece : pieces_) {
      out.WriteTag(kPieceTag);
      out.WriteVarint32(static_cast<uint32_t>(piece.ByteSizeLong()));
      piece.SerializeToCodedStream(&out);
    }
    if (size_ > 0) {
      out.WriteTag(kDataTag);
      out.WriteVarint32(static_cast<uint32_t>(size_));
    }
  }
  std::vector<grpc::Slice> slices;
  slices.emplace_back(head);
  if (size_ > 0) {
    slices.emplace_back(data_, size_, &ReturnBuffer);
    data_ = nullptr;
  }
  size_ = 0;
  pieces_.clear();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer EncodeMessage(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status DecodeMessage(const grpc::ByteBuffer& buffer,
                           google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy = buffer;
  grpc::ProtoBufferReader reader(&copy);
  if (!message->ParseFromZeroCopyStream(&reader)) return Malformed();
  return absl::OkStatus();
}

}  // namespace torpor::service
