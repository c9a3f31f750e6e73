// FTRL-proximal (McMahan et al. 2013) as in Keras:
//   n' = n + g^2;  sigma = (n'^-p - n^-p) / lr;  z += g - sigma * w;  n = n'
//   w = (clip(z, -l1, l1) - z) / (n^-p / lr + 2 * l2 + beta / lr)
// with p = lr_power. State: n[dim] || z[dim].
// A schedule's rate multiplies g in z: without l1 and l2 this is exactly the step of lr * rate,
// while dividing by a changing lr would shrink every weight along with it.
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer.h"

namespace embermesh {

struct Ftrl {
  static constexpr std::string_view kName = "ftrl";
  static constexpr std::array kParams = {Param{"lr", 0.001, kParamTiny},
                                         Param{"lr_power", -0.5, -4.0, 0.0},
                                         Param{"initial_accumulator", 0.1, 0.0},
                                         Param{"l1", 0.0, 0.0},
                                         Param{"l2", 0.0, 0.0},
                                         Param{"beta", 0.0, 0.0}};
  static constexpr std::size_t kStateVectors = 2;
  static constexpr std::size_t kStateScalars = 0;
  static constexpr bool kTakesDecay = false;  // the weights are solved for anew at each step

  explicit Ftrl(std::span<const double> params)
      : lr(params[0]),
        power(-params[1]),
        initial_accumulator(static_cast<float>(params[2])),
        l1(params[3]),
        l2(params[4]),
        beta(params[5]) {}

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, dim, initial_accumulator);
    std::fill_n(state + dim, dim, 0.0F);
  }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    if (power == 0.5) {
      update(weights, state, grad, dim, rate, [](double n) { return std::sqrt(n); });
    } else {
      update(weights, state, grad, dim, rate, [this](double n) { return std::pow(n, power); });
    }
  }

  // In double: sigma is a difference of two nearly equal roots, and z integrates its error.
  template <class Root>
  void update(float* __restrict weights, float* __restrict state, const float* __restrict grad,
              std::size_t dim, double rate, Root root) const noexcept {
    float* __restrict accumulator = state;
    float* __restrict linear = state + dim;
    for (std::size_t i = 0; i < dim; ++i) {
      const double g = grad[i];
      const double before = accumulator[i];
      const double after = before + g * g;
      const double after_root = root(after);
      const double z = linear[i] + (rate * g - (after_root - root(before)) / lr * weights[i]);
      const double denominator = (after_root + beta) / lr + 2.0 * l2;
      // std::clamp gives references, of which a compiler makes branches instead of vectors.
      const double raised = z < -l1 ? -l1 : z;
      const double solved = ((raised > l1 ? l1 : raised) - z) / denominator;
      // A zero accumulator that never saw a gradient says nothing about the weight: keep it.
      const double kept = weights[i];
      weights[i] = static_cast<float>(denominator > 0.0 ? solved : kept);
      accumulator[i] = static_cast<float>(after);
      linear[i] = static_cast<float>(z);
    }
  }

  double lr;
  double power;
  float initial_accumulator;
  double l1;
  double l2;
  double beta;
};

}  // namespace embermesh
