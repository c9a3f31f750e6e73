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
#include <array>
#include <cmath>

#include "ftrl.h"
#include "optimizer.h"
#include "sum_squares.h"

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
  static constexpr bool kTakesDecay = false;     // the weights are solved for anew at each step
  static constexpr std::size_t kNormBlock = 64;  // columns whose squares are summed together

  explicit GroupFtrl(std::span<const double> params)
      : ftrl(std::array{params[0], -0.5, params[1], params[2], params[3], params[5]}),
        l21(params[4]) {}

  void init(float* state, std::size_t dim) const noexcept { ftrl.init(state, dim); }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    if (l21 == 0.0) return ftrl.apply(weights, state, grad, dim, rate);
    const Ftrl::Proximal<float> problem(ftrl);
    float* __restrict accumulator = state;
    float* __restrict linear = state + dim;
    float pulled[kNormBlock];
    double norm2 = 0.0;
    for (std::size_t first = 0; first < dim; first += kNormBlock) {
      const std::size_t end = std::min(first + kNormBlock, dim);
      for (std::size_t i = first; i < end; ++i) {
        const float square = grad[i] * grad[i];
        const float by = Ftrl::RootGrowth{}(accumulator[i], square).by;
        const float z = problem.moved(linear[i], rate * grad[i], by, weights[i]);
        pulled[i - first] = problem.pulled(z);
        accumulator[i] += square;
        linear[i] = z;
      }
      norm2 += sum_squares(pulled, end - first);
    }
    const double bound = std::sqrt(static_cast<double>(dim)) * l21;
    const double norm = std::sqrt(norm2);
    // Written so that a NaN stays one: a row that has diverged must not look like a sparse one.
    const auto keep = static_cast<float>(norm <= bound ? 0.0 : 1.0 - bound / norm);
    for (std::size_t i = 0; i < dim; ++i) {
      const float kept = keep * problem.pulled(linear[i]);
      weights[i] = problem.solve(kept, std::sqrt(accumulator[i]), weights[i]);
    }
  }

  Ftrl ftrl;
  double l21;
};

}  // namespace embermesh
