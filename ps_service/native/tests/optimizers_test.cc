#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "optimizers/optimizer.h"

namespace embermesh {
namespace {

constexpr std::string_view kNames[] = {"sgd",  "momentum",  "adagrad", "rowwise_adagrad",
                                       "adam", "adamw",     "amsgrad", "rmsprop",
                                       "ftrl", "group_ftrl"};

class EachOptimizer : public testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(All, EachOptimizer, testing::ValuesIn(kNames),
                         [](const auto& info) { return std::string(info.param); });

TEST(Optimizers, TheListIsComplete) {
  std::vector<std::string_view> names;
  for (const KindInfo& kind : optimizer_kinds()) names.push_back(kind.name);
  EXPECT_EQ(names, (std::vector<std::string_view>(std::begin(kNames), std::end(kNames))));
}

TEST_P(EachOptimizer, WritesItsRowAndNothingElse) {
  const auto optimizer = make_optimizer(GetParam(), {});
  constexpr float kCanary = 1234.5F;
  for (const std::size_t dim : {1UL, 3UL, 16UL, 33UL, 512UL}) {
    const std::size_t floats = dim + optimizer->state_floats(dim);
    std::vector<float> row(floats + 1, kCanary);
    std::fill_n(row.begin(), dim, 0.5F);
    optimizer->init(row.data() + dim, dim);
    std::vector<float> grad(dim, 0.25F);
    const RowUpdate update{row.data(), grad.data(), 0, 0};
    optimizer->apply({&update, 1}, dim, 1.0F);
    EXPECT_EQ(row.back(), kCanary);
    for (std::size_t i = 0; i < dim; ++i) {
      EXPECT_TRUE(std::isfinite(row[i]));
      EXPECT_EQ(row[i], row[0]) << "equal inputs, equal outputs, whatever the SIMD lane";
      EXPECT_NE(row[i], 0.5F);
    }
  }
}

TEST_P(EachOptimizer, ABatchIsItsRowsOneByOne) {
  const auto optimizer = make_optimizer(GetParam(), {{"lr", 0.1}});
  constexpr std::size_t kDim = 5;
  constexpr std::size_t kRows = 7;
  const std::size_t floats = kDim + optimizer->state_floats(kDim);
  std::vector<std::vector<float>> together(kRows, std::vector<float>(floats, 0.1F));
  std::vector<std::vector<float>> grads(kRows, std::vector<float>(kDim));
  for (std::size_t r = 0; r < kRows; ++r) {
    optimizer->init(together[r].data() + kDim, kDim);
    for (std::size_t i = 0; i < kDim; ++i) grads[r][i] = static_cast<float>(r) - 0.3F * i;
  }
  auto alone = together;
  std::vector<RowUpdate> batch;
  for (std::size_t r = 0; r < kRows; ++r) {
    batch.push_back({together[r].data(), grads[r].data(), 0, 0});
    const RowUpdate single{alone[r].data(), grads[r].data(), 0, 0};
    optimizer->apply({&single, 1}, kDim, 1.0F);
  }
  optimizer->apply(batch, kDim, 1.0F);
  EXPECT_EQ(together, alone);
}

// A damaged or diverged row must stay a bad row, not become undefined behaviour.
TEST_P(EachOptimizer, NonFiniteRowsAreHarmless) {
  const auto optimizer = make_optimizer(GetParam(), {});
  constexpr std::size_t kDim = 4;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -1e30F, 1e30F,
                          std::numeric_limits<float>::infinity()}) {
    std::vector<float> row(kDim + optimizer->state_floats(kDim), bad);
    const std::vector<float> grad(kDim, bad);
    const RowUpdate update{row.data(), grad.data(), 0, 0};
    optimizer->apply({&update, 1}, kDim, 1.0F);
  }
}

TEST(Optimizers, RefusalsNameTheParameterAndTheBounds) {
  try {
    make_optimizer("adam", {{"beta1", 1.0}});
    FAIL() << "beta1 = 1 was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer 'adam': parameter 'beta1' is 1"),
              std::string::npos);
  }
  EXPECT_THROW(make_optimizer("ftrl", {{"lr", 0.0}}), std::invalid_argument);
  EXPECT_THROW(make_optimizer("ftrl", {{"lr_power", 0.5}}), std::invalid_argument);
  EXPECT_THROW(make_optimizer("adagrad", {{"epsilon", 0.0}}), std::invalid_argument);
  EXPECT_THROW(make_optimizer("", {}), std::invalid_argument);
}

}  // namespace
}  // namespace embermesh
