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
