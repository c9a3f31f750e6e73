#include "partition.h"

#include <utility>

namespace embermesh {

void Partition::count_rows(std::span<std::uint64_t> rows) const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t table = 0; table < rows.size(); ++table) rows[table] += store_.rows(table);
}

std::size_t Partition::bytes() const {
  const std::scoped_lock lock(mutex_);
  return store_.bytes();
}

TableRows Partition::copy_rows(std::uint32_t table) const {
  const std::scoped_lock lock(mutex_);
  return store_.copy_rows(table);
}

std::vector<TableRows> Partition::copy_rows() const {
  const std::scoped_lock lock(mutex_);
  return store_.copy_rows();
}

void Partition::compact(bool always) noexcept {
  for (bool has_more = true; has_more; always = true) {
    const std::scoped_lock lock(mutex_);
    has_more = (always || store_.is_sparse()) && store_.compact();
  }
}

void Partition::replace(RowStore&& content) {
  RowStore old = std::move(content);  // freed after the lock is gone
  const std::scoped_lock lock(mutex_);
  follow_snapshots();
  store_.touch_all();
  std::swap(store_, old);
  std::swap(store_.log(), old.log());
  store_.log().replaced();
}

std::size_t Partition::change(const PartitionBlock& delta) {
  const std::scoped_lock lock(mutex_);
  follow_snapshots();
  return store_.apply(delta);
}

}  // namespace embermesh
