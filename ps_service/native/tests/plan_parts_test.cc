#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <stdexcept>

#include "planner.h"
#include "two_tables.h"

namespace embermesh {
namespace {

// The table of each distinct key.
std::vector<std::size_t> tables_of(const Plan& plan) {
  std::vector<std::size_t> tables;
  for (std::size_t segment = 0; segment < plan.counts().size(); ++segment) {
    tables.insert(tables.end(), plan.counts()[segment], segment % 2);
  }
  return tables;
}

void expect_rows_where_they_were_placed(std::uint32_t first, std::uint32_t second) {
  const Planner planner(two_tables(first, second));
  std::mt19937_64 random(2);
  const Plan plan = random_plan(planner, 40, 0, random);
  std::vector<float> values(plan.total_floats());
  std::iota(values.begin(), values.end(), 0.0F);
  std::vector<std::int32_t> even;
  std::vector<std::int32_t> odd;
  std::vector<float> even_rows;
  std::vector<float> odd_rows;
  const auto tables = tables_of(plan);
  for (std::size_t u = 0, at = 0; u < tables.size(); ++u) {
    const std::size_t dim = tables[u] == 0 ? first : second;
    auto& rows = u % 2 == 0 ? even_rows : odd_rows;
    (u % 2 == 0 ? even : odd).push_back(static_cast<std::int32_t>(u));
    for (std::size_t i = 0; i < dim; ++i) rows.push_back(values[at++]);
  }
  std::vector<float> placed(plan.total_floats(), -1.0F);
  plan.place(odd_rows, odd, placed.data());
  plan.place(even_rows, even, placed.data());
  EXPECT_EQ(placed, values);
  odd_rows.push_back(0.0F);
  EXPECT_THROW(plan.place(odd_rows, odd, placed.data()), std::invalid_argument);
  even.back() = static_cast<std::int32_t>(tables.size());
  EXPECT_THROW(plan.place(even_rows, even, placed.data()), std::invalid_argument);
}

TEST(PlanParts, RowsAreGatheredFromWhereTheyWerePlaced) {
  expect_rows_where_they_were_placed(2, 3);
}

// Widths with a copy of their own, and one without.
TEST(PlanParts, RowsOfOneWidthAreGatheredFromWhereTheyWerePlaced) {
  for (const std::uint32_t dim : {4, 5, 8, 16, 32}) expect_rows_where_they_were_placed(dim, dim);
}

}  // namespace
}  // namespace embermesh
