#include "bindings_plan.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "numpy_view.h"
#include "plan_projection.h"

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

void take(Projection& projection, const Plan& plan, nb::handle values, nb::handle dense,
          std::size_t first) {
  const ArrayView<const float> value_view(values, "values");
  const ArrayView<const float> dense_view(dense, "dense", 2, 2);
  value_view.expect_size(plan.total_floats());
  const std::size_t rows = dense_view.rows();
  if (first > plan.batch() || rows > plan.batch() - first) {
    throw std::invalid_argument("dense: expected at most " + std::to_string(plan.batch()) +
                                " samples from the batch's first, got " + std::to_string(rows) +
                                " from " + std::to_string(first));
  }
  const std::size_t columns = dense_view.columns();
  if (columns > plan.config().first_column()) {
    throw std::invalid_argument(
        "dense: expected at most " + std::to_string(plan.config().first_column()) +
        " columns before those of features, got " + std::to_string(columns));
  }
  const nb::gil_scoped_release unlocked;
  projection.take(plan, first, rows, value_view.items().data(), dense_view.items().data(), columns);
}

// A layer's arrays, checked.
template <class Float>
class LayerView {
 public:
  LayerView(const Projection& projection, nb::handle weights, nb::handle bias, bool relu,
            const char* name, const char* bias_name)
      : weights_(weights, name, 2, 2), units_(weights_.columns()), relu_(relu) {
    weights_.expect_shape(projection.width(), units_);
    if (bias.is_none()) return;
    bias_.emplace(bias, bias_name);
    bias_->expect_size(units_);
  }

  [[nodiscard]] Layer<Float> layer() const noexcept {
    return {weights_.items().data(), bias_ ? bias_->items().data() : nullptr, units_, relu_};
  }

 private:
  ArrayView<Float> weights_;
  std::optional<ArrayView<Float>> bias_;
  std::size_t units_;
  bool relu_;
};

void forward(Projection& projection, nb::handle weights, nb::handle bias, bool relu,
             nb::handle out) {
  const LayerView<const float> view(projection, weights, bias, relu, "weights", "bias");
  const ArrayView<float> out_view(out, "out", 2, 2);
  out_view.expect_shape(projection.samples(), view.layer().units);
  const nb::gil_scoped_release unlocked;
  projection.forward(view.layer(), out_view.items().data());
}

float backward(Projection& projection, nb::handle weights, bool relu, nb::handle out,
               nb::handle grads, nb::handle weight_grads, nb::handle bias_grads) {
  const LayerView<const float> view(projection, weights, nb::none(), relu, "weights", "bias");
  const LayerView<float> grad_view(projection, weight_grads, bias_grads, relu, "weight_grads",
                                   "bias_grads");
  const ArrayView<const float> out_view(out, "out", 2, 2), out_grads(grads, "grads", 2, 2);
  out_view.expect_shape(projection.samples(), view.layer().units);
  out_grads.expect_shape(projection.samples(), view.layer().units);
  if (grad_view.layer().units != view.layer().units) {
    throw std::invalid_argument("weight_grads: expected as many columns as weights have");
  }
  const nb::gil_scoped_release unlocked;
  return projection.backward(view.layer(), out_view.items().data(), out_grads.items().data(),
                             grad_view.layer());
}

Numpy<float> add_up(const Plan& plan, const nb::args& projections) {
  std::vector<const Projection*> parts;
  for (const nb::handle part : projections) {
    parts.push_back(&nb::cast<const Projection&>(part));
    if (parts.back()->total_floats() != plan.total_floats()) {
      throw std::invalid_argument("projections: expected this plan's, got another's");
    }
    if (!parts.back()->has_grads()) {
      throw std::invalid_argument("projections: expected gradients, got one before its backward");
    }
  }
  NewArray<float> sums(plan.total_floats());
  {
    const nb::gil_scoped_release unlocked;
    std::fill_n(sums.data(), plan.total_floats(), 0.0F);
    for (const Projection* part : parts) part->add_to(sums.data());
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

void bind_plan_parts(nb::module_& m, nb::class_<Plan>& plan) {
  nb::class_<Projection>(m, "Projection")
      .def(nb::init<>())
      .def("take", &take, "plan"_a, "values"_a.none(), "dense"_a.none(), "first"_a)
      .def("forward", &forward, "weights"_a.none(), "bias"_a.none(), "relu"_a, "out"_a.none())
      .def("backward", &backward, "weights"_a.none(), "relu"_a, "out"_a.none(), "grads"_a.none(),
           "weight_grads"_a.none(), "bias_grads"_a.none());
  plan.def("gather", &gather, "values"_a.none(), "out"_a.none())
      .def("scatter", &scatter)
      .def("worth_projecting", &worth_projecting, "units"_a)
      .def("add_up", &add_up)
      .def("place", &place, "rows"_a.none(), "positions"_a.none(), "values"_a.none());
}

}  // namespace embermesh
