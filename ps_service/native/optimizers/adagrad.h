// Adagrad (Duchi et al. 2011), element-wise, with epsilon under the root as in Keras:
//   a += g^2;  w -= lr * g / sqrt(a + epsilon)
// State: a[dim].
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer.h"

namespace embermesh {

struct Adagrad {
  static constexpr std::string_view kName = "adagrad";
  static constexpr std::array kParams = {Param{"lr", 0.001, 0.0},
                                         Param{"initial_accumulator", 0.1, 0.0},
                                         Param{"epsilon", 1e-7, kParamTiny}};
  static constexpr std::size_t kStateVectors = 1;
  static constexpr std::size_t kStateScalars = 0;

  explicit Adagrad(std::span<const double> params)
      : lr(static_cast<float>(params[0])),
        initial_accumulator(static_cast<float>(params[1])),
        epsilon(static_cast<float>(params[2])) {}

  void init(float* state, std::size_t dim) const noexcept {
    std::fill_n(state, dim, initial_accumulator);
  }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    const float step = lr * rate;
    for (std::size_t i = 0; i < dim; ++i) {
      const float accumulator = state[i] + grad[i] * grad[i];
      state[i] = accumulator;
      weights[i] -= step * grad[i] / std::sqrt(accumulator + epsilon);
    }
  }

  float lr;
  float initial_accumulator;
  float epsilon;
};

}  // namespace embermesh
