// The planner: any keys and offsets of a batch are refused or planned, and a plan can be used.
#include <stdexcept>

#include "fuzz.h"
#include "planner.h"
#include "recent_keys.h"

using embermesh::Planner;
using embermesh::PlannerConfig;
namespace fuzz = embermesh::fuzz;

namespace {

Planner make_planner() {
  PlannerConfig config;
  config.feature_tables = {0, 1, 0};
  config.dims = {3, 5};
  config.columns = {0, 3, 8};
  config.combiners = {embermesh::parse_combiner("sum"), embermesh::parse_combiner("mean"),
                      embermesh::parse_combiner("sqrtn")};
  config.owners = {0, 1, 2, 1};
  config.shards = 3;
  config.width = 11;
  return Planner(std::move(config));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Planner planner = make_planner();
  fuzz::Input input(data, size);
  const auto batch = static_cast<std::int64_t>(input.next<std::int8_t>());
  const auto shape = input.next<std::uint8_t>();
  auto offsets = input.some<std::int32_t>(shape & 63U);
  if ((shape & 64U) != 0) {  // offsets that may be right
    std::int32_t sum = 0;
    for (auto& offset : offsets) offset = std::exchange(sum, sum + (offset & 3));
  }
  auto keys = input.some<std::uint64_t>(1024);
  if ((shape & 64U) != 0 && !offsets.empty()) {
    keys.resize(static_cast<std::size_t>(offsets.back()));
  }
  try {
    const auto plan = planner.plan(keys, offsets, batch);
    std::vector<float> values(plan.total_floats(), 1.0F);
    std::vector<float> gathered(plan.batch() * plan.config().width);
    plan.gather(values.data(), gathered.data());
    plan.scatter(gathered.data(), values.data());
    embermesh::RecentKeys recent;
    (void)recent.split(plan, 1, 1);
    (void)recent.split(plan, 3, input.next<std::uint8_t>());
    const auto rows = values;
    plan.place(rows, input.some<std::int32_t>(16), values.data());
  } catch (const std::invalid_argument&) {  // as it must be
  }
  return 0;
}
