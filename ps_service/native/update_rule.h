// What becomes of a gradient: clipping, weight decay and the learning rate's schedule around an
// optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "optimizers/optimizer.h"
#include "schedule.h"

namespace embermesh {

// Beside the optimizer's own parameters; a zero switches a feature off.
struct UpdateOptions {
  std::string schedule = "constant";
  ParamMap schedule_params;
  double clip_value = 0.0;    // each element of a gradient into [-clip_value, clip_value]
  double clip_norm = 0.0;     // then its L2 norm, over the row, to at most this
  double weight_decay = 0.0;  // w -= lr * factor * weight_decay * w, before the optimizer's step
};

// In this order, for the summed gradient of a row: clip by value, clip by norm, decay, optimizer.
// Immutable, so free to share.
class UpdateRule {
 public:
  // Throws std::invalid_argument naming the option or parameter and what is allowed.
  UpdateRule(std::string_view optimizer, const ParamMap& params, const UpdateOptions& options);

  [[nodiscard]] const OptimizerKernel& optimizer() const noexcept { return *optimizer_; }
  // As given, with the schedule's defaults filled in.
  [[nodiscard]] const UpdateOptions& options() const noexcept { return options_; }

  // The learning rate's factor at a step, counted from 1.
  [[nodiscard]] float rate(std::uint64_t step) const noexcept { return schedule_->factor(step); }

  // Whether step() is the optimizer alone.
  [[nodiscard]] bool is_plain() const noexcept { return !clips_ && decay_ == 0.0F; }
  [[nodiscard]] bool clips() const noexcept { return clips_; }

  // Writes the clipped gradient to `out`, which may be `grad`. A norm that is not finite clips to
  // nothing sensible: such a gradient stays as it is, and shows.
  void clip(const float* grad, std::size_t dim, float* out) const noexcept;

  // Decay and optimizer, on one row.
  void step(float* weights, float* state, const float* grad, std::size_t dim,
            float rate) const noexcept;

 private:
  std::shared_ptr<const OptimizerKernel> optimizer_;
  std::shared_ptr<const Schedule> schedule_;
  UpdateOptions options_;
  bool clips_;
  float decay_;  // lr * weight_decay
};

}  // namespace embermesh
