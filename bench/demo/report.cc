// SPDX-License-Identifier: Apache-2.0

#include "bench/demo/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/svg.h"
#include "bench/table.h"
#include "service/cli/context.h"

namespace torpor::bench {
namespace {

using nlohmann::json;
using service::cli::Bytes;

std::string Ms(double ms) {
  return absl::StrFormat(ms < 100 ? "%.1f" : "%.0f", ms);
}

std::vector<BarGroup> TimeBars(const DemoResult& result) {
  std::vector<BarGroup> bars;
  for (const Wake& wake : result.wakes) {
    bars.push_back(
        {wake.name,
         {{wake.times.to_next_token, Ms(wake.times.to_next_token) + " ms"}}});
  }
  return bars;
}

std::vector<BarGroup> ByteBars(const Stored& s) {
  const auto bar = [](std::string label, uint64_t bytes) {
    return BarGroup{std::move(label),
                    {{static_cast<double>(bytes), Bytes(bytes)}}};
  };
  return {bar("every window row kept", s.every_window_row_bytes),
          bar("one snapshot per turn", s.snapshot_per_turn_bytes),
          bar("one snapshot per session", s.snapshot_per_session_bytes),
          bar("Torpor, as stored", s.stored_bytes)};
}

std::string TextBars(const std::vector<BarGroup>& bars) {
  constexpr double kWidth = 48;
  double max = 0;
  size_t label = 0;
  for (const BarGroup& group : bars) {
    max = std::max(max, group.bars.front().value);
    label = std::max(label, group.label.size());
  }
  std::string out;
  for (const BarGroup& group : bars) {
    const Bar& bar = group.bars.front();
    const int cells =
        max == 0 ? 0 : std::max(1, static_cast<int>(bar.value / max * kWidth));
    std::string line;
    for (int i = 0; i < cells; ++i) line += "█";
    out += absl::StrFormat("  %-*s  %s %s\n", static_cast<int>(label),
                           group.label, line, bar.text);
  }
  return out;
}

std::string DifferenceText(const Difference& d) {
  std::string out =
      d.first_token.has_value()
          ? absl::StrFormat("token %d of %d", *d.first_token + 1, d.n_tokens)
          : (d.n_tokens == 0 ? "-" : absl::StrFormat("none of %d", d.n_tokens));
  return out;
}

std::string LogitsText(const Difference& d) {
  if (d.same_bits) return absl::StrFormat("== in %d rows", d.n_logit_rows);
  return absl::StrFormat("KL %.2g nats", d.mean_kl);
}

std::string WitnessText(const Wake& wake) {
  if (wake.verdict != "measured") return wake.verdict;
  return absl::StrFormat("error %.2g", wake.max_layer_error);
}

json WakeJson(const Wake& w) {
  const WakeTimes& t = w.times;
  const Difference& d = w.difference;
  return {{"mode", w.name},
          {"mode_used", w.mode_used},
          {"exact", w.exact},
          {"witness", w.verdict},
          {"max_layer_error", w.max_layer_error},
          {"loaded_tokens", w.loaded_tokens},
          {"replayed_tokens", w.replayed_tokens},
          {"recomputed_tokens", w.recomputed_tokens},
          {"replayed_token_layers", w.token_layers},
          {"bytes_read", w.bytes_read},
          {"milliseconds",
           {{"to_next_token", t.to_next_token},
            {"queue", t.queue},
            {"index", t.index},
            {"read", t.read},
            {"verify", t.verify},
            {"replay", t.replay},
            {"transfer", t.transfer},
            {"prefill", t.prefill},
            {"decode", t.decode},
            {"model_load", t.model_load}}},
          {"first_differing_token",
           d.first_token.has_value() ? json(*d.first_token) : json(nullptr)},
          {"compared_tokens", d.n_tokens},
          {"compared_logit_rows", d.n_logit_rows},
          {"logits_bit_equal", d.same_bits},
          {"logits_max_abs_difference", d.max_abs},
          {"mean_kl_nats", d.mean_kl}};
}

std::string ModelText(const DemoResult& result) {
  return absl::StrFormat("%s, %d layers, window %d, session of %d tokens",
                         result.family, result.n_layers, result.window,
                         result.stored.n_tokens);
}

}  // namespace

std::string TextReport(const DemoResult& result) {
  const Stored& s = result.stored;
  std::string out = "\n" + ModelText(result) + "\n\nBytes stored\n";
  const auto ratio = [&](uint64_t bytes) {
    return absl::StrFormat("%.2fx", static_cast<double>(bytes) /
                                        static_cast<double>(s.stored_bytes));
  };
  out += AlignedTable(
      {{"", "bytes", "of Torpor's"},
       {"every window row kept", Bytes(s.every_window_row_bytes),
        ratio(s.every_window_row_bytes)},
       {absl::StrFormat("one snapshot per turn (%d turns)", s.turns),
        Bytes(s.snapshot_per_turn_bytes), ratio(s.snapshot_per_turn_bytes)},
       {"one snapshot per session", Bytes(s.snapshot_per_session_bytes),
        ratio(s.snapshot_per_session_bytes)},
       {"Torpor, as stored", Bytes(s.stored_bytes), "1.00x"}});
  out += absl::StrFormat(
      "  Of it %s are compact KV, %s token ids, %s witness, %s sampler state; "
      "the snapshot\n  of mode 'snapshot' is another %s. A resume at any token "
      "needs the first baseline\n  or Torpor; against one snapshot of the last "
      "token alone little is saved.\n\n",
      Bytes(s.compact_bytes), Bytes(s.token_bytes), Bytes(s.witness_bytes),
      Bytes(s.client_state_bytes), Bytes(s.snapshot_bytes));
  out += TextBars(ByteBars(s));

  out += "\nWaking: milliseconds to the next token, medians\n";
  std::vector<std::vector<std::string>> rows = {
      {"mode", "total", "read", "verify", "replay", "transfer", "prefill",
       "decode", "tokens run", "first difference", "logits", "witness"}};
  for (const Wake& w : result.wakes) {
    const WakeTimes& t = w.times;
    rows.push_back(
        {w.name, Ms(t.to_next_token), Ms(t.index + t.read), Ms(t.verify),
         Ms(t.replay), Ms(t.transfer), Ms(t.prefill), Ms(t.decode),
         absl::StrFormat("%d", w.replayed_tokens + w.recomputed_tokens),
         DifferenceText(w.difference), LogitsText(w.difference),
         WitnessText(w)});
  }
  out += AlignedTable(rows);
  out += "\n" + TextBars(TimeBars(result));

  const Wake& after = result.after_bounded;
  out += absl::StrFormat(
      "\nWoken bounded, %d tokens on, suspended, killed, woken exact: logits "
      "%s, witness %s.\n",
      result.extended_tokens, LogitsText(after.difference), WitnessText(after));
  out += result.holds()
             ? "Exact held: every bit equals the session that never slept.\n"
             : "EXACT DID NOT HOLD: bits differ from the session that never "
               "slept.\n";
  return out;
}

std::string JsonReport(const DemoResult& result, const Machine& machine) {
  const Stored& s = result.stored;
  json out = {
      {"holds", result.holds()},
      {"machine", ToJson(machine)},
      {"numerics_id", result.numerics_id},
      {"model",
       {{"family", result.family},
        {"n_layers", result.n_layers},
        {"window", result.window},
        {"exact_tokens", result.exact_tokens}}},
      {"session",
       {{"n_tokens", s.n_tokens},
        {"kv_len", s.kv_len},
        {"turns", s.turns},
        {"first_token_ms", s.prefill_ms},
        {"suspend_ms", s.suspend_ms},
        {"never_slept_decode_ms", result.twin_decode_ms}}},
      {"bytes",
       {{"stored", s.stored_bytes},
        {"compact_kv", s.compact_bytes},
        {"token_ids", s.token_bytes},
        {"witness", s.witness_bytes},
        {"client_state", s.client_state_bytes},
        {"snapshot", s.snapshot_bytes},
        {"baseline_every_window_row_kept", s.every_window_row_bytes},
        {"baseline_one_snapshot_per_turn", s.snapshot_per_turn_bytes},
        {"baseline_one_snapshot_per_session", s.snapshot_per_session_bytes}}},
      {"wakes", json::array()},
      {"after_bounded", WakeJson(result.after_bounded)}};
  for (const Wake& wake : result.wakes) out["wakes"].push_back(WakeJson(wake));
  return out.dump(2) + "\n";
}

std::string SvgReport(const DemoResult& result, const Machine& machine) {
  SvgPage page(ModelText(result));
  page.Add(BarPlot{"Time to next token", {}, TimeBars(result)});
  page.Add(BarPlot{"Bytes stored", {}, ByteBars(result.stored)});
  return page.Render(absl::StrFormat(
      "%s, %d processors; %s", machine.processor, machine.n_processors,
      result.holds() ? "exact == never slept" : "EXACT DID NOT HOLD"));
}

}  // namespace torpor::bench
