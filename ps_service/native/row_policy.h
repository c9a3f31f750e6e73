// What the user says about which keys of a table get a row, and which rows go.
#pragma once

#include <memory>
#include <string_view>

#include "admission.h"
#include "eviction.h"

namespace embermesh {

// Validated and immutable; copies share the policies.
struct RowPolicy {
  // Every key that is trained gets a row, and rows stay.
  RowPolicy() : RowPolicy("all", {}, {}) {}
  // Throws std::invalid_argument naming an unknown policy or rule, or a bad parameter.
  RowPolicy(std::string_view admission_name, const ParamMap& admission_params, const RuleMap& rules)
      : admission(make_admission(admission_name, admission_params)),
        eviction(std::make_shared<EvictionPolicy>(rules)) {}

  std::shared_ptr<const AdmissionPolicy> admission;
  std::shared_ptr<const EvictionPolicy> eviction;
};

}  // namespace embermesh
