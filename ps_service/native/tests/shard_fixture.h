// Small shards for the tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sparse_shard.h"

namespace embermesh {

inline TableConfig make_table(std::string name, std::int64_t dim,
                              std::string_view optimizer = "adagrad", const ParamMap& params = {}) {
  return {std::move(name), dim, optimizer, params, "uniform", {}};
}

inline std::vector<TableConfig> two_tables() {
  return {make_table("a", 3, "adam"), make_table("b", 5)};
}

inline std::vector<float> pull(SparseShard& shard, const std::vector<std::uint32_t>& counts,
                               const std::vector<std::uint64_t>& keys, bool insert) {
  std::vector<float> values(shard.request_floats(counts, keys.size()));
  shard.pull(counts, keys, insert, values.data());
  return values;
}

}  // namespace embermesh
