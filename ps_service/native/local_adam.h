// Mode kstep: one trainer's copy of the dense parameters between two merges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optimizers/adam.h"
#include "update_rule.h"

namespace embermesh {

// Adam or AdamW over a second moment that all trainers share and that stands still between merges:
// an own one would pull every trainer towards another minimum (docs/training-modes.md has the rule
// and its source). With T = steps merged, v = the shared second moment, step j = 1, 2, ... of a
// period is, for the clipped gradient g,
//   m += (1 - beta1) * (g - m);  s += (1 - beta2) * (g^2 - s)          s = 0 when a period begins
//   u = sqrt(1 - beta2^T) / (1 - beta1^(T + j)) * m / (sqrt(v) + epsilon), kept within +-bound
//   w -= lr * rate * (u + weight_decay * w)
// bound = max(1, (1 - beta1) / sqrt(1 - beta2)) is what Adam itself keeps to (Kingma & Ba 2014,
// 2.1); a v that cannot see the gradients it divides would not. Where T = 0 there is no v: s is.
// Not thread-safe.
class LocalAdam {
 public:
  // All zero until restart. Throws std::invalid_argument unless `optimizer` is adam or adamw, and
  // for parameters and options that a DenseBlock refuses.
  LocalAdam(std::size_t size, std::string_view optimizer, const ParamMap& params,
            const UpdateOptions& options = {});

  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  // Steps since the last merge.
  [[nodiscard]] std::uint64_t steps() const noexcept { return local_; }

  // Begins from what the blocks hold: values, square roots of v, m and T. Throws
  // std::invalid_argument unless all spans have size() floats; so do the others.
  void restart(std::span<const float> values, std::span<const float> roots,
               std::span<const float> momentum, std::uint64_t step);
  void apply(std::span<const float> grads);
  // What all trainers made of the period: `change` is added to the values that the last merge left,
  // `roots` are those of the new v, after `step` steps. m stays unless `momentum` is given.
  void merge(std::span<const float> change, std::span<const float> roots,
             std::span<const float> momentum, std::uint64_t step);

  [[nodiscard]] std::span<const float> values() const noexcept { return values_; }
  [[nodiscard]] std::span<const float> momentum() const noexcept { return momentum_; }
  // This trainer's part of a merge: values since the last one, and square roots of s.
  void change(float* out) const noexcept;
  void roots(float* out) const noexcept;

 private:
  void begin_period(std::span<const float> roots, std::uint64_t step);

  const UpdateRule rule_;
  const Adam adam_;
  const double decay_;  // lr * weight_decay
  std::vector<float> values_;
  std::vector<float> merged_;  // values_ at the last merge
  std::vector<float> momentum_;
  std::vector<float> second_;   // s
  std::vector<float> roots_;    // of v
  std::vector<float> clipped_;  // the last gradient, if the rule clips
  std::uint64_t step_ = 0;      // T
  std::uint64_t local_ = 0;     // j
};

}  // namespace embermesh
