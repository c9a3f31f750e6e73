#include "local_adam.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "optimizers/adamw.h"
#include "simd.h"

namespace embermesh {
namespace {

// Of one step, all parameters alike.
struct Scales {
  float gain1;
  float gain2;
  float epsilon;
  float alpha;  // of m / (sqrt(v) + epsilon)
  float bound;  // of a step's length
  float decay;
};

Adam adam_of(const UpdateRule& rule) {
  const std::string_view name = rule.optimizer().name();
  if (name != Adam::kName && name != AdamW::kName) {
    throw std::invalid_argument("optimizer '" + std::string(name) +
                                "' has no second moment to share; expected adam or adamw");
  }
  const ParamMap params = rule.optimizer().params();
  std::array<double, Adam::kParams.size()> values{};
  std::ranges::transform(Adam::kParams, values.begin(),
                         [&](const Param& param) { return params.at(std::string(param.name)); });
  return Adam(values);
}

double decay_of(const UpdateRule& rule) {
  const ParamMap params = rule.optimizer().params();
  const auto own = params.find("weight_decay");
  return params.at("lr") * (own == params.end() ? rule.options().weight_decay : own->second);
}

}  // namespace

EMBERMESH_SIMD static void take_moments(float* __restrict momentum, float* __restrict second,
                                        const float* __restrict grad, std::size_t size,
                                        const Scales& by) noexcept {
  for (std::size_t i = 0; i < size; ++i) {
    momentum[i] += by.gain1 * (grad[i] - momentum[i]);
    second[i] += by.gain2 * (grad[i] * grad[i] - second[i]);
  }
}

EMBERMESH_SIMD static void take_step(float* __restrict values, const float* __restrict momentum,
                                     const float* __restrict roots, std::size_t size,
                                     const Scales& by) noexcept {
  for (std::size_t i = 0; i < size; ++i) {
    // In this order of comparison a NaN stays one, and shows.
    const float step = by.alpha * momentum[i] / (roots[i] + by.epsilon);
    const float low = step < -by.bound ? -by.bound : step;
    values[i] -= (by.bound < low ? by.bound : low) + by.decay * values[i];
  }
}

EMBERMESH_SIMD static void subtract(const float* __restrict a, const float* __restrict b,
                                    std::size_t size, float* __restrict out) noexcept {
  for (std::size_t i = 0; i < size; ++i) out[i] = a[i] - b[i];
}

EMBERMESH_SIMD static void add(float* __restrict values, const float* __restrict change,
                               std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) values[i] += change[i];
}

EMBERMESH_SIMD static void take_roots(const float* __restrict squares, std::size_t size,
                                      float* __restrict out) noexcept {
  for (std::size_t i = 0; i < size; ++i) out[i] = std::sqrt(squares[i]);
}

static void require_size(std::string_view what, std::span<const float> given, std::size_t size) {
  if (given.size() == size) return;
  throw std::invalid_argument(std::string(what) + ": there are " + std::to_string(size) +
                              " parameters, got " + std::to_string(given.size()));
}

LocalAdam::LocalAdam(std::size_t size, std::string_view optimizer, const ParamMap& params,
                     const UpdateOptions& options)
    : rule_(optimizer, params, options),
      adam_(adam_of(rule_)),
      decay_(decay_of(rule_)),
      values_(size),
      merged_(size),
      momentum_(size),
      second_(size),
      roots_(size) {
  if (options.clip_norm > 0.0) {
    throw std::invalid_argument("clip_norm: dense parameters are clipped by value only");
  }
}

void LocalAdam::restart(std::span<const float> values, std::span<const float> roots,
                        std::span<const float> momentum, std::uint64_t step) {
  require_size("values", values, size());
  require_size("momentum", momentum, size());
  begin_period(roots, step);
  std::ranges::copy(values, merged_.begin());
  std::ranges::copy(values, values_.begin());
  std::ranges::copy(momentum, momentum_.begin());
}

void LocalAdam::apply(std::span<const float> grads) {
  require_size("grads", grads, size());
  const float* grad = grads.data();
  if (rule_.clips()) {
    clipped_.resize(size());
    rule_.clip(grad, size(), clipped_.data());
    grad = clipped_.data();
  }
  ++local_;
  const auto seen = static_cast<std::size_t>(step_ + local_);
  const auto shared = static_cast<std::size_t>(step_ > 0 ? step_ : local_);
  const double lr = adam_.lr * rule_.rate(seen);
  const double corrected =
      std::sqrt(1.0 - Adam::power(adam_.beta2, shared)) / (1.0 - Adam::power(adam_.beta1, seen));
  const double bound = std::max(1.0, (1.0 - adam_.beta1) / std::sqrt(1.0 - adam_.beta2));
  const Scales by{.gain1 = adam_.gain1,
                  .gain2 = adam_.gain2,
                  .epsilon = adam_.epsilon,
                  .alpha = static_cast<float>(lr * corrected),
                  .bound = static_cast<float>(lr * bound),
                  .decay = static_cast<float>(decay_ * rule_.rate(seen))};
  take_moments(momentum_.data(), second_.data(), grad, size(), by);
  if (step_ == 0) take_roots(second_.data(), size(), roots_.data());
  take_step(values_.data(), momentum_.data(), roots_.data(), size(), by);
}

void LocalAdam::merge(std::span<const float> change, std::span<const float> roots,
                      std::span<const float> momentum, std::uint64_t step) {
  require_size("change", change, size());
  if (!momentum.empty()) require_size("momentum", momentum, size());
  begin_period(roots, step);
  add(merged_.data(), change.data(), size());
  std::ranges::copy(merged_, values_.begin());
  std::ranges::copy(momentum, momentum_.begin());
}

void LocalAdam::change(float* out) const noexcept {
  subtract(values_.data(), merged_.data(), size(), out);
}

void LocalAdam::roots(float* out) const noexcept { take_roots(second_.data(), size(), out); }

void LocalAdam::begin_period(std::span<const float> roots, std::uint64_t step) {
  require_size("roots", roots, size());
  std::ranges::copy(roots, roots_.begin());
  std::ranges::fill(second_, 0.0F);
  step_ = step;
  local_ = 0;
}

}  // namespace embermesh
