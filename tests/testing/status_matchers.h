// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_TESTS_TESTING_STATUS_MATCHERS_H_
#define TORPOR_TESTS_TESTING_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace torpor::testing {

inline const absl::Status& StatusOf(const absl::Status& s) { return s; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& s) {
  return s.status();
}

// The status of an expression has this code.
MATCHER_P(HasCode, code, absl::StatusCodeToString(code)) {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}

// ... this code and a message that contains this text.
MATCHER_P2(HasStatus, code, text,
           absl::StatusCodeToString(code) + " with '" + std::string(text) +
               "'") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         std::string(StatusOf(arg).message()).find(text) != std::string::npos;
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

}  // namespace torpor::testing

#define TORPOR_CONCAT_INNER_(a, b) a##b
#define TORPOR_CONCAT_(a, b) TORPOR_CONCAT_INNER_(a, b)
// Fails the test (fatally) unless the expression is OK; then assigns its value.
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_(TORPOR_CONCAT_(statusor_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_(tmp, lhs, expr) \
  auto tmp = (expr);                          \
  ASSERT_TRUE(tmp.ok()) << tmp.status();      \
  lhs = *std::move(tmp)
#define ASSERT_OK(expr) \
  ASSERT_THAT(::torpor::testing::StatusOf(expr), ::torpor::testing::IsOk())
#define EXPECT_OK(expr) \
  EXPECT_THAT(::torpor::testing::StatusOf(expr), ::torpor::testing::IsOk())

#endif  // TORPOR_TESTS_TESTING_STATUS_MATCHERS_H_
