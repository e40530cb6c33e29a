// SPDX-License-Identifier: Apache-2.0
//
// Which tenants may stand side by side; whose a call is, the end-to-end tests
// ask over the wire.

#include "service/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::torpor::testing::HasStatus;

TEST(TenantsTest, TokenHashIsSha256) {
  EXPECT_EQ(TokenHash("abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f2"
            "0015ad");
}

TEST(TenantsTest, TakesTenantsThatDiffer) {
  EXPECT_OK(Tenants::Make({}, false));
  EXPECT_OK(Tenants::Make({}, true));
  EXPECT_OK(Tenants::Make(
      {{.name = "a", .number = 1, .token_hashes = {TokenHash("1")}},
       {.name = "b",
        .number = 2,
        .token_hashes = {TokenHash("2"), TokenHash("3")},
        .certificate_names = {"engine"}}},
      true));
  // The default one may have credentials of its own.
  EXPECT_OK(Tenants::Make(
      {{.name = "default", .number = 0, .token_hashes = {TokenHash("1")}}},
      false));
}

TEST(TenantsTest, AnOperatorIsWhoWasMadeOne) {
  ASSERT_OK_AND_ASSIGN(const Tenants none, Tenants::Make({}, false));
  EXPECT_TRUE(none.IsOperator(0));
  EXPECT_FALSE(none.IsOperator(1));
  // Whoever leaves its token out would be one.
  ASSERT_OK_AND_ASSIGN(
      const Tenants some,
      Tenants::Make({{.name = "a", .number = 1},
                     {.name = "b", .number = 2, .is_operator = true}},
                    false));
  EXPECT_FALSE(some.IsOperator(0));
  EXPECT_FALSE(some.IsOperator(1));
  EXPECT_TRUE(some.IsOperator(2));
  ASSERT_OK_AND_ASSIGN(
      const Tenants named,
      Tenants::Make({{.name = "default", .is_operator = true}}, false));
  EXPECT_TRUE(named.IsOperator(0));
}

TEST(TenantsTest, RefusesWhatTwoShare) {
  const auto make = [](TenantConfig a, TenantConfig b) {
    return Tenants::Make({std::move(a), std::move(b)}, false);
  };
  EXPECT_THAT(make({.name = "a", .number = 7}, {.name = "b", .number = 7}),
              HasStatus(StatusCode::kInvalidArgument, "7"));
  EXPECT_THAT(make({.name = "a", .number = 1}, {.name = "a", .number = 2}),
              HasStatus(StatusCode::kInvalidArgument, "'a'"));
  EXPECT_THAT(
      make({.name = "a", .number = 1, .token_hashes = {TokenHash("x")}},
           {.name = "b", .number = 2, .token_hashes = {TokenHash("x")}}),
      HasStatus(StatusCode::kInvalidArgument, "token"));
  EXPECT_THAT(make({.name = "a", .number = 1, .certificate_names = {"cn"}},
                   {.name = "b", .number = 2, .certificate_names = {"cn"}}),
              HasStatus(StatusCode::kInvalidArgument, "cn"));
  // 0 is the default tenant's, and so is its name.
  EXPECT_THAT(Tenants::Make({{.name = "a", .number = 0}}, false),
              HasStatus(StatusCode::kInvalidArgument, "0"));
  EXPECT_THAT(Tenants::Make({{.name = "default", .number = 3}}, false),
              HasStatus(StatusCode::kInvalidArgument, "default"));
  EXPECT_THAT(make({.name = "default"}, {.name = "default"}),
              HasStatus(StatusCode::kInvalidArgument, "default"));
}

TEST(TenantsTest, RefusesHashesThatAreNone) {
  const std::string good = TokenHash("x");
  for (const std::string& hash :
       {std::string("secret"), good.substr(0, 70), good + "0",
        "md5:" + good.substr(7), good.substr(0, 70) + "g"}) {
    EXPECT_THAT(
        Tenants::Make({{.name = "a", .number = 1, .token_hashes = {hash}}},
                      false),
        HasStatus(StatusCode::kInvalidArgument, hash));
  }
  // Hex in capitals is the same hash: it must match, or be refused.
  std::string capitals = good;
  for (size_t i = 7; i < capitals.size(); ++i) {
    capitals[i] = static_cast<char>(std::toupper(capitals[i]));
  }
  ASSERT_NE(capitals, good);
  EXPECT_FALSE(
      Tenants::Make(
          {{.name = "a", .number = 1, .token_hashes = {good, capitals}}}, false)
          .ok());
}

}  // namespace
}  // namespace torpor::service
