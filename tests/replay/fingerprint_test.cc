// SPDX-License-Identifier: Apache-2.0
//
// Fingerprints are stored: their golden values come from another
// implementation, and a test that fails here means a new row format version.

#include "replay/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/replay/golden.h"
#include "tests/replay/layout_builder.h"

namespace torpor::replay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Fingerprint SomeFingerprint() {
  Fingerprint fingerprint;
  fingerprint.weights = "5f3a";
  fingerprint.adapter = "lora-7";
  fingerprint.layout = "90cd";
  fingerprint.kv_dtype = "bf16";
  fingerprint.rope = "split-half theta 1e+06";
  fingerprint.quantiser = "none";
  fingerprint.format_version = 1;
  return fingerprint;
}

ModelLayout SomeLayout() {
  ModelLayout layout;
  layout.family = "golden_family";
  layout.n_layers = 3;
  layout.vocab_size = 262'144;
  Slot window = SlidingSlot(0, 512, 64);
  window.name = "layer.0.k";
  window.reader_layers = {0, 1};
  window.shard_axis = ShardAxis::kHeads;
  window.n_heads = 4;
  Slot pool = PooledSlot("layer.1.pool", 1, 2, 356);
  pool.format = "fp4";
  Slot chunk = ChunkedSlot(2, 8192, 128);
  chunk.name = "layer.2.chunk";
  chunk.reader_layers = {};
  chunk.format = "f32";
  chunk.shard_axis = ShardAxis::kLayers;
  chunk.n_heads = 2;
  chunk.come_back = ComeBack::kSnapshot;
  layout.slots = {window, pool, chunk};
  return layout;
}

// Every field of a fingerprint, changed; the bindings stop compiling when one
// is added.
std::vector<std::pair<std::string, Fingerprint>> EachFieldChanged() {
  std::vector<std::pair<std::string, Fingerprint>> changed;
  for (const char* name : {"weights", "adapter", "layout", "kv_dtype", "rope",
                           "quantiser", "format_version"}) {
    Fingerprint one = SomeFingerprint();
    auto& [weights, adapter, layout, kv_dtype, rope, quantiser,
           format_version] = one;
    const std::map<std::string, std::string*> texts = {
        {"weights", &weights}, {"adapter", &adapter},
        {"layout", &layout},   {"kv_dtype", &kv_dtype},
        {"rope", &rope},       {"quantiser", &quantiser}};
    if (const auto it = texts.find(name); it != texts.end()) {
      it->second->back() ^= 1;
    } else {
      format_version ^= 1U << 31;
    }
    changed.emplace_back(name, one);
  }
  return changed;
}

TEST(FingerprintTest, HashIsThatOfAnotherImplementation) {
  EXPECT_EQ(Hex(FingerprintHash(SomeFingerprint())), Golden("fingerprint"));
  Fingerprint empty;
  empty.format_version = 1;
  EXPECT_EQ(Hex(FingerprintHash(empty)), Golden("fingerprint_empty"));
}

TEST(FingerprintTest, EachFieldChangesTheHash) {
  std::set<std::string> hashes = {Hex(FingerprintHash(SomeFingerprint()))};
  for (const auto& [name, changed] : EachFieldChanged()) {
    EXPECT_TRUE(hashes.insert(Hex(FingerprintHash(changed))).second) << name;
  }
}

TEST(FingerprintTest, AFieldDoesNotRunIntoItsNeighbour) {
  Fingerprint a;
  a.weights = "ab";
  a.adapter = "c";
  Fingerprint b;
  b.weights = "a";
  b.adapter = "bc";
  EXPECT_NE(FingerprintHash(a), FingerprintHash(b));
  // ... nor when it holds what separates fields.
  a.weights = "a1:b";
  a.adapter = "";
  b.weights = "a";
  b.adapter = "b";
  EXPECT_NE(FingerprintHash(a), FingerprintHash(b));
}

TEST(FingerprintTest, ADifferenceNamesTheFieldAndBothValues) {
  const Fingerprint wanted = SomeFingerprint();
  EXPECT_EQ(FirstDifference(wanted, wanted), std::nullopt);
  for (const auto& [name, got] : EachFieldChanged()) {
    const auto difference = FirstDifference(got, wanted);
    ASSERT_TRUE(difference.has_value()) << name;
    EXPECT_THAT(*difference, HasSubstr("'" + name + "'"));
  }
  Fingerprint got = wanted;
  got.kv_dtype = "f32";
  EXPECT_THAT(*FirstDifference(got, wanted),
              AllOf(HasSubstr("kv_dtype"), HasSubstr("got 'f32'"),
                    HasSubstr("wanted 'bf16'")));
  got = wanted;
  got.format_version = 7;
  EXPECT_THAT(*FirstDifference(got, wanted),
              AllOf(HasSubstr("got '7'"), HasSubstr("wanted '1'")));
}

TEST(FingerprintTest, OfSeveralDifferencesTheFirstFieldIsNamed) {
  const Fingerprint wanted = SomeFingerprint();
  Fingerprint got = wanted;
  got.adapter = "another";
  got.rope = "another";
  EXPECT_THAT(*FirstDifference(got, wanted), HasSubstr("'adapter'"));
  got.weights = "another";
  EXPECT_THAT(*FirstDifference(got, wanted), HasSubstr("'weights'"));
}

TEST(LayoutDigestTest, IsThatOfAnotherImplementation) {
  EXPECT_EQ(LayoutDigest(SomeLayout()), Golden("layout"));
  EXPECT_EQ(LayoutDigest(ModelLayout()), Golden("layout_no_slots"));
}

TEST(LayoutDigestTest, EachFieldOfASlotChangesIt) {
  using Change = std::pair<const char*, std::function<void(Slot*)>>;
  // One change a field; the bindings below stop compiling when one is added.
  const std::vector<Change> changes = {
      {"name", [](Slot* s) { s->name += "x"; }},
      {"kind", [](Slot* s) { s->kind = SlotKind::kOpenGroup; }},
      {"owner_layer", [](Slot* s) { ++s->owner_layer; }},
      {"reader_layers", [](Slot* s) { s->reader_layers.push_back(2); }},
      {"window", [](Slot* s) { ++s->window; }},
      {"chunk", [](Slot* s) { ++s->chunk; }},
      {"tokens_per_row", [](Slot* s) { ++s->tokens_per_row; }},
      {"overlap_tokens", [](Slot* s) { ++s->overlap_tokens; }},
      {"row_bytes", [](Slot* s) { ++s->row_bytes; }},
      {"format", [](Slot* s) { s->format += "x"; }},
      {"shard_axis", [](Slot* s) { s->shard_axis = ShardAxis{9}; }},
      {"n_heads", [](Slot* s) { ++s->n_heads; }},
      {"come_back", [](Slot* s) { s->come_back = ComeBack::kDerive; }}};
  const auto n_fields = [](const Slot& slot) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = slot;
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g;
    (void)h, (void)i, (void)j, (void)k, (void)l, (void)m;
    return size_t{13};
  };
  ASSERT_EQ(changes.size(), n_fields(Slot()));
  for (size_t slot = 0; slot < 3; ++slot) {
    std::set<std::string> digests = {LayoutDigest(SomeLayout())};
    for (const auto& [field, change] : changes) {
      ModelLayout layout = SomeLayout();
      change(&layout.slots[slot]);
      EXPECT_TRUE(digests.insert(LayoutDigest(layout)).second)
          << field << " of slot " << slot;
    }
  }
}

TEST(LayoutDigestTest, EachFieldOfTheModelChangesIt) {
  const std::string digest = LayoutDigest(SomeLayout());
  ModelLayout layout = SomeLayout();
  auto& [family, n_layers, vocab_size, slots] = layout;
  family += "x";
  EXPECT_NE(LayoutDigest(layout), digest);
  layout = SomeLayout();
  ++n_layers;
  EXPECT_NE(LayoutDigest(layout), digest);
  layout = SomeLayout();
  ++vocab_size;
  EXPECT_NE(LayoutDigest(layout), digest);
  layout = SomeLayout();
  std::swap(slots[0], slots[1]);
  EXPECT_NE(LayoutDigest(layout), digest);
  layout = SomeLayout();
  slots.pop_back();
  EXPECT_NE(LayoutDigest(layout), digest);
}

// RFC 7693 gives the construction; the value is BLAKE2b's with 32 bytes of
// output over "abc".
TEST(WeightsDigestTest, IsBlake2b256) {
  WeightsDigest digest;
  digest.Update("abc");
  EXPECT_EQ(digest.Finish(),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST(WeightsDigestTest, PiecesAreTheSameAsTheWhole) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes.push_back(static_cast<char>(i * 7));
  WeightsDigest whole;
  whole.Update(bytes);
  const std::string wanted = whole.Finish();
  for (const size_t piece : {1, 127, 128, 129, 999}) {
    WeightsDigest pieces;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      pieces.Update(std::string_view(bytes).substr(at, piece));
    }
    EXPECT_EQ(pieces.Finish(), wanted) << piece;
  }
  WeightsDigest shorter;
  shorter.Update(std::string_view(bytes).substr(1));
  EXPECT_NE(shorter.Finish(), wanted);
}

}  // namespace
}  // namespace torpor::replay
