#include "crc32c.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

namespace embermesh {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32c, HasTheValuesOfRfc3720) {
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  for (const auto function : {crc32c, crc32c_portable}) {
    EXPECT_EQ(function(bytes_of("123456789")), 0xE3069283U);
    EXPECT_EQ(function({}), 0U);
    EXPECT_EQ(function(zeros), 0x8A9136AAU);
    EXPECT_EQ(function(ones), 0x62A8AB43U);
  }
}

TEST(Crc32c, HardwareAndPortableAgreeOnEveryLengthAndAlignment) {
  std::vector<std::byte> data(300);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 + 11);
  const std::span<const std::byte> all(data);
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t size = 0; start + size <= all.size(); ++size) {
      const auto part = all.subspan(start, size);
      ASSERT_EQ(crc32c(part), crc32c_portable(part)) << start << " " << size;
    }
  }
}

TEST(Crc32c, DataSealedWithItsMaskedChecksumKeepsAnIdentity) {
  std::uint32_t seen[2] = {0, 0};
  for (const bool masked : {false, true}) {
    for (std::uint32_t data = 0; data < 2; ++data) {
      const std::uint32_t crc = crc32c(std::as_bytes(std::span(&data, 1)));
      const std::uint32_t sealed[2] = {data, masked ? masked_crc(crc) : crc};
      seen[data] = crc32c(std::as_bytes(std::span(sealed)));
    }
    EXPECT_EQ(seen[0] != seen[1], masked);
  }
}

}  // namespace
}  // namespace embermesh
