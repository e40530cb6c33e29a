// SPDX-License-Identifier: Apache-2.0

#include "service/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::torpor::testing::HasStatus;

class ConfigTest : public ::testing::Test {
 protected:
  absl::Status Load(const std::string& text) {
    std::ofstream(dir_.File("c.toml"), std::ios::binary) << text;
    return LoadConfig(dir_.File("c.toml"), &config_);
  }
  const testing::TempDir dir_;
  DaemonConfig config_;
};

TEST_F(ConfigTest, AnEmptyFileChangesNothing) {
  const DaemonConfig before;
  ASSERT_OK(Load("# nothing\n"));
  EXPECT_EQ(config_.isa, before.isa);
  EXPECT_EQ(config_.threads, before.threads);
  EXPECT_EQ(config_.server.drain_limit, before.server.drain_limit);
  EXPECT_EQ(config_.server.backend.max_calls, before.server.backend.max_calls);
}

TEST_F(ConfigTest, EveryKeyArrives) {
  ASSERT_OK(Load(R"(
data_dir = "/data"
listen = ["unix:///a", "127.0.0.1:1"]
metrics_listen = "127.0.0.1:2"
socket_group = "g"
insecure_tcp = true
reflection = false
require_credential = true
log_level = "debug"
drain_limit_ms = 11
maintain_every_ms = 12
[tls]
certificate = "/c"
key = "/k"
client_ca = "/ca"
[store]
max_bytes = 13
tenant_max_bytes = 14
disk_reserve_bytes = 15
map_bytes = 16
buffer_bytes = 17
ahead_bytes = 18
put_timeout_ms = 19
pinned_max_bytes = 20
[replay]
isa = "avx2"
threads = 21
device = "auto"
device_memory_bytes = 27
device_gemm = "tensor"
memory_bytes = 22
max_batch = 23
[prefetch]
held_bytes = 51
sessions = 52
hold_limit_seconds = 53
[plane]
shared_memory = false
segment_bytes = 41
device_bytes = 44
max_bytes = 42
take_limit_ms = 43
keep_limit_ms = 54
stall_limit_ms = 44
[limits]
calls = 24
tickets = 25
leases = 26
idle_seconds = 27
[[tenant]]
name = "a"
number = 28
token_hashes = ["x", "y"]
certificate_names = ["z"]
operator = true
[[tenant]]
name = "b"
number = 29
)"));
  const ServerOptions& s = config_.server;
  EXPECT_EQ(s.store.data_dir, "/data");
  EXPECT_THAT(s.listen, ElementsAre("unix:///a", "127.0.0.1:1"));
  EXPECT_EQ(s.metrics_listen, "127.0.0.1:2");
  EXPECT_EQ(config_.socket_group, "g");
  EXPECT_TRUE(s.insecure_tcp);
  EXPECT_FALSE(s.reflection);
  EXPECT_TRUE(s.require_credential);
  EXPECT_EQ(config_.log_level, "debug");
  EXPECT_EQ(s.drain_limit.count(), 11);
  EXPECT_EQ(s.maintain_every.count(), 12);
  EXPECT_EQ(s.tls_certificate, "/c");
  EXPECT_EQ(s.tls_key, "/k");
  EXPECT_EQ(s.tls_client_ca, "/ca");
  EXPECT_EQ(s.store.max_bytes, 13);
  EXPECT_EQ(s.store.tenant_max_bytes, 14);
  EXPECT_EQ(s.store.disk_reserve_bytes, 15);
  EXPECT_EQ(s.store.map_bytes, 16);
  EXPECT_EQ(s.store.buffer_bytes, 17);
  EXPECT_EQ(s.store.ahead_bytes, 18);
  EXPECT_EQ(s.store.put_timeout.count(), 19);
  EXPECT_EQ(s.store.pinned_max_bytes, 20);
  EXPECT_EQ(config_.isa, "avx2");
  EXPECT_EQ(config_.threads, 21);
  EXPECT_EQ(config_.device.name, "auto");
  EXPECT_EQ(config_.device.memory_bytes, 27);
  EXPECT_EQ(config_.device.gemm, "tensor");
  EXPECT_EQ(s.backend.prefetch.held_bytes, 51);
  EXPECT_EQ(s.backend.prefetch.sessions, 52);
  EXPECT_EQ(s.backend.prefetch.hold_limit.count(), 53);
  EXPECT_FALSE(s.backend.segments.enabled);
  EXPECT_EQ(s.backend.segments.segment_bytes, 41);
  EXPECT_EQ(s.backend.segments.device_bytes, 44);
  EXPECT_EQ(s.backend.segments.max_bytes, 42);
  EXPECT_EQ(s.backend.segments.take_limit.count(), 43);
  EXPECT_EQ(s.backend.segments.keep_limit.count(), 54);
  EXPECT_EQ(s.backend.segments.stall_limit.count(), 44);
  EXPECT_EQ(s.backend.replay.memory_bytes, 22);
  EXPECT_EQ(s.backend.replay.max_batch, 23);
  EXPECT_EQ(s.backend.max_calls, 24);
  EXPECT_EQ(s.backend.max_tickets, 25);
  EXPECT_EQ(s.backend.max_leases, 26);
  EXPECT_EQ(s.backend.idle_limit.count(), 27);
  ASSERT_EQ(s.tenants.size(), 2);
  EXPECT_EQ(s.tenants[0].name, "a");
  EXPECT_EQ(s.tenants[0].number, 28);
  EXPECT_THAT(s.tenants[0].token_hashes, ElementsAre("x", "y"));
  EXPECT_THAT(s.tenants[0].certificate_names, ElementsAre("z"));
  EXPECT_TRUE(s.tenants[0].is_operator);
  EXPECT_EQ(s.tenants[1].number, 29);
  EXPECT_FALSE(s.tenants[1].is_operator);
}

TEST_F(ConfigTest, ErrorsNameFileLineAndKey) {
  const std::string file = dir_.File("c.toml");
  for (const auto& [text, where] :
       std::vector<std::pair<const char*, std::string>>{
           {"a = 1\n", file + ":1: unknown key 'a'"},
           {"\n\n[store]\nmax = 1\n", file + ":4: unknown key 'store.max'"},
           {"[tls]\nkey = 5\n", file + ":2: key 'tls.key'"},
           {"listen = ['a', 5]\n", file + ":1: key 'listen'"},
           {"tenant = 5\n", file + ":1: key 'tenant'"},
           {"insecure_tcp = 1\n", file + ":1: key 'insecure_tcp'"},
           {"drain_limit_ms = -1\n", file + ":1: key 'drain_limit_ms'"},
           {"[[tenant]]\nnumber = 4294967296\n",
            file + ":2: key 'tenant.number'"},
           {"x = \n", file + ":1"},
           {"[store]\nmax_bytes = -1\n",
            ": got -1, wanted a whole number from 0 to 9223372036854775807"},
           {"log_level = 5\n", ": got 5, wanted a string"},
           {"reflection = 'no'\n", ": got 'no', wanted true or false"},
           {"tls = 'x'\n", ": got 'x', wanted a table"},
           {"listen = 'x'\n", ": got 'x', wanted a list of strings"},
           // Added to a clock it would lie in the past.
           {"[plane]\ntake_limit_ms = 9223372036854775807\n",
            "wanted a whole number from 0 to 3155760000000"},
           {"[limits]\nidle_seconds = 3155760001\n",
            "wanted a whole number from 0 to 3155760000"}}) {
    EXPECT_THAT(Load(text), HasStatus(StatusCode::kInvalidArgument, where));
  }
  EXPECT_THAT(LoadConfig("/no/such.toml", &config_),
              HasStatus(StatusCode::kNotFound, "/no/such.toml"));
  EXPECT_THAT(LoadConfig(dir_.path(), &config_),
              ::testing::Not(torpor::testing::IsOk()));
}

}  // namespace
}  // namespace torpor::service
