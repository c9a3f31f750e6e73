// Dense blocks for Python; see bindings.cc.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dense_block.h"
#include "numpy_view.h"

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

void bind_dense(nb::module_& m) {
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
             NewArray<float> out(block.size());
             {
               const nb::gil_scoped_release unlocked;
               block.values(out.data());
             }
             return std::move(out).release({block.size()});
           })
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
