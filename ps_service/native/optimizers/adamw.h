// AdamW (Loshchilov & Hutter 2019): Adam's step (adam.h), and the weights shrink by
// lr * weight_decay * w, which the moments do not see. A row shrinks when it is touched.
// State: as Adam's.
#pragma once

#include "adam.h"

namespace embermesh {

struct AdamW {
  static constexpr std::string_view kName = "adamw";
  static constexpr std::array kParams = {Adam::kParams[0], Adam::kParams[1], Adam::kParams[2],
                                         Adam::kParams[3], Param{"weight_decay", 0.004, 0.0, 1.0}};
  static constexpr std::size_t kStateVectors = Adam::kStateVectors;
  static constexpr std::size_t kStateScalars = Adam::kStateScalars;
  static constexpr bool kTakesDecay = false;  // it has its own

  explicit AdamW(std::span<const double> params)
      : adam(params.first(Adam::kParams.size())),
        shrink(static_cast<float>(params[0] * params[Adam::kParams.size()])) {}

  void init(float* state, std::size_t dim) const noexcept { adam.init(state, dim); }

  void apply(float* __restrict weights, float* __restrict state, const float* __restrict grad,
             std::size_t dim, float rate) const noexcept {
    float* __restrict m = state;
    float* __restrict v = state + dim;
    const float alpha = adam.next_step_size(state[2 * dim]) * rate;
    const float decay = shrink * rate;
    for (std::size_t i = 0; i < dim; ++i) {
      m[i] += adam.gain1 * (grad[i] - m[i]);
      v[i] += adam.gain2 * (grad[i] * grad[i] - v[i]);
      // Both changes at once: a weight is rounded once per step.
      const float change = alpha * m[i] / (std::sqrt(v[i]) + adam.epsilon);
      weights[i] -= change + decay * weights[i];
    }
  }

  Adam adam;
  float shrink;
};

}  // namespace embermesh
