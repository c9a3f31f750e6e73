#include "initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

namespace embermesh {
namespace {

TEST(Initializer, NormalQuantileMatchesTheDistribution) {
  const std::vector<std::pair<double, double>> known = {{1e-17, -8.4937932241096},
                                                        {1e-12, -7.034483825301132},
                                                        {1e-5, -4.2648907939228256},
                                                        {0.001, -3.090232306167813},
                                                        {0.025, -1.9599639845400538},
                                                        {0.3, -0.5244005127080407},
                                                        {0.5, 0.0},
                                                        {0.8, 0.8416212335729144},
                                                        {0.95, 1.6448536269514715},
                                                        {0.9999, 3.7190164854557084},
                                                        {0.999999999, 5.997807019601638}};
  for (const auto& [p, expected] : known) {
    EXPECT_NEAR(normal_quantile(p), expected, 1e-6 * std::max(1.0, std::abs(expected))) << p;
  }
}

TEST(Initializer, ColumnsOfARowAreAPrefixOfAWiderRow) {
  const auto normal = make_initializer("normal", {});
  std::vector<float> narrow(3);
  std::vector<float> wide(8);
  normal->fill(narrow.data(), narrow.size(), 42);
  normal->fill(wide.data(), wide.size(), 42);
  for (std::size_t i = 0; i < narrow.size(); ++i) EXPECT_EQ(narrow[i], wide[i]);
}

TEST(Initializer, TruncatedNormalStaysWithinTwoDeviationsAndHasItsMoments) {
  const auto truncated = make_initializer("truncated_normal", {{"mean", 1.0}, {"stddev", 0.5}});
  constexpr std::size_t kDraws = 100000;
  std::vector<float> drawn(kDraws);
  truncated->fill(drawn.data(), kDraws, 9);
  double sum = 0.0;
  double squares = 0.0;
  for (const float value : drawn) {
    ASSERT_LE(std::abs(value - 1.0F), 1.0F);
    sum += value - 1.0;
    squares += (value - 1.0) * (value - 1.0);
  }
  // A standard normal cut at two deviations has a variance of 0.7737413.
  EXPECT_NEAR(sum / kDraws, 0.0, 0.007);
  EXPECT_NEAR(squares / kDraws, 0.25 * 0.7737413, 0.003);
  EXPECT_GT(*std::ranges::max_element(drawn), 1.97F);
}

// Column by column, with the compiler's own conversion: what rows of old checkpoints were made of.
float uniform_draw(std::uint64_t row_bits, std::size_t column, double low, double width) {
  const std::uint64_t bits = mix64(row_bits + (column + 1) * 0x9E3779B97F4A7C15ULL);
  return static_cast<float>(low + width * ((static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53));
}

TEST(Initializer, VectorsDrawTheBitsOfTheFormula) {
  constexpr double kLow = -0.05;
  constexpr double kHigh = 0.0625;
  const auto uniform = make_initializer("uniform", {{"low", kLow}, {"high", kHigh}});
  for (std::size_t dim = 1; dim <= 70; ++dim) {
    for (const std::uint64_t row : {std::uint64_t{0}, ~std::uint64_t{0}, mix64(dim)}) {
      std::vector<float> weights(dim);
      uniform->fill(weights.data(), dim, row);
      for (std::size_t column = 0; column < dim; ++column) {
        ASSERT_EQ(weights[column], uniform_draw(row, column, kLow, kHigh - kLow)) << column;
      }
    }
  }
}

TEST(Initializer, XavierFillsTheRangeOfItsDim) {
  const auto xavier = make_initializer("xavier", {{"gain", 2.0}});
  for (const std::size_t dim : {3UL, 768UL}) {
    const float limit = 2.0F * std::sqrt(3.0F / static_cast<float>(dim));
    std::vector<float> row(dim);
    float largest = 0.0F;
    for (std::uint64_t key = 0; key < 1000; ++key) {
      xavier->fill(row.data(), dim, mix64(key));
      for (const float value : row) largest = std::max(largest, std::abs(value));
    }
    EXPECT_LE(largest, limit);
    EXPECT_GT(largest, 0.99F * limit);
  }
}

TEST(Initializer, RefusesUnknownNamesAndParameters) {
  EXPECT_THROW(make_initializer("glorot", {}), std::invalid_argument);
  EXPECT_THROW(make_initializer("normal", {{"sigma", 1.0}}), std::invalid_argument);
  EXPECT_THROW(make_initializer("normal", {{"stddev", -1.0}}), std::invalid_argument);
}

TEST(Initializer, EveryKindShowsItsParameters) {
  for (const KindInfo& kind : initializer_kinds()) {
    const auto made = make_initializer(kind.name, {});
    EXPECT_EQ(made->name(), kind.name);
    EXPECT_EQ(made->params().size(), kind.params.size());
  }
}

}  // namespace
}  // namespace embermesh
