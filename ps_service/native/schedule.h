// Learning-rate schedules: a factor of the learning rate as a pure function of the step.
//
// The step is the number of the trainer's mini-batch, counted from 1 over the whole life of the
// job, and comes with each push; so the factor does not depend on shards, threads or the order of
// keys.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kinds.h"

namespace embermesh {

// A configured schedule. Immutable, so free to share.
class Schedule {
 public:
  Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  virtual ~Schedule() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual ParamMap params() const = 0;
  // What multiplies the learning rate at `step` >= 1 (0 reads as 1).
  [[nodiscard]] virtual float factor(std::uint64_t step) const noexcept = 0;
};

// Every schedule takes `warmup`: the factor first rises from 1/warmup to 1 in that many steps, then
// the schedule begins with its step i = 0:
//   constant:    1
//   exponential: rate^(i / steps), with `staircase` rate^floor(i / steps)
//   cosine:      floor + (1 - floor) * (1 + cos(pi * min(i / steps, 1))) / 2
//   piecewise:   parameters named by whole numbers: {"1000": 0.5, "5000": 0.1} is 1 while i < 1000,
//                then 0.5 while i < 5000, then 0.1
std::vector<KindInfo> schedule_kinds();

// Throws std::invalid_argument naming an unknown schedule or a bad parameter, and what is allowed.
std::shared_ptr<const Schedule> make_schedule(std::string_view name, const ParamMap& params);

}  // namespace embermesh
