#include "update_rule.h"

#include <algorithm>
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

EMBERMESH_SIMD static void clamp_all(const float* grad, std::size_t dim, float bound,
                                     float* out) noexcept {
  for (std::size_t i = 0; i < dim; ++i) out[i] = std::clamp(grad[i], -bound, bound);
}

[[gnu::flatten]] EMBERMESH_SIMD static double norm_of(const float* values,
                                                      std::size_t dim) noexcept {
  return std::sqrt(sum_squares(values, dim));
}

EMBERMESH_SIMD static void scale_all(float* values, std::size_t dim, float factor) noexcept {
  for (std::size_t i = 0; i < dim; ++i) values[i] *= factor;
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
  clamp_all(grad, dim, bound, out);
  if (options_.clip_norm <= 0.0) return;
  const double norm = norm_of(out, dim);
  if (norm > options_.clip_norm && std::isfinite(norm)) {
    scale_all(out, dim, static_cast<float>(options_.clip_norm / norm));
  }
}

void UpdateRule::step(float* weights, float* state, const float* grad, std::size_t dim,
                      float rate) const noexcept {
  if (decay_ != 0.0F) shrink_all(weights, dim, decay_ * rate);
  optimizer_->apply(weights, state, grad, dim, rate);
}

}  // namespace embermesh
