// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_TESTS_TESTING_TEMP_DIR_H_
#define TORPOR_TESTS_TESTING_TEMP_DIR_H_

#include <string>

namespace torpor::testing {

// A fresh directory of mode 0700, removed with everything in it at the end.
// Under $TORPOR_TEST_TMP, else $TMPDIR, else /tmp.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string File(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

}  // namespace torpor::testing

#endif  // TORPOR_TESTS_TESTING_TEMP_DIR_H_
