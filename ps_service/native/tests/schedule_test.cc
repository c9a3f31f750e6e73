#include "schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "portable_math.h"

namespace embermesh {
namespace {

TEST(PortableMath, AgreesWithLibm) {
  for (int i = 1; i < 2000; ++i) {
    const double x = i * 0.35;
    EXPECT_NEAR(portable_exp(-x) / std::exp(-x), 1.0, 1e-15) << x;
    EXPECT_NEAR(portable_log(x), std::log(x), 1e-15 * std::max(1.0, std::abs(std::log(x)))) << x;
    const double t = i / 2000.0;
    EXPECT_NEAR(portable_cos_pi(t), std::cos(3.141592653589793 * t), 1e-15) << t;
  }
  EXPECT_EQ(portable_exp(0.0), 1.0);
  EXPECT_EQ(portable_exp(-1e6), 0.0);
  EXPECT_EQ(portable_exp(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(portable_cos_pi(0.5), 0.0);
}

TEST(Schedule, WarmUpRisesToOneAndThenTheScheduleBegins) {
  const auto schedule = make_schedule("exponential", {{"warmup", 4}, {"steps", 2}, {"rate", 0.25}});
  const float expected[] = {0.25F, 0.5F, 0.75F, 1.0F, 1.0F, 0.5F, 0.25F, 0.125F};
  for (std::uint64_t step = 1; step <= 8; ++step) {
    EXPECT_FLOAT_EQ(schedule->factor(step), expected[step - 1]) << step;
  }
  EXPECT_EQ(schedule->factor(0), schedule->factor(1));
}

TEST(Schedule, StaircaseStands) {
  const auto schedule =
      make_schedule("exponential", {{"steps", 3}, {"rate", 0.5}, {"staircase", 1}});
  const float expected[] = {1, 1, 1, 0.5F, 0.5F, 0.5F, 0.25F};
  for (std::uint64_t step = 1; step <= 7; ++step) {
    EXPECT_FLOAT_EQ(schedule->factor(step), expected[step - 1]) << step;
  }
}

TEST(Schedule, CosineEndsAtItsFloorAndStaysThere) {
  const auto schedule = make_schedule("cosine", {{"steps", 100}, {"floor", 0.1}});
  EXPECT_EQ(schedule->factor(1), 1.0F);
  EXPECT_FLOAT_EQ(schedule->factor(51), 0.55F);
  EXPECT_FLOAT_EQ(schedule->factor(101), 0.1F);
  EXPECT_FLOAT_EQ(schedule->factor(std::numeric_limits<std::uint64_t>::max()), 0.1F);
  EXPECT_GE(make_schedule("cosine", {{"steps", 7}})->factor(8), 0.0F);
}

TEST(Schedule, PiecesAreOrderedByTheirStepsNotByTheirText) {
  const auto schedule = make_schedule("piecewise", {{"10", 0.5}, {"9", 0.75}, {"100", 0.0}});
  EXPECT_EQ(schedule->factor(9), 1.0F);    // i = 8
  EXPECT_EQ(schedule->factor(10), 0.75F);  // i = 9
  EXPECT_EQ(schedule->factor(11), 0.5F);
  EXPECT_EQ(schedule->factor(101), 0.0F);
}

TEST(Schedule, RefusesBadNamesAndParameters) {
  EXPECT_THROW(make_schedule("linear", {}), std::invalid_argument);
  EXPECT_THROW(make_schedule("cosine", {{"steps", 0}}), std::invalid_argument);
  EXPECT_THROW(make_schedule("cosine", {{"steps", 1.5}}), std::invalid_argument);
  EXPECT_THROW(make_schedule("exponential", {{"rate", 1.5}}), std::invalid_argument);
  EXPECT_THROW(make_schedule("piecewise", {}), std::invalid_argument);
  EXPECT_THROW(make_schedule("piecewise", {{"007", 0.5}}), std::invalid_argument);
  EXPECT_THROW(make_schedule("piecewise", {{"7", -0.5}}), std::invalid_argument);
  EXPECT_THROW(make_schedule("piecewise", {{"18446744073709551616", 0.5}}), std::invalid_argument);
}

}  // namespace
}  // namespace embermesh
