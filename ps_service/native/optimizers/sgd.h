// Plain gradient descent: w -= lr * g. No state.
#pragma once

#include "optimizer.h"

namespace embermesh {

struct Sgd {
  static constexpr std::string_view kName = "sgd";
  static constexpr std::array kParams = {Param{"lr", 0.01, 0.0}};
  static constexpr std::size_t kStateVectors = 0;
  static constexpr std::size_t kStateScalars = 0;

  explicit Sgd(std::span<const double> params) : lr(static_cast<float>(params[0])) {}

  void init(float* /*state*/, std::size_t /*dim*/) const noexcept {}

  void apply(float* __restrict weights, float* /*state*/, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    const float step = lr * rate;
    for (std::size_t i = 0; i < dim; ++i) weights[i] -= step * grad[i];
  }

  float lr;
};

}  // namespace embermesh
