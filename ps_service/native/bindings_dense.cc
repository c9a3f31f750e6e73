// Dense blocks for Python; see bindings.cc.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dense_block.h"
#include "local_adam.h"
#include "numpy_view.h"
#include "row_codec.h"

namespace embermesh {

using namespace nb::literals;

static std::unique_ptr<DenseBlock> join_blocks(const nb::sequence& blocks, std::size_t offset,
                                               std::size_t size, std::string_view optimizer,
                                               const ParamMap& params,
                                               const std::optional<UpdateOptions>& options) {
  std::deque<BytesView> views;  // a view never moves
  std::vector<std::span<const std::byte>> spans;
  for (nb::handle block : blocks) spans.push_back(views.emplace_back(block, "blocks").bytes());
  const nb::gil_scoped_release unlocked;
  return DenseBlock::join(spans, offset, size, optimizer, params,
                          options.value_or(UpdateOptions{}));
}

// What `write` puts into an array of `size` floats.
template <class Write>
static Numpy<float> floats(std::size_t size, Write&& write) {
  NewArray<float> out(size);
  {
    const nb::gil_scoped_release unlocked;
    write(out.data());
  }
  return std::move(out).release({size});
}

static Numpy<float> floats(std::span<const float> values) {
  return floats(values.size(), [&](float* out) { std::ranges::copy(values, out); });
}

static Numpy<std::uint16_t> to_halves(nb::handle values) {
  const ArrayView<const float> view(values, "values");
  const std::size_t count = view.items().size();
  NewArray<std::uint16_t> out(2 * weight_units(WeightType::kFp16, count));
  {
    const nb::gil_scoped_release unlocked;
    narrow_weights(WeightType::kFp16, view.items().data(), count, Rounding::nearest(),
                   reinterpret_cast<float*>(out.data()));
  }
  return std::move(out).release({count});
}

static Numpy<float> from_halves(nb::handle halves) {
  const ArrayView<const std::uint16_t> view(halves, "halves");
  const std::span<const std::uint16_t> items = view.items();
  return floats(items.size(), [&](float* out) {
    std::ranges::transform(items, out, [](std::uint16_t half) { return from_fp16(half); });
  });
}

static void bind_local_adam(nb::module_& m) {
  nb::class_<LocalAdam>(m, "LocalAdam")
      .def(
          "__init__",
          [](LocalAdam* self, std::size_t size, std::string_view optimizer, const ParamMap& params,
             const std::optional<UpdateOptions>& options) {
            new (self) LocalAdam(size, optimizer, params, options.value_or(UpdateOptions{}));
          },
          "size"_a, nb::kw_only(), "optimizer"_a, "optimizer_params"_a, "options"_a = nb::none())
      .def_prop_ro("steps", &LocalAdam::steps)
      .def(
          "restart",
          [](LocalAdam& adam, nb::handle values, nb::handle roots, nb::handle momentum,
             std::uint64_t step) {
            adam.restart(ArrayView<const float>(values, "values").items(),
                         ArrayView<const float>(roots, "roots").items(),
                         ArrayView<const float>(momentum, "momentum").items(), step);
          },
          "values"_a.none(), "roots"_a.none(), "momentum"_a.none(), nb::kw_only(), "step"_a)
      .def(
          "apply",
          [](LocalAdam& adam, nb::handle grads) {
            const ArrayView<const float> view(grads, "grads");
            const nb::gil_scoped_release unlocked;
            adam.apply(view.items());
          },
          "grads"_a.none())
      .def(
          "merge",
          [](LocalAdam& adam, nb::handle change, nb::handle roots, nb::handle momentum,
             std::uint64_t step) {
            adam.merge(ArrayView<const float>(change, "change").items(),
                       ArrayView<const float>(roots, "roots").items(),
                       ArrayView<const float>(momentum, "momentum").items(), step);
          },
          "change"_a.none(), "roots"_a.none(), "momentum"_a.none(), nb::kw_only(), "step"_a)
      .def("values", [](const LocalAdam& adam) { return floats(adam.values()); })
      .def("momentum", [](const LocalAdam& adam) { return floats(adam.momentum()); })
      .def("change",
           [](const LocalAdam& adam) {
             return floats(adam.size(), [&](float* out) { adam.change(out); });
           })
      .def("roots", [](const LocalAdam& adam) {
        return floats(adam.size(), [&](float* out) { adam.roots(out); });
      });
}

void bind_dense(nb::module_& m) {
  bind_local_adam(m);
  m.def("to_fp16", &to_halves, "values"_a.none());
  m.def("from_fp16", &from_halves, "halves"_a.none());
  nb::class_<DenseBlock>(m, "DenseBlock")
      .def(
          "__init__",
          [](DenseBlock* self, nb::handle values, std::string_view optimizer,
             const ParamMap& params, const std::optional<UpdateOptions>& options) {
            const ArrayView<const float> view(values, "values");
            new (self)
                DenseBlock(view.items(), optimizer, params, options.value_or(UpdateOptions{}));
          },
          "values"_a.none(), nb::kw_only(), "optimizer"_a, "optimizer_params"_a,
          "options"_a = nb::none())
      .def("values",
           [](const DenseBlock& block) {
             return floats(block.size(), [&](float* out) { block.values(out); });
           })
      .def("roots",
           [](const DenseBlock& block) {
             return floats(block.size(), [&](float* out) { block.roots(out); });
           })
      .def("momentum",
           [](const DenseBlock& block) {
             return floats(block.size(), [&](float* out) { block.momentum(out); });
           })
      .def(
          "merge",
          [](DenseBlock& block, nb::handle change, nb::handle second, nb::handle momentum,
             float keep, std::uint64_t steps) {
            const ArrayView<const float> changes(change, "change");
            const ArrayView<const float> seconds(second, "second");
            const ArrayView<const float> momenta(momentum, "momentum");
            const nb::gil_scoped_release unlocked;
            block.merge(changes.items(), seconds.items(), momenta.items(), keep, steps);
          },
          "change"_a.none(), "second"_a.none(), "momentum"_a.none(), nb::kw_only(), "keep"_a,
          "steps"_a)
      .def(
          "apply",
          [](DenseBlock& block, nb::handle grads) {
            const ArrayView<const float> view(grads, "grads");
            const nb::gil_scoped_release unlocked;
            block.apply(view.items());
          },
          "grads"_a.none())
      .def_prop_ro("step", &DenseBlock::step)
      .def_prop_ro("optimizer", [](const DenseBlock& b) { return b.rule().optimizer().name(); })
      .def_prop_ro("optimizer_params",
                   [](const DenseBlock& b) { return b.rule().optimizer().params(); })
      .def_prop_ro("options", [](const DenseBlock& b) { return b.rule().options(); })
      .def("dump",
           [](const DenseBlock& block) {
             std::string data;
             {
               const nb::gil_scoped_release unlocked;
               data = block.dump();
             }
             return to_bytes(data);
           })
      .def_static(
          "load",
          [](nb::handle block) {
            const BytesView view(block, "block");
            const nb::gil_scoped_release unlocked;
            return DenseBlock::load(view.bytes());
          },
          "block"_a.none())
      .def_static("join", &join_blocks, "blocks"_a, nb::kw_only(), "offset"_a, "size"_a,
                  "optimizer"_a, "optimizer_params"_a, "options"_a = nb::none());
}

}  // namespace embermesh
