#include "bindings_lifecycle.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "numpy_view.h"

using namespace nanobind::literals;

namespace embermesh {
namespace {

nb::dict by_reason(const TableStats& stats) {
  nb::dict rows;
  for (std::size_t i = 0; i < kReasonNames.size(); ++i) {
    rows[nb::str(kReasonNames[i].data(), kReasonNames[i].size())] = stats.tally.evicted[i];
  }
  return rows;
}

nb::tuple removed(SparseShard& shard) {
  RemovedKeys removed;
  {
    const nb::gil_scoped_release unlocked;
    removed = shard.removed();
  }
  NewArray<std::uint32_t> counts(removed.counts.size());
  NewArray<std::uint64_t> keys(removed.keys.size());
  std::ranges::copy(removed.counts, counts.data());
  std::ranges::copy(removed.keys, keys.data());
  return nb::make_tuple(std::move(counts).release({removed.counts.size()}),
                        std::move(keys).release({removed.keys.size()}), removed.is_complete);
}

Numpy<std::uint64_t> partition_keys(const SparseShard& shard) {
  const std::vector<std::uint64_t> keys = shard.partition_keys();
  NewArray<std::uint64_t> array(keys.size());
  std::ranges::copy(keys, array.data());
  return std::move(array).release({keys.size()});
}

}  // namespace

void bind_row_policy(nb::module_& m) {
  nb::class_<RowPolicy>(m, "RowPolicy")
      .def(nb::init<std::string_view, const ParamMap&, const RuleMap&>(), nb::kw_only(),
           "admission"_a = "all", "admission_params"_a = ParamMap{}, "eviction"_a = RuleMap{})
      .def_prop_ro("admission", [](const RowPolicy& p) { return p.admission->name(); })
      .def_prop_ro("admission_params", [](const RowPolicy& p) { return p.admission->params(); })
      .def_prop_ro("eviction", [](const RowPolicy& p) { return p.eviction->rules(); });

  nb::class_<TableStats>(m, "TableStats")
      .def_ro("rows", &TableStats::rows)
      .def_ro("pulled", &TableStats::pulled)
      .def_prop_ro("admitted", [](const TableStats& s) { return s.tally.admitted; })
      .def_prop_ro("rejected", [](const TableStats& s) { return s.tally.rejected; })
      .def_prop_ro("dropped", [](const TableStats& s) { return s.tally.dropped; })
      .def_prop_ro("erased", [](const TableStats& s) { return s.tally.erased; })
      .def_prop_ro("evicted", &by_reason)
      .def_ro("gate_bytes", &TableStats::gate_bytes);

  nb::class_<IndexStats>(m, "IndexStats")
      .def_ro("rows", &IndexStats::rows)
      .def_ro("slots", &IndexStats::slots)
      .def_prop_ro("probes", [](const IndexStats& s) {
        return std::vector<std::uint64_t>(s.probes.begin(), s.probes.end());
      });

  nb::class_<HotKey>(m, "HotKey")
      .def_ro("key", &HotKey::key)
      .def_ro("count", &HotKey::count)
      .def_ro("error", &HotKey::error)
      .def_ro("share", &HotKey::share);
}

void bind_lifecycle_verbs(nb::class_<SparseShard>& shard) {
  const auto release = nb::call_guard<nb::gil_scoped_release>();
  shard
      .def(
          "dump_lifecycle",
          [](const SparseShard& shard, std::int64_t partition, std::uint32_t now) {
            std::string block;
            {
              const nb::gil_scoped_release unlocked;
              block = shard.dump_lifecycle(partition, now);
            }
            return to_bytes(block);
          },
          "p"_a, "now"_a)
      .def(
          "load_lifecycle",
          [](SparseShard& shard, nb::handle block) {
            const BytesView view(block, "block");
            const nb::gil_scoped_release unlocked;
            return shard.load_lifecycle(view.bytes());
          },
          "block"_a.none())
      .def("evict", &SparseShard::evict, "partition"_a, "now"_a, release)
      .def("stats", &SparseShard::stats, release)
      .def("index_stats", &SparseShard::index_stats, release)
      .def("partition_keys", &partition_keys)
      .def("hot_keys", &SparseShard::hot_keys, "table"_a, "n"_a, release)
      .def("removed", &removed);
}

}  // namespace embermesh
