// SPDX-License-Identifier: Apache-2.0
//
// torpord as others see it while it lives: health, reflection, Prometheus, and
// tenants that share nothing.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <regex>
#include <sstream>

#include "service/tenants.h"
#include "tests/e2e/daemon_client.h"
#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {
namespace {

using absl::StatusCode;
using service::ToyIds;
using ::testing::HasSubstr;
using torpor::testing::HasCode;

class DaemonWatchTest : public DaemonTest {};

TEST_F(DaemonWatchTest, HealthAndReflectionAnswer) {
  Start();
  const Client client(Address());
  for (const char* service : kHealthNames) {
    ASSERT_OK_AND_ASSIGN(const std::string health, client.Health(service));
    EXPECT_EQ(health, kServing) << service;
  }
  EXPECT_THAT(client.Health("torpor.v1.NoService"),
              HasCode(StatusCode::kNotFound));
  const Finished whole = Torpor({"health"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.out, "serving\n");
  const Finished none = Torpor({"health", "--service", "torpor.v1.NoService"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("NOT_FOUND"));
  // ServerReflectionRequest{list_services: "*"}.
  const auto services = client.Raw(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      std::string("\x3a\x01*"));
  ASSERT_OK(services);
  for (const char* name : {"torpor.v1.SessionService", "torpor.v1.ModelService",
                           "torpor.v1.AdminService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(*services, HasSubstr(name));
  }
}

// ---- Prometheus -----------------------------------------------------------

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

// The body of GET /metrics.
std::string Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  const std::string request =
      "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t n = 0; (n = read(fd, bytes, sizeof(bytes))) > 0;) {
    answer.append(bytes, static_cast<size_t>(n));
  }
  close(fd);
  EXPECT_THAT(answer, ::testing::ContainsRegex("^HTTP/1.[01] 200"));
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

TEST_F(DaemonWatchTest, PrometheusTextCountsWhatHappened) {
  const int port = FreePort();
  Start("", {"--metrics-listen", "127.0.0.1:" + std::to_string(port)});
  const Client client(Address());
  ASSERT_OK(client.Register());
  ASSERT_OK(client.Suspend({.ids = ToyIds(1, 50)}));
  client.ExpectStored({.ids = ToyIds(1, 50)});
  EXPECT_THAT(client.Describe("nobody"), HasCode(StatusCode::kNotFound));

  std::istringstream lines(Scrape(port));
  const std::regex sample(
      "([a-z_]+)(\\{([a-z_]+=\"[^\"]*\",?)*\\})? "
      "(-?[0-9.e+-]+|\\+Inf|Na[nN])");
  std::map<std::string, double> values;
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.starts_with("# HELP ") ||
        line.starts_with("# TYPE ")) {
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, sample)) << line;
    const size_t space = line.rfind(' ');
    values[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  EXPECT_EQ(values["torpor_suspends_total"], 1);
  EXPECT_EQ(values["torpor_suspend_bytes_total{kind=\"rows\"}"], 50 * 64);
  const auto count = [&](const std::string& a, const std::string& b) {
    return values["torpor_calls_total{" + a + "," + b + "}"] +
           values["torpor_calls_total{" + b + "," + a + "}"];
  };
  EXPECT_EQ(count("code=\"OK\"", "method=\"Suspend\""), 1);
  EXPECT_EQ(count("code=\"OK\"", "method=\"Resume\""), 1);
  EXPECT_EQ(count("code=\"NOT_FOUND\"", "method=\"Describe\""), 1);
  EXPECT_EQ(values["torpor_resume_tokens_total{kind=\"loaded\"}"] +
                values["torpor_resume_tokens_total{kind=\"replayed\"}"],
            50);
  // A second daemon cannot have that port, and says so.
  EXPECT_THAT(
      ExpectRefused({"--data-dir", dir().File("other"), "--listen",
                     "unix://" + dir().File("run/other"), "--metrics-listen",
                     "127.0.0.1:" + std::to_string(port)}),
      HasSubstr(std::to_string(port)));
}

// ---- tenants --------------------------------------------------------------

TEST_F(DaemonWatchTest, TenantsShareNothing) {
  Start(
      "require_credential = true\n"
      "[[tenant]]\nname = 'a'\nnumber = 1\noperator = true\ntoken_hashes = ['" +
      service::TokenHash("token a") +
      "']\n"
      "[[tenant]]\nname = 'b'\nnumber = 2\ntoken_hashes = ['" +
      service::TokenHash("token b") + "']\n");
  Client a(Address());
  a.token = "token a";
  Client b(Address());
  b.token = "token b";
  Client nobody(Address());
  Client wrong(Address());
  wrong.token = "token c";
  ASSERT_OK(a.Register());
  const ToySuspend s{.ids = ToyIds(1, 50)};
  for (const Client* outside : {&nobody, &wrong}) {
    EXPECT_THAT(outside->Suspend(s), HasCode(StatusCode::kUnauthenticated));
    EXPECT_THAT(outside->Describe("s"), HasCode(StatusCode::kUnauthenticated));
  }
  ASSERT_OK(a.Suspend(s));
  EXPECT_THAT(b.Describe("s"), HasCode(StatusCode::kNotFound));
  // The same name, other rows.
  const ToySuspend other{.ids = ToyIds(2, 60), .salt = 2};
  ASSERT_OK(b.Suspend(other));
  a.ExpectStored(s);
  b.ExpectStored(other);

  // Leases and tickets are of one tenant as well.
  v1::BeginResumeResponse begun;
  const auto context = a.Context();
  const auto writer = a.sessions->BeginResume(context.get(), &begun);
  v1::BeginResumeRequest request;
  request.mutable_header()->set_session("s");
  request.mutable_header()->set_mode(v1::REPLAY_MODE_EXACT);
  request.mutable_header()->set_engine_replays(true);
  writer->Write(request);
  writer->WritesDone();
  ASSERT_OK(FromGrpcStatus(writer->Finish()));
  v1::ReleaseRequest release;
  release.set_lease(begun.lease());
  v1::ResumeReceipt receipt;
  EXPECT_THAT(
      FromGrpcStatus(b.sessions->Release(b.Context().get(), release, &receipt)),
      HasCode(StatusCode::kNotFound));
  EXPECT_OK(FromGrpcStatus(
      a.sessions->Release(a.Context().get(), release, &receipt)));
  // Nor are tokens found across.
  const auto lookup_context = b.Context();
  v1::LookupPrefixResponse hit;
  const auto lookup = b.sessions->LookupPrefix(lookup_context.get(), &hit);
  v1::LookupPrefixRequest ask;
  ask.mutable_header()->set_model("toy");
  lookup->Write(ask);
  ask.mutable_tokens()->mutable_ids()->Add(s.ids.begin(), s.ids.end());
  lookup->Write(ask);
  lookup->WritesDone();
  ASSERT_OK(FromGrpcStatus(lookup->Finish()));
  EXPECT_EQ(hit.hit_len(), 0);
  // The command line has its way too.
  const Finished shown = Torpor({"--token", "token a", "show", "s"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  const Finished refused = Torpor({"show", "s"});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("--token"));

  // What concerns both is the operator's.
  EXPECT_EQ(Torpor({"--token", "token a", "stats"}).code, 0);
  const Finished no_operator = Torpor({"--token", "token b", "stats"});
  EXPECT_NE(no_operator.code, 0);
  EXPECT_THAT(no_operator.err, HasSubstr("operator = true"));
  EXPECT_THAT(Torpor({"--token", "token a", "doctor"}).out,
              HasSubstr("quarantined records"));
  EXPECT_THAT(Torpor({"--token", "token b", "doctor"}).out,
              HasSubstr("store: Stats: got tenant 2"));
}

}  // namespace
}  // namespace torpor::e2e
