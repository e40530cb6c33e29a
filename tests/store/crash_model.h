// SPDX-License-Identifier: Apache-2.0
//
// What the parent of crash_test.cc knows of the child's sessions: for each
// token who wrote it, which fixes every byte that a read must give.

#ifndef TORPOR_TESTS_STORE_CRASH_MODEL_H_
#define TORPOR_TESTS_STORE_CRASH_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/store/store_fixture.h"

namespace torpor::store {

// One verb of the child, as it stands in its reports.
struct CrashVerb {
  enum class Kind { kSuspend, kFork, kRewind, kErase };
  Kind kind = Kind::kSuspend;
  std::string id;
  // Fork: the session it is a fork of.
  std::string source;
  // The version that `id` must have; 0 = it does not exist.
  uint64_t expected = 0;
  // Tokens that stay.
  uint64_t kept = 0;
  // Suspend: tokens that follow, and who writes them.
  uint64_t n_new = 0;
  uint32_t writer = 0;

  [[nodiscard]] std::string ToLine() const {
    std::ostringstream out;
    out << static_cast<int>(kind) << ' ' << id << ' '
        << (source.empty() ? "-" : source) << ' ' << expected << ' ' << kept
        << ' ' << n_new << ' ' << writer;
    return out.str();
  }
  static CrashVerb FromLine(std::istream& in) {
    CrashVerb verb;
    int kind = 0;
    in >> kind >> verb.id >> verb.source >> verb.expected >> verb.kept >>
        verb.n_new >> verb.writer;
    verb.kind = static_cast<Kind>(kind);
    return verb;
  }
};

// A version of a session.
struct CrashSession {
  uint64_t version = 0;
  // Per token: who wrote its id, and the rows that it completes.
  std::vector<uint32_t> writers;
  // Empty = none.
  std::string witness;

  friend bool operator==(const CrashSession&, const CrashSession&) = default;

  [[nodiscard]] bool SameContent(const CrashSession& other) const {
    return writers == other.writers && witness == other.witness;
  }
};

inline std::string WitnessOf(uint32_t writer) {
  return "witness of " + std::to_string(writer);
}

// Absent sessions are not in the map.
using CrashModel = std::map<std::string, CrashSession>;

// What session `verb.id` is after the verb; nullopt = it is gone. The version
// is not known here.
inline std::optional<CrashSession> After(const CrashModel& before,
                                         const CrashVerb& verb) {
  using Kind = CrashVerb::Kind;
  if (verb.kind == Kind::kErase) return std::nullopt;
  CrashSession session;
  const std::string& base = verb.kind == Kind::kFork ? verb.source : verb.id;
  if (const auto it = before.find(base); it != before.end()) {
    session = it->second;
  }
  // A cut leaves the witness of the old cut behind.
  if (verb.kept < session.writers.size()) session.witness.clear();
  session.writers.resize(verb.kept);
  if (verb.kind == Kind::kSuspend) {
    session.writers.insert(session.writers.end(), verb.n_new, verb.writer);
    session.witness = WitnessOf(verb.writer);
  }
  return session;
}

// Every byte that a session of the model must read as.
inline Content ContentOf(const CrashSession& session) {
  Content content;
  const uint64_t n = session.writers.size();
  for (uint64_t pos = 0; pos < n; ++pos) {
    content.tokens.ids.push_back(
        Tokens(pos, 1, session.writers[pos]).ids.front());
  }
  const RecordLayout layout = SmallLayout();
  for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
    const SlotSpec& spec = layout.slots[slot];
    std::vector<uint8_t> rows;
    for (uint64_t row = 0; row < RowsOf(spec, n); ++row) {
      // The token that closes a group brings its row.
      const uint32_t writer =
          session.writers[(row + 1) * spec.tokens_per_row - 1];
      const auto one = RowBytes(writer, slot, row, spec.row_bytes);
      rows.insert(rows.end(), one.begin(), one.end());
    }
    content.rows.push_back(std::move(rows));
  }
  if (n > 0) content.provenance = {{0, n, Provenance::kExact}};
  content.attachments.resize(2);
  if (!session.witness.empty()) {
    content.attachments[0] =
        Bytes(AttachmentKind::kWitness, session.witness).sections;
  }
  return content;
}

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_CRASH_MODEL_H_
