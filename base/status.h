// SPDX-License-Identifier: Apache-2.0
//
// The two early-return macros over absl::Status and the bridge between
// std::string_view (used in our interfaces) and absl's own string_view, which
// Debian builds as a distinct type. Nothing else belongs here.

#ifndef TORPOR_BASE_STATUS_H_
#define TORPOR_BASE_STATUS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace torpor {

// The same bytes as absl's view type; valid as long as `s` is.
inline absl::string_view ToAbsl(std::string_view s) {
  return absl::string_view(s.data(), s.size());
}

// The same bytes as the standard view type; valid as long as `s` is.
inline std::string_view ToStd(absl::string_view s) {
  return std::string_view(s.data(), s.size());
}

}  // namespace torpor

// Evaluates an absl::Status expression once; returns it when it is an error.
#define TORPOR_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status torpor_status_ = (expr); !torpor_status_.ok()) { \
      return torpor_status_;                                          \
    }                                                                 \
  } while (false)
// NOLINTBEGIN(bugprone-macro-parentheses): `lhs` and `tmp` are no expressions.
#define TORPOR_STATUS_CONCAT_INNER_(a, b) a##b
#define TORPOR_STATUS_CONCAT_(a, b) TORPOR_STATUS_CONCAT_INNER_(a, b)

// Assigns the value of an absl::StatusOr expression to `lhs` (which may declare
// a variable), or returns its error.
#define TORPOR_ASSIGN_OR_RETURN(lhs, expr) \
  TORPOR_ASSIGN_OR_RETURN_IMPL_(           \
      TORPOR_STATUS_CONCAT_(torpor_statusor_, __LINE__), lhs, expr)
#define TORPOR_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)
#endif  // TORPOR_BASE_STATUS_H_
