#include "bindings_plan.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "bindings.h"
#include "numpy_view.h"

namespace embermesh {
namespace {

namespace nb = nanobind;
using namespace nanobind::literals;

Numpy<std::int32_t> last_in(const Plan& plan, const std::vector<const Plan*>& plans) {
  if (std::ranges::find(plans, nullptr) != plans.end()) {
    throw std::invalid_argument("plans: None is no plan");
  }
  NewArray<std::int32_t> last(plan.unique().size());
  {
    const nb::gil_scoped_release unlocked;
    std::ranges::copy(plan.last_in(plans), last.data());
  }
  return std::move(last).release({plan.unique().size()});
}

void place(const Plan& plan, nb::handle rows, nb::handle positions, nb::handle values) {
  const ArrayView<const float> row_view(rows, "rows");
  const ArrayView<const std::int32_t> position_view(positions, "positions");
  const ArrayView<float> value_view(values, "values");
  value_view.expect_size(plan.total_floats());
  const nb::gil_scoped_release unlocked;
  plan.place(row_view.items(), position_view.items(), value_view.items().data());
}

}  // namespace

void bind_plan_parts(nb::class_<Plan>& plan) {
  plan.def("last_in", &last_in, "plans"_a)
      .def("place", &place, "rows"_a.none(), "positions"_a.none(), "values"_a.none());
}

}  // namespace embermesh
