#include "bindings_plan.h"

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "numpy_view.h"

namespace embermesh {
namespace {

namespace nb = nanobind;
using namespace nanobind::literals;

void gather(const Plan& plan, nb::handle values, nb::handle out) {
  const ArrayView<const float> value_view(values, "values");
  const ArrayView<float> out_view(out, "out", 2, 2);
  value_view.expect_size(plan.total_floats());
  out_view.expect_shape(plan.batch(), plan.config().width);
  const nb::gil_scoped_release unlocked;
  plan.gather(value_view.items().data(), out_view.items().data());
}

Numpy<float> scatter(const Plan& plan, const nb::args& grads) {
  if (grads.size() == 0) throw std::invalid_argument("grads: expected at least one array, got 0");
  std::deque<ArrayView<const float>> views;  // they can't be moved
  std::vector<const float*> blocks;
  std::size_t left = plan.batch();
  for (const nb::handle block : grads) {
    const auto& view = views.emplace_back(block, "grads", 2, 2);
    const std::size_t most = grads.size() == 1 ? left : views.front().rows();
    view.expect_shape(std::min(left, most), plan.config().width);
    left -= view.rows();
    blocks.push_back(view.items().data());
  }
  if (left > 0) {
    throw std::invalid_argument("grads: expected " + std::to_string(plan.batch()) +
                                " rows in all arrays, got " + std::to_string(plan.batch() - left));
  }
  NewArray<float> sums(plan.total_floats());
  {
    const nb::gil_scoped_release unlocked;
    plan.scatter({blocks, views.front().rows()}, sums.data());
  }
  return std::move(sums).release({plan.total_floats()});
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
  plan.def("gather", &gather, "values"_a.none(), "out"_a.none())
      .def("scatter", &scatter)
      .def("place", &place, "rows"_a.none(), "positions"_a.none(), "values"_a.none());
}

}  // namespace embermesh
