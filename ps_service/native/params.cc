#include "params.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace embermesh {

std::string join_names(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::vector<double> resolve_params(std::string_view what, std::span<const Param> declared,
                                   const ParamMap& given) {
  for (const auto& [name, value] : given) {
    const auto same = [&name = name](const Param& param) { return param.name == name; };
    if (std::ranges::any_of(declared, same)) continue;
    std::vector<std::string_view> names;
    for (const Param& param : declared) names.push_back(param.name);
    throw std::invalid_argument(std::string(what) + " has no parameter '" + name +
                                "'; it takes: " + (names.empty() ? "none" : join_names(names)));
  }
  std::vector<double> values;
  for (const Param& param : declared) {
    const auto found = given.find(param.name);
    const double value = found == given.end() ? param.default_value : found->second;
    if (!std::isfinite(value) || value < param.low || value > param.high) {
      std::ostringstream text;
      text << what << ": parameter '" << param.name << "' is " << value << ", allowed is "
           << param.low << " to " << param.high;
      throw std::invalid_argument(text.str());
    }
    if (param.kind != Param::kNumber && value != std::floor(value)) {
      std::ostringstream text;
      text << what << ": parameter '" << param.name << "' is " << value << ", allowed is "
           << (param.kind == Param::kSwitch ? "0 or 1" : "a whole number");
      throw std::invalid_argument(text.str());
    }
    values.push_back(value);
  }
  return values;
}

ParamMap name_params(std::span<const Param> declared, std::span<const double> values) {
  ParamMap named;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    named.emplace(std::string(declared[i].name), values[i]);
  }
  return named;
}

}  // namespace embermesh
