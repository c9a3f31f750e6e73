#include "xxh64.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

namespace embermesh {
namespace {

uint64_t Hash(std::string_view text, uint64_t seed = 0) {
  return Xxh64(reinterpret_cast<const uint8_t*>(text.data()), text.size(), seed);
}

// The sanity buffer of the xxHash project: bytes of a multiplicative generator.
std::vector<uint8_t> SanityBuffer(size_t size) {
  std::vector<uint8_t> buffer(size);
  uint64_t state = 2654435761U;
  for (uint8_t& byte : buffer) {
    byte = static_cast<uint8_t>(state >> 56);
    state *= 11400714785074694797ULL;
  }
  return buffer;
}

TEST(Xxh64, PublishedVectors) {
  constexpr uint64_t kSeed = 2654435761U;
  const std::vector<uint8_t> buffer = SanityBuffer(222);
  EXPECT_EQ(Xxh64(buffer.data(), 0, 0), 0xEF46DB3751D8E999ULL);
  EXPECT_EQ(Xxh64(buffer.data(), 0, kSeed), 0xAC75FDA2929B17EFULL);
  EXPECT_EQ(Xxh64(buffer.data(), 1, 0), 0xE934A84ADB052768ULL);
  EXPECT_EQ(Xxh64(buffer.data(), 1, kSeed), 0x5014607643A9B4C3ULL);
  EXPECT_EQ(Xxh64(buffer.data(), 14, 0), 0x8282DCC4994E35C8ULL);
  EXPECT_EQ(Xxh64(buffer.data(), 14, kSeed), 0xC3BD6BF63DEB6DF0ULL);
  EXPECT_EQ(Xxh64(buffer.data(), 222, 0), 0xB641AE8CB691C174ULL);
  EXPECT_EQ(Xxh64(buffer.data(), 222, kSeed), 0x20CB8AB7AE10C14AULL);
}

TEST(Xxh64, KnownTexts) {
  EXPECT_EQ(Hash("a"), 0xD24EC4F1A98C6E5BULL);
  EXPECT_EQ(Hash("abc"), 0x44BC2CF5AD770999ULL);
}

TEST(Xxh64, NullIsTheEmptyText) { EXPECT_EQ(Xxh64(nullptr, 0, 0), Hash("")); }

TEST(Xxh64, EveryLengthReadsExactlyItsBytes) {
  std::set<uint64_t> seen;
  for (size_t size = 0; size <= 100; ++size) {
    // A heap copy of the exact size: the address sanitizer sees a read past the end.
    const std::vector<uint8_t> exact(size, 0x5A);
    seen.insert(Xxh64(exact.data(), size, 7));
  }
  EXPECT_EQ(seen.size(), 101U);
}

}  // namespace
}  // namespace embermesh
