// Group FTRL: FTRL-proximal whose regulariser is a sparse group lasso with the row as the group
// (Yue et al. 2021, "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR
// Prediction", arXiv:2107.14432, algorithm 1 with m = g and V = sum of g^2):
//   n' = n + g^2;  z += g - (sqrt(n') - sqrt(n)) / lr * w;  n = n'
//   s = clip(z, -l1, l1) - z
//   w = max(0, 1 - sqrt(dim) * l21 / |s|) * s / ((sqrt(n) + beta) / lr + 2 * l2)
// l21 sets whole rows to zero, l1 single weights. With l21 = 0 it is ftrl (ftrl.h) with
// lr_power = -0.5, and a schedule's rate means the same. State: n[dim] || z[dim].
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer.h"

namespace embermesh {

struct GroupFtrl {
  static constexpr std::string_view kName = "group_ftrl";
  static constexpr std::array kParams = {
      Param{"lr", 0.001, kParamTiny}, Param{"initial_accumulator", 0.1, 0.0},
      Param{"l1", 0.0, 0.0},          Param{"l2", 0.0, 0.0},
      Param{"l21", 0.0, 0.0},         Param{"beta", 0.0, 0.0}};
  static constexpr std::size_t kStateVectors = 2;
  static constexpr std::size_t kStateScalars = 0;
  static constexpr bool kRowWise = true;
  static constexpr bool kTakesDecay = false;  // the weights are solved for anew at each step

  explicit GroupFtrl(std::span<const double> params)
      : lr(params[0]),
        initial_accumulator(static_cast<float>(params[1])),
        l1(params[2]),
        l2(params[3]),
        l21(params[4]),
        beta(params[5]) {}

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, dim, initial_accumulator);
    std::fill_n(state + dim, dim, 0.0F);
  }

  // In double, like ftrl: sigma is a difference of two nearly equal roots.
  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    float* __restrict accumulator = state;
    float* __restrict linear = state + dim;
    double norm2 = 0.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double g = grad[i];
      const double before = accumulator[i];
      const double after = before + g * g;
      const double z =
          linear[i] + (rate * g - (std::sqrt(after) - std::sqrt(before)) / lr * weights[i]);
      const double s = std::clamp(z, -l1, l1) - z;
      norm2 += s * s;
      accumulator[i] = static_cast<float>(after);
      linear[i] = static_cast<float>(z);
    }
    const double bound = std::sqrt(static_cast<double>(dim)) * l21;
    const double norm = std::sqrt(norm2);
    // Written so that a NaN stays one: a row that has diverged must not look like a sparse one.
    const double keep = norm <= bound && bound > 0.0 ? 0.0 : bound > 0.0 ? 1.0 - bound / norm : 1.0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double z = linear[i];
      const double denominator = (std::sqrt(double{accumulator[i]}) + beta) / lr + 2.0 * l2;
      const double solved = keep * (std::clamp(z, -l1, l1) - z) / denominator;
      // A zero accumulator that never saw a gradient says nothing about the weight: keep it.
      weights[i] = denominator > 0.0 ? static_cast<float>(solved) : weights[i];
    }
  }

  double lr;
  float initial_accumulator;
  double l1;
  double l2;
  double l21;
  double beta;
};

}  // namespace embermesh
