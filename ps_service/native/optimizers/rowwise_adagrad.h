// Adagrad with one accumulator per row, the mean of the squares of its gradient (Gupta et al.
// 2014):
//   a += mean(g^2);  w -= lr * g / sqrt(a + epsilon)
// State: a - one float, where element-wise adagrad has dim.
#pragma once

#include <cmath>

#include "optimizer.h"
#include "sum_squares.h"

namespace embermesh {

struct RowwiseAdagrad {
  static constexpr std::string_view kName = "rowwise_adagrad";
  static constexpr std::array kParams = {Param{"lr", 0.001, 0.0},
                                         Param{"initial_accumulator", 0.1, 0.0},
                                         Param{"epsilon", 1e-7, kParamTiny}};
  static constexpr std::size_t kStateVectors = 0;
  static constexpr std::size_t kStateScalars = 1;
  static constexpr bool kRowWise = true;

  explicit RowwiseAdagrad(std::span<const double> params)
      : lr(params[0]), initial_accumulator(static_cast<float>(params[1])), epsilon(params[2]) {}

  void init(float* state, std::size_t /*dim*/) const noexcept { *state = initial_accumulator; }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    const double accumulator = *state + sum_squares(grad, dim) / static_cast<double>(dim);
    *state = static_cast<float>(accumulator);
    const auto step = static_cast<float>(lr * rate / std::sqrt(accumulator + epsilon));
    for (std::size_t i = 0; i < dim; ++i) weights[i] -= step * grad[i];
  }

  double lr;
  float initial_accumulator;
  double epsilon;
};

}  // namespace embermesh
