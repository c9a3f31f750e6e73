#include "local_adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "dense_block.h"

namespace embermesh {
namespace {

using Floats = std::vector<float>;

const Floats kNothing;

Floats roots_of(const LocalAdam& adam) {
  Floats out(adam.size());
  adam.roots(out.data());
  return out;
}

Floats change_of(const LocalAdam& adam) {
  Floats out(adam.size());
  adam.change(out.data());
  return out;
}

Floats values_of(const DenseBlock& block) {
  Floats out(block.size());
  block.values(out.data());
  return out;
}

TEST(LocalAdam, BeforeTheFirstMergeItIsAdam) {
  const Floats start = {1, -2, 0.5F};
  DenseBlock block(start, "adam", {});
  LocalAdam local(3, "adam", {});
  local.restart(start, Floats(3), Floats(3), 0);
  for (int step = 0; step < 5; ++step) {
    const Floats grad = {0.1F * static_cast<float>(step), -3, 0};
    block.apply(grad);
    local.apply(grad);
  }
  const Floats want = values_of(block);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(local.values()[i], want[i]);
  EXPECT_EQ(local.steps(), 5U);
}

TEST(LocalAdam, AMergeOfOneTrainerMovesTheBlockWhereTheTrainerIs) {
  const Floats start = {1, -2};
  DenseBlock block(start, "adam", {});
  LocalAdam local(2, "adam", {});
  local.restart(start, Floats(2), Floats(2), 0);
  local.apply(Floats{0.5F, -4});
  Floats second = roots_of(local);
  for (float& root : second) root *= root;
  block.merge(change_of(local), second, kNothing, 1.0F, local.steps());
  EXPECT_EQ(block.step(), 1U);
  Floats roots(2);
  block.roots(roots.data());
  EXPECT_FLOAT_EQ(roots[1], 4 * std::sqrt(0.001F));
  local.merge(change_of(local), roots, kNothing, block.step());
  EXPECT_EQ(values_of(block), Floats(local.values().begin(), local.values().end()));
  EXPECT_EQ(change_of(local), Floats(2));
  EXPECT_EQ(roots_of(local), Floats(2));
  EXPECT_EQ(local.steps(), 0U);
}

TEST(LocalAdam, AFrozenSecondMomentMovesNothingFurtherThanAdamWould) {
  LocalAdam local(3, "adam", {{"lr", 1.0}});
  local.restart(Floats(3), Floats(3), Floats(3), 100);  // v is zero after 100 steps
  local.apply(Floats{5, -5, 0});
  const float bound = 0.1F / std::sqrt(0.001F);
  EXPECT_FLOAT_EQ(local.values()[0], -bound);
  EXPECT_FLOAT_EQ(local.values()[1], bound);
  EXPECT_EQ(local.values()[2], 0.0F);
}

TEST(LocalAdam, ANaNShows) {
  LocalAdam local(2, "adamw", {});
  local.restart(Floats{1, 1}, Floats{1, 1}, Floats(2), 10);
  local.apply(Floats{std::numeric_limits<float>::quiet_NaN(), 0});
  EXPECT_TRUE(std::isnan(local.values()[0]));
  EXPECT_FALSE(std::isnan(local.values()[1]));
}

TEST(LocalAdam, RefusesOtherOptimizersAndSizes) {
  EXPECT_THROW(LocalAdam(1, "sgd", {}), std::invalid_argument);
  EXPECT_THROW(LocalAdam(1, "adam", {}, {.clip_norm = 1.0}), std::invalid_argument);
  LocalAdam local(2, "adam", {});
  EXPECT_THROW(local.apply(Floats(1)), std::invalid_argument);
  EXPECT_THROW(local.restart(Floats(2), Floats(2), Floats(1), 0), std::invalid_argument);
  EXPECT_THROW(local.merge(Floats(2), Floats(3), kNothing, 1), std::invalid_argument);
  EXPECT_THROW(local.merge(Floats(2), Floats(2), Floats(1), 1), std::invalid_argument);
}

TEST(DenseBlock, MergesOnlyWhatHasASecondMoment) {
  DenseBlock sgd(Floats{1, 2}, "sgd", {});
  Floats out(2);
  EXPECT_THROW(sgd.merge(out, out, kNothing, 1.0F, 1), std::invalid_argument);
  EXPECT_THROW(sgd.roots(out.data()), std::invalid_argument);
  EXPECT_THROW(sgd.momentum(out.data()), std::invalid_argument);
  DenseBlock adam(Floats{1, 2}, "adamw", {});
  EXPECT_THROW(adam.merge(Floats(1), out, kNothing, 1.0F, 1), std::invalid_argument);
  EXPECT_THROW(adam.merge(out, Floats(3), kNothing, 1.0F, 1), std::invalid_argument);
  EXPECT_THROW(adam.merge(out, out, Floats(1), 1.0F, 1), std::invalid_argument);
  EXPECT_EQ(adam.step(), 0U);
}

TEST(DenseBlock, AMergeIsWhatADumpHolds) {
  DenseBlock block(Floats{1, 2}, "adam", {});
  block.merge(Floats{0.5F, -0.5F}, Floats{4, 9}, Floats{7, 8}, 0.25F, 3);
  block.merge(Floats(2), Floats(2), kNothing, 0.25F, 1);
  const std::string dump = block.dump();
  const auto copy = DenseBlock::load(std::as_bytes(std::span(dump.data(), dump.size())));
  Floats out(2);
  copy->roots(out.data());
  EXPECT_EQ(out, (Floats{1, 1.5F}));
  copy->momentum(out.data());
  EXPECT_EQ(out, (Floats{7, 8}));
  EXPECT_EQ(values_of(*copy), (Floats{1.5F, 1.5F}));
  EXPECT_EQ(copy->step(), 4U);
}

}  // namespace
}  // namespace embermesh
