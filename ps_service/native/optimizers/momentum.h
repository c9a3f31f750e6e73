// Gradient descent with momentum as in Keras, optionally Nesterov's (Sutskever et al. 2013):
//   m = momentum * m - lr * g;  w += m                       (nesterov = 0)
//                               w += momentum * m - lr * g   (nesterov = 1)
// State: m[dim].
#pragma once

#include <algorithm>

#include "optimizer.h"

namespace embermesh {

struct Momentum {
  static constexpr std::string_view kName = "momentum";
  static constexpr std::array kParams = {Param{"lr", 0.01, 0.0},
                                         Param{"momentum", 0.9, 0.0, kParamBelowOne},
                                         Param{"nesterov", 0.0, 0.0, 1.0, Param::kSwitch}};
  static constexpr std::size_t kStateVectors = 1;
  static constexpr std::size_t kStateScalars = 0;

  explicit Momentum(std::span<const double> params)
      : lr(static_cast<float>(params[0])),
        momentum(static_cast<float>(params[1])),
        nesterov(params[2] != 0.0) {}

  void init(float* state, std::size_t dim) const noexcept { std::fill_n(state, dim, 0.0F); }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    const float step = lr * rate;
    if (nesterov) {
      for (std::size_t i = 0; i < dim; ++i) {
        state[i] = momentum * state[i] - step * grad[i];
        weights[i] += momentum * state[i] - step * grad[i];
      }
    } else {
      for (std::size_t i = 0; i < dim; ++i) {
        state[i] = momentum * state[i] - step * grad[i];
        weights[i] += state[i];
      }
    }
  }

  float lr;
  float momentum;
  bool nesterov;
};

}  // namespace embermesh
