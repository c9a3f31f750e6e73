// Tables and planner for Python: argument checks, GIL release, result arrays - and nothing else, as
// in the other nanobind files, bindings_*.cc.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "bindings_lifecycle.h"
#include "bindings_plan.h"
#include "crc32c.h"
#include "hash.h"
#include "numpy_view.h"
#include "planner.h"
#include "sparse_shard.h"

// Array arguments take `.none()`: None then meets the same check and message as any other object.
namespace nb = nanobind;
using namespace nb::literals;

namespace embermesh {
namespace {

// A read-only array that looks into `owner`.
template <class Items>
auto look_into(const Items& items, std::initializer_list<std::size_t> shape, nb::handle owner) {
  using T = std::remove_const_t<std::remove_pointer_t<decltype(items.data())>>;
  static constexpr T kNothing{};  // without items there may be no address
  return Numpy<const T>(items.empty() ? &kNothing : items.data(), shape, owner);
}

template <class T>
std::vector<T> to_vector(nb::handle array, const char* name) {
  const ArrayView<const T> view(array, name);
  return {view.items().begin(), view.items().end()};
}

Numpy<std::uint32_t> partition_of(std::int64_t table, nb::handle keys, std::int64_t partitions) {
  const ArrayView<const std::uint64_t> key_view(keys, "keys");
  if (table < 0 || table >= static_cast<std::int64_t>(kMaxTables)) {
    throw std::invalid_argument("table: must be 0 to 65535, got " + std::to_string(table));
  }
  if (!Partitioning::is_valid(partitions)) {
    throw std::invalid_argument("partitions: must be a power of two from 1 to 65536, got " +
                                std::to_string(partitions));
  }
  const auto items = key_view.items();
  NewArray<std::uint32_t> out(items.size());
  {
    const nb::gil_scoped_release unlocked;
    const Partitioning partition(static_cast<std::uint32_t>(partitions));
    const std::uint64_t salt = table_salt(static_cast<std::uint32_t>(table));
    for (std::size_t i = 0; i < items.size(); ++i) {
      out.data()[i] = partition(row_hash(salt, items[i]));
    }
  }
  return std::move(out).release({items.size()});
}

nb::bytes pull(SparseShard& shard, nb::handle counts, nb::handle keys, bool insert,
               std::uint64_t step, std::uint32_t event_time) {
  const ArrayView<const std::uint32_t> count_view(counts, "counts", 1, 2);
  const ArrayView<const std::uint64_t> key_view(keys, "keys");
  const std::size_t floats = shard.request_floats(count_view.items(), key_view.items().size());
  const auto bytes = static_cast<Py_ssize_t>(floats * sizeof(float));
  auto values = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, bytes));
  if (!values.is_valid()) throw std::bad_alloc();
  auto* out = reinterpret_cast<float*>(PyBytes_AS_STRING(values.ptr()));
  const nb::gil_scoped_release unlocked;
  shard.pull(count_view.items(), key_view.items(), insert, out, Moment{step, event_time});
  return values;
}

Numpy<float> pull_array(SparseShard& shard, nb::handle counts, nb::handle keys, bool insert,
                        std::uint64_t step, std::uint32_t event_time) {
  const ArrayView<const std::uint32_t> count_view(counts, "counts", 1, 2);
  const ArrayView<const std::uint64_t> key_view(keys, "keys");
  const std::size_t floats = shard.request_floats(count_view.items(), key_view.items().size());
  NewArray<float> values(floats);
  {
    const nb::gil_scoped_release unlocked;
    shard.pull(count_view.items(), key_view.items(), insert, values.data(),
               Moment{step, event_time});
  }
  return std::move(values).release({floats});
}

PushResult push(SparseShard& shard, nb::handle counts, nb::handle keys, nb::handle grads,
                std::uint64_t step, std::uint32_t event_time, nb::handle usage) {
  const ArrayView<const std::uint32_t> count_view(counts, "counts", 1, 2);
  const ArrayView<const std::uint64_t> key_view(keys, "keys");
  const ArrayView<const float> grad_view(grads, "grads");
  const Moment moment{step, event_time};
  if (usage.is_none()) {
    const nb::gil_scoped_release unlocked;
    return shard.push(count_view.items(), key_view.items(), grad_view.items(), moment);
  }
  const ArrayView<const float> usage_view(usage, "usage", 2, 2);
  usage_view.expect_shape(2, key_view.items().size());
  const auto half = usage_view.items().size() / 2;
  const nb::gil_scoped_release unlocked;
  return shard.push(count_view.items(), key_view.items(), grad_view.items(), moment,
                    usage_view.items().first(half), usage_view.items().subspan(half));
}

std::uint64_t erase(SparseShard& shard, nb::handle counts, nb::handle keys) {
  const ArrayView<const std::uint32_t> count_view(counts, "counts", 1, 2);
  const ArrayView<const std::uint64_t> key_view(keys, "keys");
  const nb::gil_scoped_release unlocked;
  return shard.erase(count_view.items(), key_view.items());
}

nb::tuple export_rows(const SparseShard& shard, std::int64_t table) {
  TableRows rows;
  {
    const nb::gil_scoped_release unlocked;
    rows = shard.export_rows(table);
  }
  const TableConfig& config = shard.schema().table(static_cast<std::size_t>(table));
  const std::size_t n = rows.keys.size();
  const std::size_t state_floats = config.state_floats();
  NewArray<std::uint64_t> keys(n);
  NewArray<float> weights(n * config.dim);
  NewArray<float> state(n * state_floats);
  std::copy_n(rows.keys.begin(), n, keys.data());
  for (std::size_t i = 0; i < n; ++i) {
    const float* row = rows.values.data() + i * config.row_floats();
    widen_weights(config.weights, row, config.dim, weights.data() + i * config.dim);
    std::copy_n(row + config.state_offset(), state_floats, state.data() + i * state_floats);
  }
  return nb::make_tuple(std::move(keys).release({n}), std::move(weights).release({n, config.dim}),
                        std::move(state).release({n, state_floats}));
}

template <class Holder>
Numpy<std::uint64_t> rows_per_table(Holder& holder) {
  std::vector<std::uint64_t> rows;
  {
    const nb::gil_scoped_release unlocked;
    rows = holder.rows();
  }
  NewArray<std::uint64_t> out(rows.size());
  std::ranges::copy(rows, out.data());
  return std::move(out).release({rows.size()});
}

void bind_snapshot(nb::module_& m) {
  const auto release = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Snapshot>(m, "Snapshot")
      .def("rows", &rows_per_table<Snapshot>)
      .def(
          "dump",
          [](Snapshot& snapshot, std::int64_t partition) -> nb::object {
            std::optional<std::string> block;
            {
              const nb::gil_scoped_release unlocked;
              block = snapshot.dump(partition);
            }
            return block ? nb::object(to_bytes(*block)) : nb::none();
          },
          "p"_a)
      .def("commit", &Snapshot::commit, release)
      .def("abandon", &Snapshot::abandon, release);
}

void bind_shard(nb::module_& m) {
  nb::class_<UpdateOptions>(m, "UpdateOptions")
      .def(
          "__init__",
          [](UpdateOptions* self, std::string schedule, const ParamMap& schedule_params,
             double clip_value, double clip_norm, double weight_decay) {
            new (self) UpdateOptions{std::move(schedule), schedule_params, clip_value, clip_norm,
                                     weight_decay};
          },
          nb::kw_only(), "schedule"_a = "constant", "schedule_params"_a = ParamMap{},
          "clip_value"_a = 0.0, "clip_norm"_a = 0.0, "weight_decay"_a = 0.0)
      .def_ro("schedule", &UpdateOptions::schedule)
      .def_ro("schedule_params", &UpdateOptions::schedule_params)
      .def_ro("clip_value", &UpdateOptions::clip_value)
      .def_ro("clip_norm", &UpdateOptions::clip_norm)
      .def_ro("weight_decay", &UpdateOptions::weight_decay)
      .def(
          "factor",
          [](const UpdateOptions& o, std::uint64_t step) {
            return make_schedule(o.schedule, o.schedule_params)->factor(step);
          },
          "step"_a);

  nb::class_<TableConfig>(m, "TableConfig")
      .def(
          "__init__",
          [](TableConfig* self, std::string name, std::int64_t dim, std::string_view optimizer,
             const ParamMap& optimizer_params, std::string_view initializer,
             const ParamMap& initializer_params, const std::optional<UpdateOptions>& options,
             std::string_view weights, const std::optional<RowPolicy>& rows) {
            new (self) TableConfig(std::move(name), dim, optimizer, optimizer_params, initializer,
                                   initializer_params, options.value_or(UpdateOptions{}), weights);
            if (rows) self->rows = *rows;
          },
          nb::kw_only(), "name"_a, "dim"_a, "optimizer"_a, "optimizer_params"_a, "initializer"_a,
          "initializer_params"_a, "options"_a = nb::none(), "weights"_a = "fp32",
          "rows"_a = nb::none())
      .def_ro("name", &TableConfig::name)
      .def_ro("dim", &TableConfig::dim)
      .def_prop_ro("optimizer", [](const TableConfig& t) { return t.optimizer().name(); })
      .def_prop_ro("optimizer_params", [](const TableConfig& t) { return t.optimizer().params(); })
      .def_prop_ro("initializer", [](const TableConfig& t) { return t.initializer->name(); })
      .def_prop_ro("initializer_params",
                   [](const TableConfig& t) { return t.initializer->params(); })
      .def_prop_ro("options", [](const TableConfig& t) { return t.rule->options(); })
      .def_prop_ro("weights", [](const TableConfig& t) { return weight_type_name(t.weights); })
      .def_ro("rows", &TableConfig::rows)
      .def_prop_ro("state_floats", &TableConfig::state_floats)
      .def_prop_ro("row_bytes",
                   [](const TableConfig& t) { return t.row_floats() * sizeof(float); });

  nb::class_<PushResult>(m, "PushResult")
      .def_ro("applied", &PushResult::applied)
      .def_ro("missing", &PushResult::missing)
      .def("__repr__", [](const PushResult& r) {
        return "PushResult(applied=" + std::to_string(r.applied) +
               ", missing=" + std::to_string(r.missing) + ")";
      });

  const auto release = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<StandbyMemory>(m, "StandbyMemory")
      .def(nb::init<std::size_t>(), "bytes"_a)
      .def("bytes", &StandbyMemory::bytes, release)
      .def("cold", &StandbyMemory::cold, release);

  nb::class_<SparseShard> shard(m, "SparseShard");
  shard
      .def(nb::init<std::vector<TableConfig>, std::int64_t, std::uint64_t, std::int64_t,
                    std::shared_ptr<StandbyMemory>>(),
           "tables"_a, nb::kw_only(), "partitions"_a, "seed"_a, "threads"_a = 1,
           "standby"_a.none() = nb::none())
      .def_prop_ro("partitions", &SparseShard::partitions)
      .def("pull", &pull, "counts"_a.none(), "keys"_a.none(), nb::kw_only(), "insert"_a,
           "step"_a = 1, "event_time"_a = 0)
      .def("pull_array", &pull_array, "counts"_a.none(), "keys"_a.none(), nb::kw_only(), "insert"_a,
           "step"_a = 1, "event_time"_a = 0)
      .def("push", &push, "counts"_a.none(), "keys"_a.none(), "grads"_a.none(), nb::kw_only(),
           "step"_a = 1, "event_time"_a = 0, "usage"_a = nb::none())
      .def("erase", &erase, "counts"_a.none(), "keys"_a.none())
      .def("compact", &SparseShard::compact, release)
      .def("rows", &rows_per_table<const SparseShard>)
      .def("bytes", &SparseShard::bytes, release)
      .def("export_rows", &export_rows, "table"_a)
      .def(
          "dump_partition",
          [](const SparseShard& shard, std::int64_t partition) {
            std::string block;
            {
              const nb::gil_scoped_release unlocked;
              block = shard.dump_partition(partition);
            }
            return to_bytes(block);
          },
          "p"_a)
      .def(
          "load_partition",
          [](SparseShard& shard, nb::handle block) {
            const BytesView view(block, "block");
            const nb::gil_scoped_release unlocked;
            return shard.load_partition(view.bytes());
          },
          "block"_a.none())
      .def("begin_snapshot", &SparseShard::begin_snapshot, "id"_a, "since"_a.none() = nb::none(),
           nb::keep_alive<0, 1>(), release)
      .def("clear", &SparseShard::clear, release);
  bind_snapshot(m);
  bind_lifecycle_verbs(shard);
}

Planner make_planner(nb::handle feature_tables, nb::handle dims, nb::handle columns,
                     const std::vector<std::string>& combiners, nb::handle owners,
                     std::int64_t shards, std::int64_t width, std::int64_t threads) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  if (shards < 1 || shards > kLimit || width < 0 || width > kLimit) {
    throw std::invalid_argument("shards, width: out of range, got " + std::to_string(shards) +
                                " and " + std::to_string(width));
  }
  PlannerConfig config;
  config.feature_tables = to_vector<std::uint32_t>(feature_tables, "feature_tables");
  config.dims = to_vector<std::uint32_t>(dims, "dims");
  config.columns = to_vector<std::uint32_t>(columns, "columns");
  for (const std::string& name : combiners) config.combiners.push_back(parse_combiner(name));
  config.owners = to_vector<std::uint16_t>(owners, "owners");
  config.shards = static_cast<std::uint32_t>(shards);
  config.width = static_cast<std::size_t>(width);
  return Planner(std::move(config), threads);
}

void bind_planner(nb::module_& m) {
  nb::class_<Plan> plan(m, "Plan");
  plan.def_prop_ro("unique",
                   [](nb::handle self) {
                     const auto items = nb::cast<const Plan&>(self).unique();
                     return look_into(items, {items.size()}, self);
                   })
      .def_prop_ro("inverse",
                   [](nb::handle self) {
                     const auto items = nb::cast<const Plan&>(self).inverse();
                     return look_into(items, {items.size()}, self);
                   })
      .def_prop_ro("counts",
                   [](nb::handle self) {
                     const auto& plan = nb::cast<const Plan&>(self);
                     const PlannerConfig& config = plan.config();
                     return look_into(plan.counts(), {config.shards, config.dims.size()}, self);
                   })
      .def_prop_ro("value_floats", [](nb::handle self) {
        const auto& items = nb::cast<const Plan&>(self).value_floats();
        return look_into(items, {items.size()}, self);
      });
  bind_plan_parts(m, plan);

  nb::class_<Planner>(m, "Planner")
      .def(
          "__init__",
          [](Planner* self, nb::handle feature_tables, nb::handle dims, nb::handle columns,
             const std::vector<std::string>& combiners, nb::handle owners, std::int64_t shards,
             std::int64_t width, std::int64_t threads) {
            new (self) Planner(make_planner(feature_tables, dims, columns, combiners, owners,
                                            shards, width, threads));
          },
          nb::kw_only(), "feature_tables"_a.none(), "dims"_a.none(), "columns"_a.none(),
          "combiners"_a, "owners"_a.none(), "shards"_a, "width"_a, "threads"_a = 1)
      .def(
          "plan",
          [](const Planner& planner, nb::handle keys, nb::handle offsets, std::int64_t batch) {
            const ArrayView<const std::uint64_t> key_view(keys, "keys");
            const ArrayView<const std::int32_t> offset_view(offsets, "offsets");
            const nb::gil_scoped_release unlocked;
            return planner.plan(key_view.items(), offset_view.items(), batch);
          },
          "keys"_a.none(), "offsets"_a.none(), "batch"_a);
}

}  // namespace
}  // namespace embermesh

NB_MODULE(_native, m) {
  m.doc() = "Native core of the parameter servers; see ps_service/_native.pyi.";
  m.attr("OPTIMIZERS") = embermesh::describe_kinds(embermesh::optimizer_kinds());
  m.attr("INITIALIZERS") = embermesh::describe_kinds(embermesh::initializer_kinds());
  m.attr("SCHEDULES") = embermesh::describe_kinds(embermesh::schedule_kinds());
  m.attr("ADMISSIONS") = embermesh::describe_kinds(embermesh::admission_kinds());
  m.attr("EVICTION_RULES") = embermesh::describe_kinds(embermesh::eviction_rules());
  m.def("partition_of", &embermesh::partition_of, "table"_a, "keys"_a.none(), "partitions"_a);
  m.def(
      "crc32c",
      [](nb::handle data) {
        const embermesh::BytesView view(data, "data");
        const nb::gil_scoped_release unlocked;
        return embermesh::crc32c(view.bytes());
      },
      "data"_a.none());
  embermesh::bind_row_policy(m);
  embermesh::bind_shard(m);
  embermesh::bind_planner(m);
  embermesh::bind_recent_keys(m);
  embermesh::bind_dense(m);
  embermesh::bind_wire(m);
}
