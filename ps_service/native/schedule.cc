#include "schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "portable_math.h"

namespace embermesh {
namespace {

constexpr double kMaxSteps = 1e15;  // whole numbers of a double are exact far beyond
constexpr Param kWarmup{"warmup", 0.0, 0.0, kMaxSteps, Param::kCount};

struct Constant {
  static constexpr std::string_view kName = "constant";
  static constexpr std::array kParams = {kWarmup};
  explicit Constant(std::span<const double> /*params*/) {}
  [[nodiscard]] double at(double /*step*/) const noexcept { return 1.0; }
};

struct Exponential {
  static constexpr std::string_view kName = "exponential";
  static constexpr std::array kParams = {
      kWarmup, Param{"steps", 100000.0, 1.0, kMaxSteps, Param::kCount},
      Param{"rate", 0.5, kParamTiny, 1.0}, Param{"staircase", 0.0, 0.0, 1.0, Param::kSwitch}};
  explicit Exponential(std::span<const double> params)
      : steps(params[1]), log_rate(portable_log(params[2])), staircase(params[3] != 0.0) {}
  [[nodiscard]] double at(double step) const noexcept {
    const double passed = step / steps;
    return portable_exp(log_rate * (staircase ? std::floor(passed) : passed));
  }
  double steps;
  double log_rate;
  bool staircase;
};

struct Cosine {
  static constexpr std::string_view kName = "cosine";
  static constexpr std::array kParams = {kWarmup,
                                         Param{"steps", 100000.0, 1.0, kMaxSteps, Param::kCount},
                                         Param{"floor", 0.0, 0.0, 1.0}};
  explicit Cosine(std::span<const double> params) : steps(params[1]), floor(params[2]) {}
  [[nodiscard]] double at(double step) const noexcept {
    const double wave = portable_cos_pi(std::min(step / steps, 1.0));
    return floor + (1.0 - floor) * std::max(0.5 * (1.0 + wave), 0.0);
  }
  double steps;
  double floor;
};

using FormulaSchedules = std::tuple<Constant, Exponential, Cosine>;

constexpr std::string_view kPiecewise = "piecewise";
constexpr std::array kPiecewiseParams = {kWarmup};  // the pieces are named by their steps

float warmed(double warmup, std::uint64_t step, const auto& formula) {
  const auto number = static_cast<double>(std::max<std::uint64_t>(step, 1));
  if (number <= warmup) return static_cast<float>(number / warmup);
  return static_cast<float>(formula(number - 1.0 - warmup));
}

template <class S>
class ScheduleOf final : public Schedule {
 public:
  explicit ScheduleOf(std::vector<double> values)
      : values_(std::move(values)), schedule_(std::span<const double>(values_)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return S::kName; }
  [[nodiscard]] ParamMap params() const override { return name_params(S::kParams, values_); }
  [[nodiscard]] float factor(std::uint64_t step) const noexcept override {
    return warmed(values_[0], step, [this](double i) { return schedule_.at(i); });
  }

 private:
  std::vector<double> values_;
  S schedule_;
};

class Piecewise final : public Schedule {
 public:
  explicit Piecewise(const ParamMap& params) : params_(params) {
    const std::string what = "schedule 'piecewise'";
    ParamMap common;
    for (const auto& [name, value] : params) {
      std::uint64_t start = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), start);
      const bool is_step =
          error == std::errc{} && end == name.data() + name.size() && std::to_string(start) == name;
      if (!is_step) {
        common.emplace(name, value);
        continue;
      }
      const std::array piece = {Param{name, 1.0, 0.0}};
      resolve_params(what, piece, {{name, value}});
      pieces_.emplace_back(static_cast<double>(start), value);
    }
    if (pieces_.empty()) {
      throw std::invalid_argument(what + " needs a step with its factor, like 10000: 0.5");
    }
    warmup_ = resolve_params(what, kPiecewiseParams, common)[0];
    params_["warmup"] = warmup_;
    std::ranges::sort(pieces_);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return kPiecewise; }
  [[nodiscard]] ParamMap params() const override { return params_; }
  [[nodiscard]] float factor(std::uint64_t step) const noexcept override {
    return warmed(warmup_, step, [this](double i) {
      double factor = 1.0;
      for (const auto& [start, value] : pieces_) factor = i >= start ? value : factor;
      return factor;
    });
  }

 private:
  ParamMap params_;
  std::vector<std::pair<double, double>> pieces_;  // (first step, factor), ascending
  double warmup_ = 0.0;
};

}  // namespace

std::vector<KindInfo> schedule_kinds() {
  std::vector<KindInfo> kinds = kinds_of<FormulaSchedules>();
  kinds.push_back(KindInfo{kPiecewise, kPiecewiseParams});
  return kinds;
}

std::shared_ptr<const Schedule> make_schedule(std::string_view name, const ParamMap& params) {
  if (name == kPiecewise) return std::make_shared<Piecewise>(params);
  return make_kind<FormulaSchedules, Schedule, ScheduleOf>("schedule", name, params);
}

}  // namespace embermesh
