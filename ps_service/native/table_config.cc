#include "table_config.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "simd.h"

namespace embermesh {
namespace {

// All that decides what a gradient does to a row, whatever its table.
using Update = std::tuple<std::size_t, WeightType, std::string_view, ParamMap, std::string_view,
                          ParamMap, double, double, double>;

Update update_of(const TableConfig& table) {
  const UpdateOptions& options = table.rule->options();
  return {table.dim,
          table.weights,
          table.optimizer().name(),
          table.optimizer().params(),
          options.schedule,
          options.schedule_params,
          options.clip_value,
          options.clip_norm,
          options.weight_decay};
}

}  // namespace

TableConfig::TableConfig(std::string table_name, std::int64_t table_dim,
                         std::string_view optimizer_name, const ParamMap& optimizer_params,
                         std::string_view initializer_name, const ParamMap& initializer_params,
                         const UpdateOptions& options, std::string_view weight_type)
    : name(std::move(table_name)), dim(static_cast<std::size_t>(table_dim)) {
  constexpr std::size_t kMaxName = 255;
  if (name.empty() || name.size() > kMaxName) {
    throw std::invalid_argument("name: table name must have 1 to 255 bytes, got " +
                                std::to_string(name.size()));
  }
  if (table_dim < 1 || table_dim > kMaxDim) {
    throw std::invalid_argument("dim: table '" + name + "' has dim " + std::to_string(table_dim) +
                                ", allowed is 1 to " + std::to_string(kMaxDim));
  }
  const std::string where = "table '" + name + "': ";
  try {
    weights = parse_weight_type(weight_type);
    rule = std::make_shared<UpdateRule>(optimizer_name, optimizer_params, options);
    initializer = make_initializer(initializer_name, initializer_params);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(where + error.what());
  }
}

Schema::Schema(std::vector<TableConfig> tables, std::uint64_t seed)
    : tables_(std::move(tables)), seed_(seed) {
  if (tables_.empty() || tables_.size() > kMaxTables) {
    throw std::invalid_argument("tables: a shard has 1 to " + std::to_string(kMaxTables) +
                                " tables, got " + std::to_string(tables_.size()));
  }
  std::set<std::string_view> names;
  std::map<Update, std::uint32_t> updates;
  for (const TableConfig& table : tables_) {
    if (!names.insert(table.name).second) {
      throw std::invalid_argument("tables: the name '" + table.name + "' is used twice");
    }
    salts_.push_back(table_salt(static_cast<std::uint32_t>(salts_.size())));
    const auto id = static_cast<std::uint32_t>(shapes_.size());
    const TableShape& shape = shapes_.emplace_back(
        TableShape{.dim = static_cast<std::uint32_t>(table.dim),
                   .weight_bytes = static_cast<std::uint32_t>(table.state_offset() * sizeof(float)),
                   .row_bytes = static_cast<std::uint32_t>(table.row_floats() * sizeof(float)),
                   .update = updates.emplace(update_of(table), id).first->second,
                   .weights = table.weights,
                   .admits_all = table.rows.admission->is_open(),
                   .evicts = !table.rows.eviction->is_off()});
    any_evicts_ = any_evicts_ || shape.evicts;
    any_scores_ = any_scores_ || table.rows.eviction->scores_pushes();
    has_whole_lines_ = has_whole_lines_ && table.weights == WeightType::kFp32 &&
                       table.dim * sizeof(float) % kCacheLine == 0;
  }
}

void Schema::fill_initial(std::size_t id, std::uint64_t hash, float* weights) const noexcept {
  const TableConfig& table = tables_[id];
  table.initializer->fill(weights, table.dim, row_bits(hash));
  if (table.weights == WeightType::kFp32) return;
  float stored[kMaxDim];
  narrow_weights(table.weights, weights, table.dim, Rounding::nearest(), stored);
  widen_weights(table.weights, stored, table.dim, weights);
}

void Schema::init_row(std::size_t id, std::uint64_t hash, float* row) const noexcept {
  const TableConfig& table = tables_[id];
  if (table.weights == WeightType::kFp32) {
    table.initializer->fill(row, table.dim, row_bits(hash));
  } else {
    float weights[kMaxDim];
    table.initializer->fill(weights, table.dim, row_bits(hash));
    narrow_weights(table.weights, weights, table.dim, Rounding::nearest(), row);
  }
  table.optimizer().init(row + table.state_offset(), table.dim);
}

TrainStep Schema::train_step(std::uint64_t number) const {
  TrainStep step{number, {}};
  step.rates.reserve(tables_.size());
  for (const TableConfig& table : tables_) step.rates.push_back(table.rule->rate(number));
  return step;
}

void Schema::apply(std::size_t id, std::span<const RowUpdate> updates,
                   const TrainStep& step) const noexcept {
  const TableConfig& table = tables_[id];
  const UpdateRule& rule = *table.rule;
  const float rate = step.rates[id];
  const bool is_fp32 = table.weights == WeightType::kFp32;
  if (is_fp32 && rule.is_plain()) return rule.optimizer().apply(updates, table.dim, rate);
  float clipped[kMaxDim];
  float widened[kMaxDim];
  for (const RowUpdate& update : updates) {
    const float* grad = update.grad;
    if (rule.clips()) {
      rule.clip(grad, table.dim, clipped);
      grad = clipped;
    }
    float* state = update.row + table.state_offset();
    if (is_fp32) {
      rule.step(update.row, state, grad, table.dim, rate);
      continue;
    }
    widen_weights(table.weights, update.row, table.dim, widened);
    rule.step(widened, state, grad, table.dim, rate);
    const auto rounding = Rounding::stochastic(row_bits(update.hash), step.number);
    narrow_weights(table.weights, widened, table.dim, rounding, update.row);
  }
}

}  // namespace embermesh
