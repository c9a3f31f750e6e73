#include "dense_block.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace embermesh {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(DenseBlock, RoundTripsAndRefusesDamage) {
  DenseBlock block(std::vector<float>{1, 2, 3}, "adam", {{"lr", 0.5}});
  block.apply(std::vector<float>{1, 0, -1});
  const std::string dump = block.dump();
  const auto copy = DenseBlock::load(bytes_of(dump));
  EXPECT_EQ(copy->dump(), dump);
  EXPECT_EQ(copy->step(), 1U);
  for (std::size_t at = 0; at < dump.size(); ++at) {
    std::string damaged = dump;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    ASSERT_THROW(DenseBlock::load(bytes_of(damaged)), std::invalid_argument) << at;
    ASSERT_THROW(DenseBlock::load(bytes_of(dump.substr(0, at))), std::invalid_argument) << at;
  }
}

TEST(DenseBlock, ABlockOfNoParametersRoundTrips) {
  const std::string dumped = DenseBlock({}, "adagrad", {}).dump();
  const auto bytes = std::as_bytes(std::span(dumped.data(), dumped.size()));
  EXPECT_EQ(DenseBlock::load(bytes)->dump(), dumped);
  EXPECT_EQ(DenseBlock::load(bytes)->size(), 0U);
}

TEST(DenseBlock, OptionsTravelWithTheBlockAndTheScheduleGoesOn) {
  const UpdateOptions options{.schedule = "piecewise",
                              .schedule_params = {{"1", 0.5}, {"2", 0.0}},
                              .clip_value = 2.0,
                              .weight_decay = 0.25};
  DenseBlock block(std::vector<float>{4, 8}, "sgd", {{"lr", 1.0}}, options);
  const std::vector<float> grads = {5, -5};
  std::vector<float> values(2);
  block.apply(grads);  // w - w / 4, then the clipped gradient
  block.values(values.data());
  EXPECT_EQ(values, (std::vector<float>{1, 8}));
  const auto copy = DenseBlock::load(bytes_of(block.dump()));
  EXPECT_EQ(copy->dump(), block.dump());
  copy->apply(grads);  // half the learning rate
  copy->values(values.data());
  EXPECT_EQ(values, (std::vector<float>{-0.125F, 8}));
  copy->apply(grads);  // a rate of zero stands still
  copy->values(values.data());
  EXPECT_EQ(values, (std::vector<float>{-0.125F, 8}));
}

TEST(DenseBlock, RefusesWhatWouldDependOnTheBlocks) {
  const std::vector<float> values(3);
  EXPECT_THROW(DenseBlock(values, "sgd", {}, {.clip_norm = 1.0}), std::invalid_argument);
  EXPECT_THROW(DenseBlock(values, "rowwise_adagrad", {}), std::invalid_argument);
  EXPECT_THROW(DenseBlock(values, "adamw", {}, {.weight_decay = 0.1}), std::invalid_argument);
}

TEST(DenseBlock, ThreadsLoseNoStep) {
  DenseBlock block(std::vector<float>(100, 0.0F), "sgd", {{"lr", 1.0}});
  const std::vector<float> grads(100, -1.0F);
  const auto work = [&] {
    std::vector<float> seen(100);
    for (int i = 0; i < 500; ++i) {
      block.apply(grads);
      block.values(seen.data());
      ASSERT_EQ(seen, std::vector<float>(100, seen[0]));
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(block.step(), 1000U);
  std::vector<float> values(100);
  block.values(values.data());
  EXPECT_EQ(values, std::vector<float>(100, 1000.0F));
}

}  // namespace
}  // namespace embermesh
