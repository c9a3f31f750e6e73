#include "row_store.h"

#include "hash.h"

namespace embermesh {

RowNumber RowStore::add(std::uint32_t table, std::uint64_t key, std::uint32_t hash) {
  index_.reserve_one([this](std::uint32_t id, std::uint64_t other) {
    return static_cast<std::uint32_t>(row_hash(schema_->salt(id), other));
  });
  const RowNumber row = arena_.allocate(RowArena::units_for(schema_->table(table).row_floats()));
  index_.insert(table, key, hash, row);
  ++rows_[table];
  return row;
}

TableRows RowStore::reserved(std::uint32_t table) const {
  TableRows out;
  out.keys.reserve(rows_[table]);
  out.values.reserve(rows_[table] * schema_->table(table).row_floats());
  return out;
}

void RowStore::append(TableRows& out, std::uint32_t table, std::uint64_t key, RowNumber row) const {
  const float* values = arena_.row(row);
  out.keys.push_back(key);
  out.values.insert(out.values.end(), values, values + schema_->table(table).row_floats());
}

TableRows RowStore::copy_rows(std::uint32_t table) const {
  TableRows out = reserved(table);
  index_.for_each([&](std::uint32_t owner, std::uint64_t key, RowNumber row) {
    if (owner == table) append(out, table, key, row);
  });
  return out;
}

std::vector<TableRows> RowStore::copy_rows() const {
  std::vector<TableRows> out;
  out.reserve(schema_->size());
  out.reserve(schema_->size());
  for (std::uint32_t table = 0; table < schema_->size(); ++table) out.push_back(reserved(table));
  index_.for_each([&](std::uint32_t table, std::uint64_t key, RowNumber row) {
    append(out[table], table, key, row);
  });
  return out;
}

}  // namespace embermesh
