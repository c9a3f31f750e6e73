// A compile-time list of named kinds (optimizers, initializers) as a run-time catalogue.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "params.h"

namespace embermesh {

// Name and declared parameters of one registered kind.
struct KindInfo {
  std::string_view name;
  std::span<const Param> params;
};

// `List` is a std::tuple of types that declare kName and kParams.
template <class List>
std::vector<KindInfo> kinds_of() {
  return []<class... Kind>(std::type_identity<std::tuple<Kind...>>) {
    return std::vector<KindInfo>{KindInfo{Kind::kName, Kind::kParams}...};
  }(std::type_identity<List>{});
}

// Makes Wrapper<Kind>(resolved parameter values) for the kind called `name`.
// Throws std::invalid_argument for an unknown name or a bad parameter.
template <class List, class Base, template <class> class Wrapper>
std::shared_ptr<const Base> make_kind(std::string_view role, std::string_view name,
                                      const ParamMap& params) {
  const std::string what = std::string(role) + " '" + std::string(name) + "'";
  std::shared_ptr<const Base> made;
  const auto try_kind = [&]<class Kind>(std::type_identity<Kind>) {
    if (Kind::kName != name) return false;
    made = std::make_shared<Wrapper<Kind>>(resolve_params(what, Kind::kParams, params));
    return true;
  };
  [&]<class... Kind>(std::type_identity<std::tuple<Kind...>>) {
    static_cast<void>((try_kind(std::type_identity<Kind>{}) || ...));
  }(std::type_identity<List>{});
  if (made != nullptr) return made;
  std::vector<std::string_view> names;
  for (const KindInfo& kind : kinds_of<List>()) names.push_back(kind.name);
  throw std::invalid_argument("unknown " + what + "; known are: " + join_names(names));
}

}  // namespace embermesh
