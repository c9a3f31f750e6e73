#include "row_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "initializer.h"

namespace embermesh {
namespace {

constexpr std::uint32_t kHalf = 0x80000000U;

// The value of a binary16 by its definition, in double.
double fp16_by_definition(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const double mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(RowCodec, EveryHalfIsReadByItsDefinitionAndWrittenBackUnchanged) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float fp16 = from_fp16(half);
    if ((half >> 10 & 31) != 31) {
      ASSERT_EQ(double{fp16}, fp16_by_definition(half)) << bits;
    }
    for (const std::uint32_t random : {0U, kHalf, 0xFFFFFFFFU}) {
      if (!std::isnan(fp16)) {
        ASSERT_EQ(to_fp16(fp16, random), half) << bits;
      }
      const float bf16 = from_bf16(half);
      if (!std::isnan(bf16)) {
        ASSERT_EQ(to_bf16(bf16, random), half) << bits;
      }
    }
  }
}

TEST(RowCodec, AWeightBecomesOneOfItsTwoNeighbours) {
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const auto random = static_cast<std::uint32_t>(mix64(i));
    // All exponents of fp16 and some beyond, both signs.
    const float value = std::bit_cast<float>(
        static_cast<std::uint32_t>(mix64(i + 1) & 0x807FFFFFU) | (90 + i % 52) << 23);
    const std::uint16_t low = to_fp16(value, 0);
    const std::uint16_t got = to_fp16(value, random);
    ASSERT_TRUE(got == low || got == low + 1) << value;
    ASSERT_LE(std::abs(from_fp16(low)), std::abs(value));
    if ((low & 0x7FFF) < 0x7BFF) {
      ASSERT_GT(std::abs(from_fp16(static_cast<std::uint16_t>(low + 1))), std::abs(value));
    }
    const std::uint16_t brain = to_bf16(value, random);
    const std::uint16_t below = to_bf16(value, 0);
    ASSERT_TRUE(brain == below || brain == below + 1) << value;
    ASSERT_LE(std::abs(from_bf16(below)), std::abs(value));
  }
}

// `value` in units of the gap between its two neighbours; what is dropped and a draw of as many
// bits, 31 at most, carry into the upper neighbour if they add up to 1.
std::uint32_t fp16_by_addition(double value, std::uint32_t random) {
  const int exponent = std::ilogb(value);
  const int unit = std::max(exponent, -14) - 10;
  const double units = std::ldexp(value, -unit);
  const int dropped = std::min(unit - (exponent - 23), 31);
  const double part = std::floor(std::ldexp(units - std::floor(units), dropped));
  const double draw = std::floor(std::ldexp(random, dropped - 32));
  const double up = part + draw >= std::ldexp(1.0, dropped) ? 1.0 : 0.0;
  // Neighbours have consecutive numbers; those of an exponent above the smallest start at 1024.
  return static_cast<std::uint32_t>(std::floor(units) + up) +
         1024U * static_cast<std::uint32_t>(unit + 24);
}

TEST(RowCodec, ADrawCarriesAsOftenAsWhatIsDropped) {
  for (std::uint32_t i = 0; i < 300000; ++i) {
    const auto random = static_cast<std::uint32_t>(mix64(i));
    const std::uint32_t exponent = 60 + i % 82;  // to those of the largest fp16
    const float value =
        std::bit_cast<float>(static_cast<std::uint32_t>(mix64(i + 1) & 0x7FFFFFU) | exponent << 23);
    const std::uint32_t expected = std::min(fp16_by_addition(value, random), 0x7BFFU);
    ASSERT_EQ(to_fp16(value, random), expected) << value;
    ASSERT_EQ(to_fp16(-value, random), expected | 0x8000U) << value;
  }
}

TEST(RowCodec, WhatIsTooLargeSaturatesAndWhatIsNotFiniteStays) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::uint32_t random : {0U, kHalf, 0xFFFFFFFFU}) {
    EXPECT_EQ(from_fp16(to_fp16(1e6F, random)), 65504.0F);
    EXPECT_EQ(from_fp16(to_fp16(-65510.0F, random)), -65504.0F);
    EXPECT_EQ(from_bf16(to_bf16(std::numeric_limits<float>::max(), random)), 0x1.FEp127F);
    EXPECT_EQ(from_fp16(to_fp16(-kInf, random)), -kInf);
    EXPECT_EQ(from_bf16(to_bf16(kInf, random)), kInf);
    EXPECT_TRUE(std::isnan(from_fp16(to_fp16(kNan, random))));
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(-kNan, random))));
  }
}

// The mean over n roundings of a value at distance q (in units of the gap) from its lower neighbour
// has a standard deviation of gap * sqrt(q * (1 - q) / n); five of them leave no room for bias.
TEST(RowCodec, RoundingIsUnbiased) {
  constexpr int kDraws = 200000;
  for (const WeightType type : {WeightType::kFp16, WeightType::kBf16}) {
    for (const float value : {0.1F, -0.01234F, 1.0007F, -3.14159F, 5e-6F, -1.7e-7F, 9e-9F}) {
      double sum = 0.0;
      for (int step = 0; step < kDraws; ++step) {
        float row[1];
        float stored = 0.0F;
        narrow_weights(type, &value, 1, Rounding::stochastic(77, step), row);
        widen_weights(type, row, 1, &stored);
        sum += stored;
      }
      const auto narrow = [type](float v, std::uint32_t r) {
        return type == WeightType::kFp16 ? from_fp16(to_fp16(v, r)) : from_bf16(to_bf16(v, r));
      };
      const double gap = std::abs(double{narrow(value, 0xFFFFFFFFU)} - narrow(value, 0));
      const double share = std::abs(value - double{narrow(value, 0)}) / gap;
      const double deviation = gap * std::sqrt(share * (1.0 - share) / kDraws);
      EXPECT_NEAR(sum / kDraws, value, 5.0 * deviation) << value;
    }
  }
}

TEST(RowCodec, ColumnsAndStepsDrawIndependently) {
  const Rounding first = Rounding::stochastic(1, 1);
  const Rounding second = Rounding::stochastic(1, 2);
  int equal = 0;
  int common_bits = 0;
  for (std::uint32_t column = 0; column < 1000; ++column) {
    equal += first.draw(column) == first.draw(column + 1) ? 1 : 0;
    common_bits += std::popcount(~(first.draw(column) ^ second.draw(column)));
  }
  EXPECT_EQ(equal, 0);
  EXPECT_NEAR(common_bits, 16000, 5 * 90);  // of 32000; the deviation is sqrt(8000)
}

TEST(RowCodec, AnyWidthIsWrittenToItsEndAndNoFurther) {
  for (const std::size_t dim : {1UL, 2UL, 7UL, 64UL, 65UL, 130UL, 512UL}) {
    for (const WeightType type : {WeightType::kFp32, WeightType::kFp16, WeightType::kBf16}) {
      constexpr float kCanary = 1234.5F;
      std::vector<float> weights(dim);
      for (std::size_t i = 0; i < dim; ++i) weights[i] = static_cast<float>(i % 100) - 50.0F;
      std::vector<float> row(weight_units(type, dim) + 1, kCanary);
      narrow_weights(type, weights.data(), dim, Rounding::stochastic(3, 4), row.data());
      EXPECT_EQ(row.back(), kCanary);
      std::vector<float> read(dim + 1, kCanary);
      widen_weights(type, row.data(), dim, read.data());
      EXPECT_EQ(read.back(), kCanary);
      read.pop_back();
      EXPECT_EQ(read, weights);  // small whole numbers are exact in all three
    }
  }
}

// Blocks of columns, and those that overlap at the end of a row, do what single columns do.
TEST(RowCodec, AColumnIsConvertedAloneWhateverTheWidth) {
  for (std::size_t dim = 1; dim <= 70; ++dim) {
    for (const bool is_fp16 : {true, false}) {
      const WeightType type = is_fp16 ? WeightType::kFp16 : WeightType::kBf16;
      for (const Rounding rounding : {Rounding::stochastic(dim, 5), Rounding::nearest()}) {
        std::vector<float> weights(dim);
        for (std::size_t i = 0; i < dim; ++i) {
          weights[i] = std::ldexp(static_cast<float>(mix64(i) >> 40) - 0x1p23F, -30 - int(i % 20));
        }
        std::vector<float> row(weight_units(type, dim), -1.0F);
        std::vector<float> read(dim);
        narrow_weights(type, weights.data(), dim, rounding, row.data());
        widen_weights(type, row.data(), dim, read.data());
        std::vector<std::uint16_t> halves(2 * row.size());
        std::memcpy(halves.data(), row.data(), row.size() * sizeof row[0]);
        for (std::size_t i = 0; i < dim; ++i) {
          const std::uint32_t draw = rounding.draw(static_cast<std::uint32_t>(i));
          const std::uint32_t half =
              is_fp16 ? to_fp16(weights[i], draw) : to_bf16(weights[i], draw);
          ASSERT_EQ(halves[i], half) << dim << " " << i;
          ASSERT_EQ(read[i], is_fp16 ? from_fp16(half) : from_bf16(half)) << dim << " " << i;
        }
        if (dim % 2 != 0) {
          ASSERT_EQ(halves[dim], 0) << dim;
        }
      }
    }
  }
}

TEST(RowCodec, NamesAreParsedAndUnknownOnesRefused) {
  for (const char* name : {"fp32", "fp16", "bf16"}) {
    EXPECT_EQ(weight_type_name(parse_weight_type(name)), name);
  }
  EXPECT_THROW(parse_weight_type("fp8"), std::invalid_argument);
}

}  // namespace
}  // namespace embermesh
