// SPDX-License-Identifier: Apache-2.0
//
// Needles: a key and an answer, both new to the text, stand before the cut; the
// woken session gets the key again and should know the answer.

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/error_parts.h"

namespace torpor::bench {
namespace {

// Tokens of a key and of its answer.
constexpr size_t kTokens = 8;
// Tokens that a text has less often are not drawn for needles.
constexpr uint64_t kOften = 3;

using Ids = std::vector<uint32_t>;

struct Needle {
  // What is said; the question is its beginning and asks for the answer.
  Ids said;
  Ids question;
  Ids answer;
};

void Append(const Ids& ids, Ids* out) {
  out->insert(out->end(), ids.begin(), ids.end());
}

void Append(std::string_view bytes, Ids* out) {
  for (const char c : bytes) out->push_back(static_cast<uint8_t>(c));
}

class Needles {
 public:
  Needles(const StudyContext& study, ErrorStudyResult* result)
      : study_(study), result_(*result) {
    std::map<uint32_t, uint64_t> counts;
    for (const auto& document : study.text.documents) {
      for (const uint32_t id : document) ++counts[id];
    }
    for (const auto& [id, n] : counts) {
      const bool letter = id >= 'a' && id <= 'z';
      if (study.text.bytes ? letter : n >= kOften) drawn_.push_back(id);
    }
  }

  absl::Status Run() {
    if (drawn_.size() < 2) {
      return absl::InvalidArgumentError(
          "text: wanted two tokens that it has several times");
    }
    const uint64_t w = study_.window;
    for (const uint64_t distance : {uint64_t{0}, w / 2, w, 4 * w}) {
      NeedleStudy& one = result_.needles.emplace_back();
      one.distance = distance;
      one.cases.push_back({"never slept", 0, {}, {}});
      for (const uint64_t r : {w, 2 * w, 4 * w}) {
        if (r >= study_.exact_tokens) continue;
        one.cases.push_back({absl::StrFormat("bounded %d", r), r, {}, {}});
      }
      one.cases.push_back({"never told", 0, {}, {}});
    }
    std::mt19937_64 random(study_.options->seed + 1);
    for (uint64_t i = 0; i < study_.n_needles; ++i) {
      TORPOR_RETURN_IF_ERROR(One(i, &random));
      study_.common->Say(
          absl::StrFormat("needle %d of %d", i + 1, study_.n_needles));
    }
    return absl::OkStatus();
  }

 private:
  Needle MakeNeedle(std::mt19937_64* random) const {
    const auto draw = [&] {
      Ids ids;
      for (size_t i = 0; i < kTokens; ++i) {
        ids.push_back(drawn_[Below(random, drawn_.size())]);
      }
      return ids;
    };
    Needle out;
    const Ids key = draw();
    out.answer = draw();
    if (study_.text.bytes) Append("\n# passkey ", &out.question);
    Append(key, &out.question);
    if (study_.text.bytes) Append(" = ", &out.question);
    out.said = out.question;
    Append(out.answer, &out.said);
    if (study_.text.bytes) Append("\n", &out.said);
    return out;
  }

  // The text, the needle in it, and the text again; all distances are cuts of
  // one session.
  absl::Status One(uint64_t i, std::mt19937_64* random) {
    const uint64_t before = study_.DrawCut(random);
    const Needle needle = MakeNeedle(random);
    const uint64_t filler = 4 * study_.window + 2 * study_.group;
    TORPOR_ASSIGN_OR_RETURN(
        const Ids plain,
        DrawText(study_.text, i, study_.n_needles, before + filler, random));
    const auto at = plain.begin() + static_cast<ptrdiff_t>(before);
    Ids text(plain.begin(), at);
    Append(needle.said, &text);
    text.insert(text.end(), at, plain.end());

    LabSession twin(study_.model);
    TORPOR_RETURN_IF_ERROR(twin.Run(text, before, before).status());
    TORPOR_ASSIGN_OR_RETURN(const Asleep untold, twin.Suspend());
    for (NeedleStudy& one : result_.needles) {
      const uint64_t cut =
          study_.WholeGroups(before + needle.said.size() + one.distance);
      TORPOR_RETURN_IF_ERROR(twin.Run(text, cut, cut).status());
      TORPOR_ASSIGN_OR_RETURN(const Asleep told, twin.Suspend());
      for (NeedleStudy::Case& c : one.cases) {
        const Asleep& from = c.name == "never told" ? untold : told;
        if (c.replay_tokens == 0) {
          TORPOR_RETURN_IF_ERROR(
              Ask(needle, text, from.rows.get(), from.window, &c));
          continue;
        }
        TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                                study_.Bounded(cut, c.replay_tokens));
        TORPOR_ASSIGN_OR_RETURN(
            const replay::WindowState window,
            Rebuild(study_.model, plan, text, told.rows.get()));
        TORPOR_RETURN_IF_ERROR(Ask(needle, text, told.rows.get(), window, &c));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Ask(const Needle& needle, const Ids& text, KeptRows* rows,
                   const replay::WindowState& window, NeedleStudy::Case* out) {
    Ids asked(text.begin(),
              text.begin() + static_cast<ptrdiff_t>(window.resume_at));
    Append(needle.question, &asked);
    Append(needle.answer, &asked);
    TORPOR_ASSIGN_OR_RETURN(
        const NextTokens next,
        study_.Feed(rows, window, asked, asked.size() - window.resume_at));
    const size_t first = needle.question.size() - 1;
    double log_probability = 0;
    double hits = 0;
    for (size_t i = 0; i < needle.answer.size(); ++i) {
      log_probability += next.LogProbability(first + i, needle.answer[i]);
      hits += next.Likeliest(first + i) == needle.answer[i] ? 1 : 0;
    }
    const auto n = static_cast<double>(needle.answer.size());
    out->log_probability.push_back(log_probability / n);
    out->hits.push_back(hits / n);
    return absl::OkStatus();
  }

  const StudyContext& study_;
  ErrorStudyResult& result_;
  Ids drawn_;
};

}  // namespace

absl::Status StudyNeedles(const StudyContext& study, ErrorStudyResult* result) {
  return Needles(study, result).Run();
}

}  // namespace torpor::bench
