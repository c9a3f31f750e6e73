// AMSGrad (Reddi et al. 2018) as in Keras's Adam(amsgrad=True), lazy like Adam (adam.h): the step
// is divided by the largest second moment seen, so it never grows again.
//   u = max(u, v);  w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(u) + epsilon)
// State: m[dim] || v[dim] || u[dim] || t.
#pragma once

#include "adam.h"

namespace embermesh {

struct AmsGrad {
  static constexpr std::string_view kName = "amsgrad";
  static constexpr std::array kParams = Adam::kParams;
  static constexpr std::size_t kStateVectors = 3;
  static constexpr std::size_t kStateScalars = 1;

  explicit AmsGrad(std::span<const double> params) : adam(params) {}

  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, 3 * dim + 1, 0.0F); }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    float* __restrict m = state;
    float* __restrict v = state + dim;
    float* __restrict largest = state + 2 * dim;
    const float alpha = adam.next_step_size(state[3 * dim]) * rate;
    for (std::size_t i = 0; i < dim; ++i) {
      m[i] += adam.gain1 * (grad[i] - m[i]);
      v[i] += adam.gain2 * (grad[i] * grad[i] - v[i]);
      largest[i] = std::max(largest[i], v[i]);
      weights[i] -= alpha * m[i] / (std::sqrt(largest[i]) + adam.epsilon);
    }
  }

  Adam adam;
};

}  // namespace embermesh
