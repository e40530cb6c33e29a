// SPDX-License-Identifier: Apache-2.0
//
// Random specs for differential_test.cc: mostly sensible, sometimes stale,
// repeated or impossible. Few names, few token values and few writers, so that
// sessions meet.

#ifndef TORPOR_TESTS_STORE_DIFFERENTIAL_SPEC_H_
#define TORPOR_TESTS_STORE_DIFFERENTIAL_SPEC_H_

#include <algorithm>
#include <string>
#include <vector>

#include "tests/store/store_fixture.h"
#include "tests/testing/random.h"

namespace torpor::store {

class DifferentialSpecs {
 public:
  static constexpr uint32_t kSnapshotRowBytes = 50;

  explicit DifferentialSpecs(testing::Random* random) : random_(*random) {}

  SessionKey AnyKey() {
    const char* const names[] = {"s", "s1", "s2", "t", "u"};
    return {random_.OneIn(3) ? 1u : 0u, names[random_.Between(0, 4)]};
  }

  std::string AnyOperation() {
    // Repeated now and then, by the same verb or by another.
    if (random_.OneIn(8)) {
      return "op" + std::to_string(random_.Between(0, next_operation_));
    }
    return "op" + std::to_string(next_operation_++);
  }

  // Mostly the current one.
  uint64_t AnyVersion(const SessionInfo* now) {
    const uint64_t current = now != nullptr ? now->version : 0;
    if (!random_.OneIn(10)) return current;
    return random_.Between(0, current + 1);
  }

  uint64_t AnyCut(const SessionInfo& now) {
    if (random_.OneIn(25)) return now.n_tokens + random_.Between(1, 3);
    if (random_.OneIn(3)) {
      // Around the ends of blocks and of rows.
      const uint64_t at = random_.Between(0, now.n_tokens / 16) * 16;
      return std::min(at + random_.Between(0, 2), now.n_tokens);
    }
    return random_.Between(0, now.n_tokens);
  }

  MutateSpec AnyMutation(const SessionKey& key, const SessionInfo* now) {
    return {key, AnyVersion(now), AnyOperation()};
  }

  // Ids that often agree with those of other runs at the same place.
  TokenRun AnyTokens(uint64_t first, uint64_t n) {
    TokenRun run = Tokens(first, n, random_.OneIn(3) ? 1 : 0);
    if (n > 0 && random_.OneIn(4)) {
      run.ids[random_.Between(0, n - 1)] = 1'000'000;
    }
    uint64_t at = first;
    while (random_.OneIn(2)) {
      ExtraKeySpan span;
      span.begin = at + random_.Between(0, 8);
      span.end = span.begin + random_.Between(1, 20);
      if (span.end > first + n) break;
      span.key = random_.OneIn(2) ? "a" : "bb";
      span.bidirectional = random_.OneIn(3);
      at = span.end;
      run.spans.push_back(span);
    }
    return run;
  }

  // A prompt that begins like `stored`.
  TokenRun LikeThis(TokenRun stored) {
    const uint64_t n = stored.ids.size();
    if (n > 0 && random_.OneIn(3)) {
      stored.ids[random_.Between(0, n - 1)] ^= 1;
    }
    if (random_.OneIn(3)) {
      const TokenRun more = AnyTokens(n, random_.Between(1, 20));
      stored.ids.insert(stored.ids.end(), more.ids.begin(), more.ids.end());
    } else if (n > 0 && random_.OneIn(2)) {
      stored.ids.resize(random_.Between(0, n));
      std::erase_if(stored.spans, [&](const ExtraKeySpan& span) {
        return span.end > stored.ids.size();
      });
    }
    if (!stored.spans.empty() && random_.OneIn(4)) {
      stored.spans[random_.Between(0, stored.spans.size() - 1)].key = "other";
    }
    return stored;
  }

  SuspendSpec AnySuspend(const SessionKey& key, const SessionInfo* now) {
    SuspendSpec spec;
    spec.session = key;
    spec.expected_version = AnyVersion(now);
    spec.operation_id = AnyOperation();
    spec.model = "model" + std::to_string(random_.Between(0, 1));
    spec.numerics_id = "cpu/" + std::to_string(random_.Between(0, 1));
    spec.holder = "holder of " + spec.operation_id;
    spec.layout = SmallLayout();
    if (random_.OneIn(60)) spec.layout.fingerprint[0] ^= 1;
    const uint64_t n = now != nullptr ? now->n_tokens : 0;
    spec.tokens_kept = now != nullptr && random_.OneIn(4) ? AnyCut(*now) : n;
    if (spec.expected_version == 0) spec.tokens_kept = 0;
    if (n > 150) spec.tokens_kept = std::min<uint64_t>(spec.tokens_kept, 40);
    const uint64_t n_new = random_.OneIn(8) ? 0 : random_.Between(1, 50);
    spec.new_tokens = AnyTokens(spec.tokens_kept, n_new);
    const uint64_t end = spec.tokens_kept + n_new;
    spec.kv_len = end;
    if (random_.OneIn(3)) spec.kv_len -= std::min(end, random_.Between(1, 20));
    const uint64_t rows_kept =
        now != nullptr ? std::min(now->kv_len, spec.tokens_kept) : 0;
    AnyOrigin(rows_kept, &spec);
    if (random_.OneIn(6)) {
      spec.session_class =
          random_.OneIn(2) ? SessionClass::kCache : SessionClass::kDurable;
    }
    if (random_.OneIn(6)) spec.ttl_seconds = random_.Between(0, 90);
    if (random_.OneIn(6)) {
      spec.labels["k" + std::to_string(random_.Between(0, 2))] = "v";
    }
    if (spec.kv_len > 0 && random_.OneIn(6)) {
      const uint64_t begin = random_.Between(0, spec.kv_len - 1);
      spec.snapshot = {{2, kSnapshotRowBytes, {begin, spec.kv_len}}};
    }
    return spec;
  }

  std::vector<Attachment> AnyAttachments() {
    std::vector<Attachment> out;
    const std::string text = std::to_string(random_.Between(0, 99));
    if (random_.OneIn(2)) out.push_back(Bytes(AttachmentKind::kWitness, text));
    if (random_.OneIn(2)) {
      out.push_back(Bytes(AttachmentKind::kClientState, "c" + text));
    }
    if (random_.OneIn(6)) {
      out.push_back(Bytes(AttachmentKind::kOpenGroups, "o" + text));
    }
    return out;
  }

  static absl::Status PutSnapshot(SuspendTicket* ticket,
                                  const SuspendSpec& spec, uint64_t writer) {
    for (const SnapshotSlot& slot : spec.snapshot) {
      const auto bytes =
          Rows(writer, 1000 + slot.id, slot.rows, slot.row_bytes);
      RowPiece piece = Piece(slot.id, slot.rows, bytes);
      piece.snapshot = true;
      TORPOR_RETURN_IF_ERROR(ticket->Put(piece, bytes));
    }
    return absl::OkStatus();
  }

  TouchSpec AnyTouch(const SessionKey& key) {
    TouchSpec spec;
    spec.session = key;
    if (random_.OneIn(3)) {
      spec.session_class =
          random_.OneIn(2) ? SessionClass::kCache : SessionClass::kDurable;
    }
    if (random_.OneIn(3)) spec.ttl_seconds = random_.Between(0, 90);
    if (random_.OneIn(3)) spec.pin_seconds = random_.Between(0, 90);
    if (random_.OneIn(2)) {
      spec.labels["k" + std::to_string(random_.Between(0, 2))] =
          random_.OneIn(3) ? "" : "w";
    }
    return spec;
  }

 private:
  // Provenance and floors of the rows that follow `rows_kept`.
  void AnyOrigin(uint64_t rows_kept, SuspendSpec* spec) {
    for (uint64_t at = rows_kept; at < spec->kv_len;) {
      const uint64_t end = std::min(spec->kv_len, at + random_.Between(1, 60));
      if (!random_.OneIn(4)) {
        spec->provenance.push_back(
            {at, end, static_cast<Provenance>(random_.Between(1, 4))});
      }
      at = end;
    }
    if (rows_kept > 0 && random_.OneIn(4)) {
      const uint64_t replay = random_.Between(0, rows_kept - 1);
      spec->floors = {
          {rows_kept, replay, static_cast<uint32_t>(random_.Between(0, 3))}};
      if (random_.OneIn(10)) spec->floors[0].resume_at -= 1;
    }
  }

  testing::Random& random_;
  uint64_t next_operation_ = 0;
};

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_DIFFERENTIAL_SPEC_H_
