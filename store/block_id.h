// SPDX-License-Identifier: Apache-2.0
//
// Identity: keyed BLAKE2b-256 over what makes a block this block. The key is
// the tenant's secret, so equal tokens of two tenants never give equal ids.
// Every input field is length- or width-delimited; docs/FORMAT.md gives the
// exact bytes and golden values.

#ifndef TORPOR_STORE_BLOCK_ID_H_
#define TORPOR_STORE_BLOCK_ID_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/types.h"

namespace torpor::store {

// 32 random bytes per tenant, kept in the environment.
using TenantSecret = Hash256;

// Incremental keyed BLAKE2b-256. Not thread-safe.
class KeyedHash {
 public:
  explicit KeyedHash(const TenantSecret& secret);
  // The same without a key, for what leaves this store.
  static KeyedHash Unkeyed();
  ~KeyedHash();
  KeyedHash(KeyedHash&&) noexcept;
  KeyedHash& operator=(KeyedHash&&) noexcept;

  void Update(std::span<const uint8_t> bytes);
  // The digest; the object is spent afterwards.
  Hash256 Finish();

 private:
  struct State;
  KeyedHash();
  std::unique_ptr<State> state_;
};

// Unkeyed BLAKE2b-256 of some bytes.
Hash256 Blake2b(std::span<const uint8_t> bytes);

// Hash of the empty chain of a model: where every token chain begins.
Hash256 ChainRoot(const TenantSecret& secret, const Hash256& fingerprint);

// Hash of a chain that continues `parent` by `tokens`, whose first token stands
// at `first_pos`. Spans are clipped to the tokens by the caller.
Hash256 ChainHash(const TenantSecret& secret, const Hash256& parent,
                  uint64_t first_pos, const TokenRun& tokens);

struct BlockIdentity {
  Hash256 fingerprint{};
  // All zeros for the first block.
  Hash256 parent_id{};
  // ChainHash up to and with this block.
  Hash256 chain_hash{};
  Hash256 payload_digest{};
  std::vector<ProvenanceRange> provenance;
  std::vector<Floor> floors;
};

Hash256 BlockId(const TenantSecret& secret, const BlockIdentity& identity);

// The spans of `spans` that overlap [begin, end), cut to it. A bidirectional
// span stays whole: its tokens mean what all of it says.
std::vector<ExtraKeySpan> ClipSpans(std::span<const ExtraKeySpan> spans,
                                    uint64_t begin, uint64_t end);

}  // namespace torpor::store

#endif  // TORPOR_STORE_BLOCK_ID_H_
