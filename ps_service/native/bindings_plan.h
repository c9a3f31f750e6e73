// The part of the Python bindings that uses a plan and reads rows ahead; what it binds is
// documented in ps_service/_native.pyi.
#pragma once

#include <nanobind/nanobind.h>

#include "planner.h"

namespace embermesh {

// Plan.gather, scatter, place and what it projects.
void bind_plan_parts(nanobind::module_& m, nanobind::class_<Plan>& plan);

// RecentKeys.
void bind_recent_keys(nanobind::module_& m);

}  // namespace embermesh
