// What the user says about a table, and what the hot path derives from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hash.h"
#include "initializer.h"
#include "row_codec.h"
#include "row_policy.h"
#include "update_rule.h"

namespace embermesh {

inline constexpr std::int64_t kMaxDim = 4096;
inline constexpr std::size_t kMaxTables = 65536;

// Validated and immutable; copies share the kernels.
struct TableConfig {
  // Throws std::invalid_argument naming the field, its value and what is allowed.
  TableConfig(std::string name, std::int64_t dim, std::string_view optimizer,
              const ParamMap& optimizer_params, std::string_view initializer,
              const ParamMap& initializer_params, const UpdateOptions& options = {},
              std::string_view weights = "fp32");

  [[nodiscard]] const OptimizerKernel& optimizer() const noexcept { return rule->optimizer(); }
  [[nodiscard]] std::size_t state_floats() const noexcept { return optimizer().state_floats(dim); }
  // Units of 4 bytes before the state, and of the whole row.
  [[nodiscard]] std::size_t state_offset() const noexcept { return weight_units(weights, dim); }
  [[nodiscard]] std::size_t row_floats() const noexcept { return state_offset() + state_floats(); }

  std::string name;
  std::size_t dim;
  WeightType weights;
  std::shared_ptr<const UpdateRule> rule;
  std::shared_ptr<const InitializerKernel> initializer;
  RowPolicy rows;
};

// What the hot path asks of a table for every key.
struct TableShape {
  std::uint32_t dim;
  std::uint32_t weight_bytes;  // of a row; the optimizer's state follows
  std::uint32_t row_bytes;
  std::uint32_t update;  // the first table whose rows are updated in just the same way
  WeightType weights;
  bool admits_all;
  bool evicts;
};

// A step of training as the tables see it: its number, and each table's learning-rate factor.
struct TrainStep {
  std::uint64_t number;
  std::vector<float> rates;
};

// The tables of a shard; a table's id is its place in the list. Immutable.
class Schema {
 public:
  // Throws std::invalid_argument if there are no or too many tables, or two of one name.
  Schema(std::vector<TableConfig> tables, std::uint64_t seed);

  [[nodiscard]] std::size_t size() const noexcept { return tables_.size(); }
  [[nodiscard]] const TableConfig& table(std::size_t id) const noexcept { return tables_[id]; }
  [[nodiscard]] const TableShape& shape(std::size_t id) const noexcept { return shapes_[id]; }
  [[nodiscard]] std::span<const TableShape> shapes() const noexcept { return shapes_; }
  [[nodiscard]] std::size_t dim(std::size_t id) const noexcept { return shapes_[id].dim; }
  [[nodiscard]] std::uint64_t salt(std::size_t id) const noexcept { return salts_[id]; }
  [[nodiscard]] std::size_t row_bytes(std::size_t id) const noexcept {
    return shapes_[id].row_bytes;
  }
  // Whether rows of the table may be evicted, so that their metadata is kept.
  [[nodiscard]] bool evicts(std::size_t id) const noexcept { return shapes_[id].evicts; }
  // Whether any table does, and whether any goes by what pushes bring.
  [[nodiscard]] bool evicts() const noexcept { return any_evicts_; }
  [[nodiscard]] bool scores_pushes() const noexcept { return any_scores_; }
  // Whether the weights of every table are float32 and fill cache lines of 64 bytes.
  [[nodiscard]] bool has_whole_lines() const noexcept { return has_whole_lines_; }

  // Random bits that belong to the key of this row_hash.
  [[nodiscard]] std::uint64_t row_bits(std::uint64_t hash) const noexcept {
    return row_random(seed_, hash);
  }

  // Writes the initial weights of the key with this row_hash: what a row made by init_row reads.
  void fill_initial(std::size_t id, std::uint64_t hash, float* weights) const noexcept;

  // Makes a fresh row: initial weights and the optimizer's initial state.
  void init_row(std::size_t id, std::uint64_t hash, float* row) const noexcept;

  // Step number `number` of training, counted from 1.
  [[nodiscard]] TrainStep train_step(std::uint64_t number) const;

  // Updates rows of one table, and of those with its update. The outcome for a row depends on the
  // row, its key, its gradient and the step alone.
  void apply(std::size_t id, std::span<const RowUpdate> updates,
             const TrainStep& step) const noexcept;

 private:
  std::vector<TableConfig> tables_;
  std::uint64_t seed_;
  std::vector<std::uint64_t> salts_;
  std::vector<TableShape> shapes_;
  bool any_evicts_ = false;
  bool any_scores_ = false;
  bool has_whole_lines_ = true;
};

}  // namespace embermesh
