#include "bindings_plan.h"

#include "numpy_view.h"

namespace embermesh {
namespace {

namespace nb = nanobind;
using namespace nanobind::literals;

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
  plan.def("place", &place, "rows"_a.none(), "positions"_a.none(), "values"_a.none());
}

}  // namespace embermesh
