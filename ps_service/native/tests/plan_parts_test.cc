#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <stdexcept>

#include "planner.h"

namespace embermesh {
namespace {

PlannerConfig two_tables() {
  PlannerConfig config{.feature_tables = {0, 1},
                       .dims = {2, 3},
                       .columns = {0, 2},
                       .combiners = {Combiner::kSum, Combiner::kSum},
                       .owners = std::vector<std::uint16_t>(16, 0),
                       .shards = 3,
                       .width = 5};
  for (std::size_t p = 0; p < config.owners.size(); ++p) {
    config.owners[p] = static_cast<std::uint16_t>(p % 3);
  }
  return config;
}

Plan random_plan(const Planner& planner, std::mt19937_64& random) {
  const std::size_t batch = random() % 40;
  std::vector<std::uint64_t> keys(2 * batch);
  for (auto& key : keys) key = random() % 60;
  std::vector<std::int32_t> offsets(2 * batch + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  return planner.plan(keys, offsets, static_cast<std::int64_t>(batch));
}

// The table of each distinct key.
std::vector<std::size_t> tables_of(const Plan& plan) {
  std::vector<std::size_t> tables;
  for (std::size_t segment = 0; segment < plan.counts().size(); ++segment) {
    tables.insert(tables.end(), plan.counts()[segment], segment % 2);
  }
  return tables;
}

TEST(PlanParts, RowsAreGatheredFromWhereTheyWerePlaced) {
  const Planner planner(two_tables());
  std::mt19937_64 random(2);
  const Plan plan = random_plan(planner, random);
  std::vector<float> values(plan.total_floats());
  std::iota(values.begin(), values.end(), 0.0F);
  std::vector<std::int32_t> even;
  std::vector<std::int32_t> odd;
  std::vector<float> even_rows;
  std::vector<float> odd_rows;
  const auto tables = tables_of(plan);
  for (std::size_t u = 0, at = 0; u < tables.size(); ++u) {
    const std::size_t dim = tables[u] == 0 ? 2 : 3;
    auto& rows = u % 2 == 0 ? even_rows : odd_rows;
    (u % 2 == 0 ? even : odd).push_back(static_cast<std::int32_t>(u));
    for (std::size_t i = 0; i < dim; ++i) rows.push_back(values[at++]);
  }
  std::vector<float> placed(plan.total_floats(), -1.0F);
  plan.place(odd_rows, odd, placed.data());
  plan.place(even_rows, even, placed.data());
  EXPECT_EQ(placed, values);
  EXPECT_THROW(plan.place(odd_rows, even, placed.data()), std::invalid_argument);
}

}  // namespace
}  // namespace embermesh
