// SPDX-License-Identifier: Apache-2.0

#include "store/block_id.h"

#include <sodium.h>

#include <algorithm>
#include <string>

#include "store/codec.h"

namespace torpor::store {
namespace {

// Domain separation: the first byte of every keyed input.
constexpr uint8_t kDomainChainRoot = 1;
constexpr uint8_t kDomainChain = 2;
constexpr uint8_t kDomainBlock = 3;

Hash256 KeyedHashOf(const TenantSecret& secret, const ByteWriter& input) {
  KeyedHash hash(secret);
  hash.Update(AsBytes(input.str()));
  return hash.Finish();
}

}  // namespace

struct KeyedHash::State {
  crypto_generichash_state blake;
};

KeyedHash::KeyedHash() : state_(std::make_unique<State>()) {}
KeyedHash::KeyedHash(const TenantSecret& secret) : KeyedHash() {
  crypto_generichash_init(&state_->blake, secret.data(), secret.size(),
                          sizeof(Hash256));
}
KeyedHash KeyedHash::Unkeyed() {
  KeyedHash hash;
  crypto_generichash_init(&hash.state_->blake, nullptr, 0, sizeof(Hash256));
  return hash;
}
KeyedHash::~KeyedHash() = default;
KeyedHash::KeyedHash(KeyedHash&&) noexcept = default;
KeyedHash& KeyedHash::operator=(KeyedHash&&) noexcept = default;

void KeyedHash::Update(std::span<const uint8_t> bytes) {
  crypto_generichash_update(&state_->blake, bytes.data(), bytes.size());
}

Hash256 KeyedHash::Finish() {
  Hash256 out;
  crypto_generichash_final(&state_->blake, out.data(), out.size());
  return out;
}

Hash256 Blake2b(std::span<const uint8_t> bytes) {
  Hash256 out;
  crypto_generichash(out.data(), out.size(), bytes.data(), bytes.size(),
                     nullptr, 0);
  return out;
}

Hash256 ChainRoot(const TenantSecret& secret, const Hash256& fingerprint) {
  ByteWriter w;
  w.Int(kDomainChainRoot);
  w.Raw(fingerprint);
  return KeyedHashOf(secret, w);
}

Hash256 ChainHash(const TenantSecret& secret, const Hash256& parent,
                  uint64_t first_pos, const TokenRun& tokens) {
  ByteWriter w;
  w.Int(kDomainChain);
  w.Raw(parent);
  w.Int(first_pos);
  w.Int(static_cast<uint32_t>(tokens.ids.size()));
  for (const uint32_t id : tokens.ids) w.Int(id);
  w.Int(static_cast<uint32_t>(tokens.spans.size()));
  for (const ExtraKeySpan& span : tokens.spans) {
    w.Int(span.begin);
    w.Int(span.end);
    w.Int(static_cast<uint8_t>(span.bidirectional));
    w.Bytes(span.key);
  }
  return KeyedHashOf(secret, w);
}

Hash256 BlockId(const TenantSecret& secret, const BlockIdentity& identity) {
  ByteWriter w;
  w.Int(kDomainBlock);
  w.Raw(identity.fingerprint);
  w.Raw(identity.parent_id);
  w.Raw(identity.chain_hash);
  w.Raw(identity.payload_digest);
  w.Int(static_cast<uint32_t>(identity.provenance.size()));
  for (const ProvenanceRange& range : identity.provenance) {
    w.Int(range.begin);
    w.Int(range.end);
    w.Int(static_cast<uint8_t>(range.provenance));
  }
  w.Int(static_cast<uint32_t>(identity.floors.size()));
  for (const Floor& floor : identity.floors) {
    w.Int(floor.resume_at);
    w.Int(floor.replay_start);
    w.Int(floor.layer_begin);
  }
  return KeyedHashOf(secret, w);
}

std::vector<ExtraKeySpan> ClipSpans(std::span<const ExtraKeySpan> spans,
                                    uint64_t begin, uint64_t end) {
  std::vector<ExtraKeySpan> out;
  if (begin >= end) return out;
  for (const ExtraKeySpan& span : spans) {
    if (span.end <= begin || span.begin >= end) continue;
    out.push_back(span);
    if (span.bidirectional) continue;
    out.back().begin = std::max(span.begin, begin);
    out.back().end = std::min(span.end, end);
  }
  return out;
}

}  // namespace torpor::store
