// Adam (Kingma & Ba 2014) as in Keras, lazy: a row's step count t advances only when it is touched.
//   m += (1 - beta1) * (g - m);  v += (1 - beta2) * (g^2 - v)
//   w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)
// State: m[dim] || v[dim] || t. t is a float like the rest of the row; it is exact up to 2^24 and
// stays there.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "optimizer.h"

namespace embermesh {

struct Adam {
  static constexpr std::string_view kName = "adam";
  static constexpr float kMaxStep = 16777216.0F;  // 2^24
  static constexpr std::array kParams = {
      Param{"lr", 0.001, 0.0}, Param{"beta1", 0.9, 0.0, kParamBelowOne},
      Param{"beta2", 0.999, 0.0, kParamBelowOne}, Param{"epsilon", 1e-7, kParamTiny}};
  static constexpr std::size_t kStateVectors = 2;
  static constexpr std::size_t kStateScalars = 1;

  explicit Adam(std::span<const double> params)
      : lr(params[0]),
        beta1(params[1]),
        beta2(params[2]),
        gain1(static_cast<float>(1.0 - beta1)),
        gain2(static_cast<float>(1.0 - beta2)),
        epsilon(static_cast<float>(params[3])) {
    // Most rows of a sparse table are touched rarely, so their step sizes come from here.
    constexpr std::size_t kRememberedSteps = 4096;
    for (std::size_t t = 1; t <= kRememberedSteps; ++t) step_sizes.push_back(corrected_lr(t));
  }

  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, 2 * dim + 1, 0.0F); }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    float* __restrict m = state;
    float* __restrict v = state + dim;
    const float alpha = next_step_size(state[2 * dim]) * rate;
    for (std::size_t i = 0; i < dim; ++i) {
      m[i] += gain1 * (grad[i] - m[i]);
      v[i] += gain2 * (grad[i] * grad[i] - v[i]);
      weights[i] -= alpha * m[i] / (std::sqrt(v[i]) + epsilon);
    }
  }

  // Advances the row's own step count and returns lr with the corrections of that step.
  [[nodiscard]] float next_step_size(float& step) const noexcept {
    // max and min in this order also turn the NaN of a damaged row into a legal step.
    step = std::min(std::max(1.0F, step + 1.0F), kMaxStep);
    const auto t = static_cast<std::size_t>(step);
    return t <= step_sizes.size() ? step_sizes[t - 1] : corrected_lr(t);
  }

  // In double, because 1 - beta2^t loses half its digits in float32; powers by squaring, because
  // every machine must agree on every bit.
  [[nodiscard]] float corrected_lr(std::size_t t) const noexcept {
    return static_cast<float>(lr * std::sqrt(1.0 - power(beta2, t)) / (1.0 - power(beta1, t)));
  }

  [[nodiscard]] static double power(double base, std::size_t exponent) noexcept {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1, base *= base) {
      if ((exponent & 1) != 0) result *= base;
    }
    return result;
  }

  double lr;
  double beta1;
  double beta2;
  float gain1;
  float gain2;
  float epsilon;
  std::vector<float> step_sizes;
};

}  // namespace embermesh
