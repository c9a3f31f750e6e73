#include "admission.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "hash.h"

namespace embermesh {
namespace {

TEST(Admission, AllAdmitsEveryKeyWithoutAGate) {
  for (const auto& policy : {make_admission("all", {}), make_admission("count", {{"n", 1.0}}),
                             make_admission("probability", {{"p", 1.0}})}) {
    EXPECT_TRUE(policy->is_open());
  }
}

TEST(Admission, CountAdmitsTheNthOccurrence) {
  const auto policy = make_admission("count", {{"n", 3.0}, {"keys", 1000.0}});
  const auto gate = policy->gate(4);
  for (std::uint64_t key = 1; key < 100; ++key) {
    EXPECT_FALSE(gate->admit(mix64(key), {}));
    EXPECT_FALSE(gate->admit(mix64(key), {}));
    EXPECT_TRUE(gate->admit(mix64(key), {}));
  }
}

TEST(Admission, ProbabilityIsAFunctionOfKeyAndStep) {
  const auto policy = make_admission("probability", {{"p", 0.3}});
  const auto one = policy->gate(1);
  const auto other = policy->gate(1024);
  int admitted = 0;
  int again = 0;
  constexpr int kKeys = 20000;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const bool now = one->admit(mix64(key + 1), {7, 0});
    EXPECT_EQ(now, other->admit(mix64(key + 1), {7, 99}));
    admitted += now ? 1 : 0;
    again += now && one->admit(mix64(key + 1), {8, 0}) ? 1 : 0;
  }
  EXPECT_NEAR(admitted, 0.3 * kKeys, 0.02 * kKeys);
  EXPECT_NEAR(again, 0.09 * kKeys, 0.02 * kKeys);  // steps are independent
}

TEST(Admission, BadParametersAreRefusedByName) {
  EXPECT_THROW(make_admission("never", {}), std::invalid_argument);
  EXPECT_THROW(make_admission("count", {{"n", 2.5}}), std::invalid_argument);
  EXPECT_THROW(make_admission("count", {{"n", 16.0}}), std::invalid_argument);
  EXPECT_THROW(make_admission("count", {{"error", 0.0}}), std::invalid_argument);
  EXPECT_THROW(make_admission("probability", {{"p", 1.5}}), std::invalid_argument);
  EXPECT_EQ(make_admission("count", {})->params().at("n"), 2.0);
}

}  // namespace
}  // namespace embermesh
