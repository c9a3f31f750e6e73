// A planner's config of two tables, by default of unlike widths, and the random batches of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "planner.h"

namespace embermesh {

// Over three shards; a bag of one key to each feature.
inline PlannerConfig two_tables(std::uint32_t first = 2, std::uint32_t second = 3) {
  PlannerConfig config{.feature_tables = {0, 1},
                       .dims = {first, second},
                       .columns = {0, first},
                       .combiners = {Combiner::kSum, Combiner::kSum},
                       .owners = std::vector<std::uint16_t>(16, 0),
                       .shards = 3,
                       .width = first + second};
  for (std::size_t p = 0; p < config.owners.size(); ++p) {
    config.owners[p] = static_cast<std::uint16_t>(p % 3);
  }
  return config;
}

// Fewer than `most_samples`, of the `range` keys from `first_key`.
inline Plan random_plan(const Planner& planner, std::size_t most_samples, std::uint64_t first_key,
                        std::mt19937_64& random, std::uint64_t range = 60) {
  const std::size_t batch = random() % most_samples;
  std::vector<std::uint64_t> keys(2 * batch);
  for (auto& key : keys) key = first_key + random() % range;
  std::vector<std::int32_t> offsets(2 * batch + 1);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int32_t>(i);
  return planner.plan(keys, offsets, static_cast<std::int64_t>(batch));
}

}  // namespace embermesh
