#include "wire_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "hash.h"
#include "row_codec.h"

namespace embermesh {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

struct Outcome {
  std::vector<float> values;
  Rounded rounded;
};

Outcome over_the_wire(ValueCoding coding, const std::vector<float>& values) {
  std::vector<std::byte> data(encoded_bytes(coding, values.size()));
  Outcome outcome{std::vector<float>(values.size()), encode_values(coding, values, data.data())};
  decode_values(coding, data, outcome.values);
  return outcome;
}

// The nearest of all finite halves by search, ties to the even one.
std::uint16_t nearest_by_search(float value) {
  std::uint16_t best = 0;
  for (std::uint16_t half = 1; half <= 0x7BFF; ++half) {
    const double near = std::abs(double{from_fp16(half)} - std::abs(double{value}));
    const double known = std::abs(double{from_fp16(best)} - std::abs(double{value}));
    if (near < known || (near == known && half % 2 == 0)) best = half;
  }
  return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

TEST(WireCodec, EveryHalfSurvives) {
  std::vector<float> values;
  for (std::uint32_t half = 0; half <= 0xFFFF; ++half) {
    if ((half & 0x7FFF) <= 0x7C00) values.push_back(from_fp16(static_cast<std::uint16_t>(half)));
  }
  const Outcome got = over_the_wire(ValueCoding::kFp16, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got.values[i]), std::bit_cast<std::uint32_t>(values[i]));
  }
  EXPECT_EQ(got.rounded.clipped, 0U);
  EXPECT_EQ(got.rounded.flushed, 0U);
}

TEST(WireCodec, RoundsToTheNearestHalf) {
  std::vector<float> values = {0x1p-25F, 0x1.8p-24F, 0x1p-24F, 2049.0F, 2051.0F, 65519.0F, -0.0F};
  for (std::uint64_t i = 0; i < 150; ++i) {  // around all exponents of a half, both signs
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(mix64(i + 1) & 0x807FFFFFU) |
                                          static_cast<std::uint32_t>(100 + i % 42) << 23));
  }
  const Outcome got = over_the_wire(ValueCoding::kFp16, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(got.values[i], from_fp16(nearest_by_search(values[i]))) << values[i];
  }
}

TEST(WireCodec, CountsWhatItClipsAndFlushesAndKeepsWhatIsNoNumber) {
  const std::vector<float> values = {65520.0F,      -1e30F,   65519.0F, kInfinite, -kInfinite,
                                     std::nanf(""), 0x1p-25F, -1e-30F,  0.0F,      -0.0F};
  const Outcome got = over_the_wire(ValueCoding::kFp16, values);
  EXPECT_EQ(got.rounded.clipped, 2U);
  EXPECT_EQ(got.rounded.flushed, 2U);
  EXPECT_EQ(got.values[0], 65504.0F);
  EXPECT_EQ(got.values[1], -65504.0F);
  EXPECT_EQ(got.values[3], kInfinite);
  EXPECT_EQ(got.values[4], -kInfinite);
  EXPECT_TRUE(std::isnan(got.values[5]));
  EXPECT_TRUE(std::signbit(got.values[9]));
}

TEST(WireCodec, ScaledBlocksKeepElevenBitsOfAnyMagnitude) {
  for (const float size : {0x1p-140F, 1e-30F, 1e-7F, 1.0F, 1e30F, 3.4e38F}) {
    std::vector<float> values;
    for (std::size_t i = 0; i < 3 * kScaledBlock + 5; ++i) {
      const auto unit =
          static_cast<float>(static_cast<std::int32_t>(mix64(i) >> 40)) * 0x1p-23F - 1;
      values.push_back(unit * size);
    }
    const Outcome got = over_the_wire(ValueCoding::kScaledFp16, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(double{got.values[i]} - double{values[i]});
      // One rounding to 11 bits and one to float32, whose unit is 2^-149 for the smallest.
      ASSERT_LE(error, std::abs(double{values[i]}) * 0x1.01p-11 + 0x1p-149) << values[i];
    }
    EXPECT_EQ(got.rounded.clipped, 0U);
  }
}

TEST(WireCodec, ScaledBlocksOfZerosInfinitiesAndNans) {
  const Outcome zeros = over_the_wire(ValueCoding::kScaledFp16, std::vector<float>(70, 0.0F));
  EXPECT_EQ(zeros.values, std::vector<float>(70, 0.0F));
  const Outcome odd =
      over_the_wire(ValueCoding::kScaledFp16, {kInfinite, 3.0F, std::nanf(""), -kInfinite, 1e-30F});
  EXPECT_EQ(odd.values[0], kInfinite);
  EXPECT_EQ(odd.values[1], 3.0F);
  EXPECT_TRUE(std::isnan(odd.values[2]));
  EXPECT_EQ(odd.values[3], -kInfinite);
  EXPECT_EQ(odd.values[4], 0.0F);
  EXPECT_EQ(odd.rounded.flushed, 1U);
  const Outcome nothing = over_the_wire(ValueCoding::kScaledFp16, {kInfinite});
  EXPECT_EQ(nothing.values[0], kInfinite);
}

TEST(WireCodec, DecodersRefuseWhatIsNoEncoding) {
  std::vector<float> out(65);
  for (const auto coding : {ValueCoding::kFp32, ValueCoding::kFp16, ValueCoding::kScaledFp16}) {
    const std::size_t size = encoded_bytes(coding, out.size());
    const std::vector<std::byte> data(size + 1);
    EXPECT_THROW(decode_values(coding, data, out), std::invalid_argument);
    EXPECT_THROW(decode_values(coding, std::span(data).first(size - 1), out),
                 std::invalid_argument);
  }
  for (const float norm : {0.0F, -1.0F, kInfinite, std::nanf("")}) {
    std::vector<float> values(65, 1.0F);
    std::vector<std::byte> data(encoded_bytes(ValueCoding::kScaledFp16, values.size()));
    encode_values(ValueCoding::kScaledFp16, values, data.data());
    std::memcpy(data.data() + 4 + kScaledBlock * 2, &norm, sizeof norm);  // of the second block
    EXPECT_THROW(decode_values(ValueCoding::kScaledFp16, data, out), std::invalid_argument);
  }
  EXPECT_THROW(parse_value_coding("fp8"), std::invalid_argument);
}

std::vector<std::uint64_t> decode(const std::vector<std::uint32_t>& counts,
                                  const std::string& data) {
  std::vector<std::uint64_t> keys(count_keys(counts, data.size()));
  decode_keys(counts, std::as_bytes(std::span(data)), keys);
  return keys;
}

std::vector<std::uint64_t> keys_over_the_wire(const std::vector<std::uint32_t>& counts,
                                              const std::vector<std::uint64_t>& keys,
                                              std::size_t bytes) {
  const std::string data = encode_keys(counts, keys);
  EXPECT_EQ(data.size(), bytes);
  return decode(counts, data);
}

TEST(WireCodec, KeysTakeTheBytesTheyNeedAndKeepTheirOrder) {
  for (std::size_t width = 1; width <= 8; ++width) {
    const std::uint64_t far = ~0ULL >> (64 - 8 * width);
    const std::vector<std::uint64_t> keys = {7, 7 + far, 9, 8};  // 7 + far would wrap at 8 bytes
    const std::vector<std::uint64_t> wide = {0, far, 2, 1};
    const auto& used = width < 8 ? keys : wide;
    EXPECT_EQ(keys_over_the_wire({0, 4, 0}, used, 9 + 4 * width), used);
  }
  const std::vector<std::uint64_t> both = {~0ULL, 5, 300};
  EXPECT_EQ(keys_over_the_wire({1, 2}, both, 9 + 9 + 2 * 2), both);
  EXPECT_EQ(keys_over_the_wire({0, 0}, {}, 0), std::vector<std::uint64_t>{});
  EXPECT_THROW(encode_keys(std::vector<std::uint32_t>{2}, both), std::invalid_argument);
}

TEST(WireCodec, KeyDecoderRefusesWhatIsNoEncoding) {
  const std::vector<std::uint32_t> counts = {2, 0, 1};
  const std::string good = encode_keys(counts, std::vector<std::uint64_t>{3, 400, 5});
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(decode(counts, good.substr(0, size)), std::invalid_argument) << size;
  }
  EXPECT_THROW(decode(counts, good + '\0'), std::invalid_argument);
  std::string wide = good;
  wide[0] = 9;
  EXPECT_THROW(decode(counts, wide), std::invalid_argument);
  // Keys of no bytes would let a few bytes ask for gigabytes.
  std::string none(9, '\0');
  EXPECT_EQ(decode({1}, none), std::vector<std::uint64_t>{0});
  EXPECT_THROW(decode({4'000'000'000U}, none), std::invalid_argument);
}

}  // namespace
}  // namespace embermesh
