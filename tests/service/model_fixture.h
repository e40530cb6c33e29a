// SPDX-License-Identifier: Apache-2.0
//
// A daemon with two real (tiny, seeded) models, and the built-in engine beside
// it: what never slept, and what puts sessions to sleep and wakes them.

#ifndef TORPOR_TESTS_SERVICE_MODEL_FIXTURE_H_
#define TORPOR_TESTS_SERVICE_MODEL_FIXTURE_H_

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "replay/families.h"
#include "service/cli/engine.h"
#include "service/client.h"
#include "tests/service/service_fixture.h"
#include "tests/testing/random.h"

namespace torpor::service {

using cli::Engine;
using cli::WakeOptions;
using cli::WakeReport;

// Tokens of a session with KV.
inline constexpr uint64_t kLong = 150;

class ModelReplayTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    ASSERT_OK_AND_ASSIGN(client_, Client::Connect({.address = Address()}));
    for (const char* name : {"w8", "w7"}) {
      v1::RegisterRequest request;
      request.set_name(name);
      request.set_model_dir(Dir(name));
      request.set_block_size(kToyBlock);
      ASSERT_OK_AND_ASSIGN(
          const v1::ModelState state,
          Ask(models(), &v1::ModelService::Stub::Register, request));
      EXPECT_THAT(state.executors(), ::testing::Contains("daemon"));
      ASSERT_OK_AND_ASSIGN(models_[name], replay::LoadModel(Dir(name), {}));
    }
  }
  static std::string Dir(const std::string& name) {
    return std::string(TORPOR_ORACLES_DIR) + "/gemma3/" + name;
  }
  std::string Address() { return server().addresses().front(); }
  void Reconnect() {
    client_.reset();
    Restart();
    ASSERT_OK_AND_ASSIGN(client_, Client::Connect({.address = Address()}));
  }

  std::vector<uint32_t> Ids(const std::string& model, size_t n,
                            uint64_t stream) {
    testing::Random random(stream);
    std::vector<uint32_t> ids(n);
    for (uint32_t& id : ids) {
      id = static_cast<uint32_t>(
          random.Between(0, models_[model]->vocab_size() - 1));
    }
    return ids;
  }
  Engine NewEngine(const std::string& model) {
    return Engine(models_[model].get(), model);
  }
  // A session of kLong tokens and one more that pends, asleep.
  Engine Asleep(const std::string& model, const std::string& session,
                bool snapshot) {
    Engine engine = NewEngine(model);
    engine.Start({});
    engine.Append(Ids(model, kLong + 1, 1));
    EXPECT_OK(engine.Sleep(client_.get(), session, kToyBlock, snapshot));
    return engine;
  }
  absl::StatusOr<WakeReport> Wake(Engine* engine, const std::string& session,
                                  v1::ReplayMode mode,
                                  v1::ResumeLimits limits = {}) {
    return engine->Wake(client_.get(), session,
                        {.mode = mode, .limits = limits});
  }
  static bool SameBits(const std::vector<float>& a,
                       const std::vector<float>& b) {
    return a.size() == b.size() && !a.empty() &&
           std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  std::unique_ptr<Client> client_;
  std::map<std::string, std::unique_ptr<replay::Model>> models_;
};

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_MODEL_FIXTURE_H_
