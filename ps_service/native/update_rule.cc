#include "update_rule.h"

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "optimizers/sum_squares.h"
#include "simd.h"

namespace embermesh {
namespace {

constexpr std::array kOptions = {Param{"clip_value", 0.0, 0.0}, Param{"clip_norm", 0.0, 0.0},
                                 Param{"weight_decay", 0.0, 0.0, 1.0}};

}  // namespace

// A norm_bound of zero is none.
[[gnu::flatten]] EMBERMESH_SIMD static void clip_all(const float* grad, std::size_t dim,
                                                     float value_bound, double norm_bound,
                                                     float* out) noexcept {
  for (std::size_t i = 0; i < dim; ++i) {
    // In this order of comparison a NaN stays one.
    const float raised = grad[i] < -value_bound ? -value_bound : grad[i];
    out[i] = value_bound < raised ? value_bound : raised;
  }
  if (norm_bound <= 0.0) return;
  const double norm = std::sqrt(sum_squares(out, dim));
  if (!(norm > norm_bound) || !std::isfinite(norm)) return;
  const auto factor = static_cast<float>(norm_bound / norm);
  for (std::size_t i = 0; i < dim; ++i) out[i] *= factor;
}

EMBERMESH_SIMD static void shrink_all(float* values, std::size_t dim, float share) noexcept {
  for (std::size_t i = 0; i < dim; ++i) values[i] -= share * values[i];
}

UpdateRule::UpdateRule(std::string_view optimizer, const ParamMap& params,
                       const UpdateOptions& options)
    : optimizer_(make_optimizer(optimizer, params)),
      schedule_(make_schedule(options.schedule, options.schedule_params)),
      options_(options) {
  const std::string what = "optimizer '" + std::string(optimizer) + "'";
  static_cast<void>(resolve_params(what, kOptions,
                                   {{"clip_value", options.clip_value},
                                    {"clip_norm", options.clip_norm},
                                    {"weight_decay", options.weight_decay}}));
  if (options.weight_decay > 0.0 && !optimizer_->takes_decay()) {
    const bool has_own =
        params.contains("weight_decay") || optimizer_->params().contains("weight_decay");
    throw std::invalid_argument(what + " takes no weight_decay beside it; " +
                                (has_own ? "it has a parameter of that name" : "it has l1 and l2"));
  }
  options_.schedule_params = schedule_->params();
  clips_ = options.clip_value > 0.0 || options.clip_norm > 0.0;
  decay_ = static_cast<float>(optimizer_->params().at("lr") * options.weight_decay);
}

void UpdateRule::clip(const float* grad, std::size_t dim, float* out) const noexcept {
  const auto bound = options_.clip_value > 0.0 ? static_cast<float>(options_.clip_value)
                                               : std::numeric_limits<float>::infinity();
  clip_all(grad, dim, bound, options_.clip_norm, out);
}

void UpdateRule::step(float* weights, float* state, const float* grad, std::size_t dim,
                      float rate) const noexcept {
  if (decay_ != 0.0F) shrink_all(weights, dim, decay_ * rate);
  optimizer_->apply(weights, state, grad, dim, rate);
}

}  // namespace embermesh
