// SPDX-License-Identifier: Apache-2.0
//
// kernels/device_row_codec.h as the host compiles it for the emulator.

#include "kernels/device_row_codec.h"

#include <bit>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

using device::CanonicalNan;
using device::E2m1Value;
using device::E4m3Value;
using device::Fp4Code;
using device::Fp8Code;

// What a GPU rounds and a CPU does not see: its own NaN, and any in a quotient.
TEST(RowCodecDeviceTest, CodesAndNanAreThoseOfEveryDevice) {
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    EXPECT_TRUE(
        SameBits(std::vector{E4m3Value(code)}, std::vector{E4m3ToFloat(byte)}))
        << code;
    EXPECT_TRUE(
        SameBits(std::vector{E2m1Value(code)}, std::vector{E2m1ToFloat(byte)}))
        << code;
  }
  for (const uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    const auto value = std::bit_cast<float>(nan);
    EXPECT_EQ(std::bit_cast<uint32_t>(CanonicalNan(value)), kDecodedNanBits);
    const uint32_t sign = nan >> 31;
    EXPECT_EQ(Fp8Code(value, 1.0f), sign << 7 | kE4m3NanCode);
    EXPECT_EQ(Fp4Code(value, 1.0f), sign << 3 | 7);
    EXPECT_EQ(Fp4Code(-2.0f, value), 15u);
  }
  EXPECT_EQ(CanonicalNan(-0.0f), 0.0f);
}

}  // namespace
}  // namespace torpor::kernels
