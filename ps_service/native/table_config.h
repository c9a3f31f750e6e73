// What the user says about a table, and what the hot path derives from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hash.h"
#include "initializer.h"
#include "optimizers/optimizer.h"

namespace embermesh {

inline constexpr std::int64_t kMaxDim = 4096;
inline constexpr std::size_t kMaxTables = 65536;

// Validated and immutable; copies share the kernels.
struct TableConfig {
  // Throws std::invalid_argument naming the field, its value and what is allowed.
  TableConfig(std::string name, std::int64_t dim, std::string_view optimizer,
              const ParamMap& optimizer_params, std::string_view initializer,
              const ParamMap& initializer_params);

  [[nodiscard]] std::size_t state_floats() const noexcept { return optimizer->state_floats(dim); }
  [[nodiscard]] std::size_t row_floats() const noexcept { return dim + state_floats(); }

  std::string name;
  std::size_t dim;
  std::shared_ptr<const OptimizerKernel> optimizer;
  std::shared_ptr<const InitializerKernel> initializer;
};

// The tables of a shard; a table's id is its place in the list. Immutable.
class Schema {
 public:
  // Throws std::invalid_argument if there are no or too many tables, or two of one name.
  Schema(std::vector<TableConfig> tables, std::uint64_t seed);

  [[nodiscard]] std::size_t size() const noexcept { return tables_.size(); }
  [[nodiscard]] const TableConfig& table(std::size_t id) const noexcept { return tables_[id]; }
  [[nodiscard]] std::size_t dim(std::size_t id) const noexcept { return tables_[id].dim; }
  [[nodiscard]] std::uint64_t salt(std::size_t id) const noexcept { return salts_[id]; }
  [[nodiscard]] std::size_t row_bytes(std::size_t id) const noexcept { return row_bytes_[id]; }
  [[nodiscard]] std::size_t widest_row_bytes() const noexcept { return widest_row_bytes_; }

  // Writes the initial weights of the key with this row_hash.
  void fill_initial(std::size_t id, std::uint64_t hash, float* weights) const noexcept {
    const TableConfig& config = tables_[id];
    config.initializer->fill(weights, config.dim, row_random(seed_, hash));
  }

 private:
  std::vector<TableConfig> tables_;
  std::uint64_t seed_;
  std::vector<std::uint64_t> salts_;
  std::vector<std::size_t> row_bytes_;
  std::size_t widest_row_bytes_ = 0;
};

}  // namespace embermesh
