// SPDX-License-Identifier: Apache-2.0

#include "bench/study_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/lab_session.h"
#include "service/cli/context.h"

namespace torpor::bench {
namespace {

constexpr uint32_t kByteVocabulary = 256;
// Sessions that are sampled side by side.
constexpr size_t kSampled = 8;

absl::StatusOr<std::vector<uint32_t>> ReadIds(const std::string& path,
                                              uint32_t vocab) {
  TORPOR_ASSIGN_OR_RETURN(const std::string text, service::cli::ReadFile(path));
  std::vector<uint32_t> ids;
  uint64_t value = 0;
  bool in_number = false;
  for (const char c : text + " ") {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(c - '0'),
                                 UINT32_MAX);
      in_number = true;
      continue;
    }
    if (!std::exchange(in_number, false)) continue;
    if (value >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: id %d, wanted less than the vocabulary of %d",
                          path, value, vocab));
    }
    ids.push_back(static_cast<uint32_t>(value));
    value = 0;
  }
  return ids;
}

// The id with which the model's own tokenizer begins a text, if it has one.
std::optional<uint32_t> BeginOf(const std::string& config_json,
                                uint32_t vocab) {
  using nlohmann::json;
  const json config = json::parse(config_json, nullptr, false);
  if (!config.is_object()) return std::nullopt;
  json id = config.value("bos_token_id", json());
  if (!id.is_number_unsigned() && config.contains("text_config") &&
      config["text_config"].is_object()) {
    id = config["text_config"].value("bos_token_id", json());
  }
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab) {
    return std::nullopt;
  }
  return id.get<uint32_t>();
}

// Drawn at temperature 1.
uint32_t Sample(std::span<const float> logits, std::mt19937_64* random) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  double left =
      sum * (static_cast<double>((*random)() >> 11) / 9007199254740992.0);
  for (size_t i = 0; i < logits.size(); ++i) {
    left -= std::exp(logits[i] - max);
    if (left < 0) return static_cast<uint32_t>(i);
  }
  return static_cast<uint32_t>(logits.size() - 1);
}

// Each from the beginning token and a first token of its own.
absl::Status SampleText(replay::Model* model, const TextRequest& request,
                        const Common& common, StudyText* text) {
  StudyText& out = *text;
  out.source = absl::StrFormat(
      "sampled from the model itself at temperature 1, seed %d, from a random "
      "first token",
      request.seed);
  std::mt19937_64 random(request.seed);
  std::vector<LabSession> sessions;
  for (size_t i = 0; i < kSampled; ++i) {
    sessions.emplace_back(model);
    out.documents.push_back(
        {static_cast<uint32_t>(Below(&random, model->vocab_size()))});
    if (!out.begin.has_value()) continue;
    TORPOR_RETURN_IF_ERROR(
        sessions[i].Run(std::span(&*out.begin, 1), 1, 1).status());
  }
  for (uint64_t pos = 0; pos + 1 < request.n_sampled; ++pos) {
    std::vector<replay::Segment> batch;
    for (size_t i = 0; i < kSampled; ++i) {
      batch.push_back(sessions[i].Step(out.documents[i].back()));
    }
    std::vector<std::vector<float>> logits;
    TORPOR_RETURN_IF_ERROR(model->Forward(batch, {}, &logits));
    for (size_t i = 0; i < kSampled; ++i) {
      out.documents[i].push_back(Sample(logits[i], &random));
    }
    if (pos % 1024 == 1023) {
      common.Say(absl::StrFormat("%d tokens of text sampled", pos + 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t StudyText::n_tokens() const {
  uint64_t n = 0;
  for (const auto& document : documents) n += document.size();
  return n;
}

absl::StatusOr<StudyText> TextFor(replay::Model* model,
                                  const TextRequest& request,
                                  const Common& common) {
  StudyText out;
  out.bytes = model->vocab_size() == kByteVocabulary;
  if (!request.ids_file.empty()) {
    TORPOR_ASSIGN_OR_RETURN(std::vector<uint32_t> ids,
                            ReadIds(request.ids_file, model->vocab_size()));
    out.source = "token ids of " +
                 std::filesystem::path(request.ids_file).filename().string();
    out.begin = BeginOf(request.config_json, model->vocab_size());
    out.documents.push_back(std::move(ids));
    return out;
  }
  if (out.bytes && !request.bytes_file.empty()) {
    TORPOR_ASSIGN_OR_RETURN(const std::string text,
                            service::cli::ReadFile(request.bytes_file));
    out.source = "bytes of " + request.bytes_file;
    out.documents.emplace_back();
    for (const char c : text) {
      out.documents.back().push_back(static_cast<uint8_t>(c));
    }
    return out;
  }
  out.begin = BeginOf(request.config_json, model->vocab_size());
  TORPOR_RETURN_IF_ERROR(SampleText(model, request, common, &out));
  return out;
}

absl::StatusOr<std::vector<uint32_t>> DrawText(const StudyText& text,
                                               uint64_t i, uint64_t n,
                                               uint64_t session_length,
                                               std::mt19937_64* random) {
  std::vector<uint32_t> out;
  if (text.begin.has_value()) out.push_back(*text.begin);
  const uint64_t length = session_length - out.size();
  // Offsets at which a document has as many tokens left.
  uint64_t n_offsets = 0;
  for (const auto& document : text.documents) {
    if (document.size() >= length) n_offsets += document.size() - length + 1;
  }
  if (n_offsets == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text (%s): wanted %d tokens in a row, the study's "
                        "longest session",
                        text.source, length));
  }
  const uint64_t begin = n_offsets * i / n;
  const uint64_t end = std::max(begin + 1, n_offsets * (i + 1) / n);
  uint64_t offset = begin + Below(random, end - begin);
  for (const auto& document : text.documents) {
    if (document.size() < length) continue;
    const uint64_t here = document.size() - length + 1;
    if (offset < here) {
      const auto from = document.begin() + static_cast<ptrdiff_t>(offset);
      out.insert(out.end(), from, from + static_cast<ptrdiff_t>(length));
      return out;
    }
    offset -= here;
  }
  return absl::InternalError("text: an offset beyond all documents");
}

}  // namespace torpor::bench
