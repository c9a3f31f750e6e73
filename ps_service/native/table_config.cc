#include "table_config.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

namespace embermesh {

TableConfig::TableConfig(std::string table_name, std::int64_t table_dim,
                         std::string_view optimizer_name, const ParamMap& optimizer_params,
                         std::string_view initializer_name, const ParamMap& initializer_params)
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
    optimizer = make_optimizer(optimizer_name, optimizer_params);
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
  for (const TableConfig& table : tables_) {
    if (!names.insert(table.name).second) {
      throw std::invalid_argument("tables: the name '" + table.name + "' is used twice");
    }
    salts_.push_back(table_salt(static_cast<std::uint32_t>(salts_.size())));
    row_bytes_.push_back(table.row_floats() * sizeof(float));
    widest_row_bytes_ = std::max(widest_row_bytes_, row_bytes_.back());
  }
}

}  // namespace embermesh
