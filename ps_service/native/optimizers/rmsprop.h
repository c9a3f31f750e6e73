// RMSprop (Tieleman & Hinton 2012) as in Keras:
//   v += (1 - rho) * (g^2 - v)
//   centered = 1:  a += (1 - rho) * (g - a);  u = v - a^2        else  u = v
//   momentum > 0:  m = momentum * m + lr * g / sqrt(u + epsilon);  w -= m
//   else           w -= lr * g / sqrt(u + epsilon)
// State: v[dim], then m[dim] with momentum, then a[dim] if centered.
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer.h"

namespace embermesh {

struct RmsProp {
  static constexpr std::string_view kName = "rmsprop";
  static constexpr std::array kParams = {
      Param{"lr", 0.001, 0.0}, Param{"rho", 0.9, 0.0, kParamBelowOne},
      Param{"momentum", 0.0, 0.0, kParamBelowOne}, Param{"epsilon", 1e-7, kParamTiny},
      Param{"centered", 0.0, 0.0, 1.0, Param::kSwitch}};
  static constexpr std::size_t kStateScalars = 0;

  explicit RmsProp(std::span<const double> params)
      : lr(static_cast<float>(params[0])),
        gain(static_cast<float>(1.0 - params[1])),
        momentum(static_cast<float>(params[2])),
        epsilon(static_cast<float>(params[3])),
        centered(params[4] != 0.0) {}

  [[nodiscard]] std::size_t state_vectors() const noexcept {
    return std::size_t{1} + (momentum > 0.0F ? 1 : 0) + (centered ? 1 : 0);
  }

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, state_vectors() * dim, 0.0F);
  }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    float* __restrict mean = state + (state_vectors() - 1) * dim;
    float* __restrict velocity = state + dim;
    const float step = lr * rate;
    for (std::size_t i = 0; i < dim; ++i) {
      state[i] += gain * (grad[i] * grad[i] - state[i]);
      float spread = state[i];
      if (centered) {
        mean[i] += gain * (grad[i] - mean[i]);
        // A variance, so below zero by rounding only.
        spread = std::max(spread - mean[i] * mean[i], 0.0F);
      }
      float change = step * grad[i] / std::sqrt(spread + epsilon);
      if (momentum > 0.0F) {
        velocity[i] = momentum * velocity[i] + change;
        change = velocity[i];
      }
      weights[i] -= change;
    }
  }

  float lr;
  float gain;
  float momentum;
  float epsilon;
  bool centered;
};

}  // namespace embermesh
