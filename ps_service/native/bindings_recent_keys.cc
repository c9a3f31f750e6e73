#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings.h"
#include "bindings_plan.h"
#include "recent_keys.h"

namespace embermesh {
namespace {

using namespace nanobind::literals;

template <class T>
Numpy<T> adopt(std::vector<T>&& items, std::initializer_list<std::size_t> shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(items));
  T* const data = kept->data();
  const nb::capsule owner(kept.get(),
                          [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  (void)kept.release();  // the capsule has it
  return Numpy<T>(data, shape, owner);
}

nb::list split(RecentKeys& recent, const Plan& plan, std::uint64_t step, std::uint64_t oldest) {
  std::vector<KeyGroup> groups;
  {
    const nb::gil_scoped_release unlocked;
    groups = recent.split(plan, step, oldest);
  }
  nb::list out;
  for (KeyGroup& group : groups) {
    const std::size_t keys = group.keys.size();
    out.append(nb::make_tuple(
        group.step, adopt(std::move(group.positions), {keys}), adopt(std::move(group.keys), {keys}),
        adopt(std::move(group.counts), {plan.config().shards, plan.config().dims.size()})));
  }
  return out;
}

}  // namespace

void bind_recent_keys(nb::module_& m) {
  nb::class_<RecentKeys>(m, "RecentKeys")
      .def(nb::init<>())
      .def_prop_ro("cells", &RecentKeys::cells)
      .def("split", &split, "plan"_a, "step"_a, "oldest"_a);
}

}  // namespace embermesh
