// Self-declared hyper-parameters: how an optimizer or initializer names, bounds and defaults its
// own.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace embermesh {

// Values stay far from the ends of float32, so that no product of two of them overflows.
inline constexpr double kParamLimit = 1e18;
inline constexpr double kParamTiny = 1e-18;
inline constexpr double kParamBelowOne = 1.0 - 1e-9;  // upper bound of decay rates

// One hyper-parameter; legal values are low <= v <= high.
struct Param {
  std::string_view name;
  double default_value;
  double low = -kParamLimit;
  double high = kParamLimit;
  enum Kind : std::uint8_t { kNumber, kSwitch, kCount } kind = kNumber;  // any, 0 or 1, whole
};

using ParamMap = std::map<std::string, double, std::less<>>;

// The values of `declared`, in declaration order, taken from `given` or the defaults.
// Throws std::invalid_argument naming `what` (e.g. "optimizer 'adam'"), the parameter, its value
// and what is allowed, if a name is unknown or a value is non-finite or out of bounds.
std::vector<double> resolve_params(std::string_view what, std::span<const Param> declared,
                                   const ParamMap& given);

// The inverse: names beside values, for showing a configuration.
ParamMap name_params(std::span<const Param> declared, std::span<const double> values);

// "a, b, c" for error messages.
std::string join_names(std::span<const std::string_view> names);

}  // namespace embermesh
