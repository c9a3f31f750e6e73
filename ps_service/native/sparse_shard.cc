#include "sparse_shard.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "request_router.h"

namespace embermesh {
namespace {

// Working memory that would cost more to allocate per request than the request itself.
RequestRouter& thread_router() {
  thread_local RequestRouter router;
  return router;
}

std::uint32_t checked_partitions(std::int64_t partitions) {
  if (!Partitioning::is_valid(partitions)) {
    throw std::invalid_argument("partitions: must be a power of two from 1 to " +
                                std::to_string(kMaxPartitions) + ", got " +
                                std::to_string(partitions));
  }
  return static_cast<std::uint32_t>(partitions);
}

void check_index(const char* name, std::int64_t value, std::size_t size) {
  if (value < 0 || static_cast<std::uint64_t>(value) >= size) {
    throw std::invalid_argument(std::string(name) + ": must be 0 to " + std::to_string(size - 1) +
                                ", got " + std::to_string(value));
  }
}

// Small, because every partition that has a row holds at least one.
std::size_t slab_bytes_for(const Schema& schema) {
  constexpr std::size_t kMinSlab = std::size_t{16} << 10;
  return std::max(kMinSlab, std::bit_ceil(4 * schema.widest_row_bytes()));
}

}  // namespace

SparseShard::SparseShard(std::vector<TableConfig> tables, std::int64_t partitions,
                         std::uint64_t seed)
    : schema_(std::move(tables), seed),
      partitions_(checked_partitions(partitions)),
      partition_of_(partitions_),
      pool_(slab_bytes_for(schema_)) {
  for (std::uint32_t p = 0; p < partitions_; ++p) partition_.emplace_back(schema_, pool_);
}

std::size_t SparseShard::request_floats(std::span<const std::uint32_t> counts,
                                        std::size_t keys) const {
  if (counts.empty() || counts.size() % schema_.size() != 0) {
    throw std::invalid_argument("counts: must hold a positive multiple of " +
                                std::to_string(schema_.size()) + " counts (one per table), got " +
                                std::to_string(counts.size()));
  }
  std::uint64_t total = 0;
  std::uint64_t floats = 0;
  for (std::size_t segment = 0; segment < counts.size(); ++segment) {
    total += counts[segment];
    floats += std::uint64_t{counts[segment]} * schema_.dim(segment % schema_.size());
  }
  if (total != keys) {
    throw std::invalid_argument("keys: counts add up to " + std::to_string(total) + " keys, got " +
                                std::to_string(keys));
  }
  if (keys > std::numeric_limits<std::uint32_t>::max() / 4) {
    throw std::invalid_argument("keys: a request has fewer than 2^30 keys, got " +
                                std::to_string(keys));
  }
  return floats;
}

void SparseShard::pull(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys,
                       bool insert, float* values) {
  static_cast<void>(request_floats(counts, keys.size()));
  RequestRouter& router = thread_router();
  router.route(schema_, partition_of_, partitions_, counts, keys);
  for (std::uint32_t p = 0; p < partitions_; ++p) {
    const auto entries = router.entries(p);
    if (!entries.empty()) partition_[p].pull(entries, insert, values);
  }
}

PushResult SparseShard::push(std::span<const std::uint32_t> counts,
                             std::span<const std::uint64_t> keys, std::span<const float> grads) {
  const std::size_t floats = request_floats(counts, keys.size());
  if (grads.size() != floats) {
    throw std::invalid_argument("grads: the keys have " + std::to_string(floats) + " floats, got " +
                                std::to_string(grads.size()));
  }
  RequestRouter& router = thread_router();
  router.route(schema_, partition_of_, partitions_, counts, keys);
  PushResult total;
  for (std::uint32_t p = 0; p < partitions_; ++p) {
    const auto entries = router.entries(p);
    if (entries.empty()) continue;
    const PushResult part = partition_[p].push(entries, grads.data(), router.push_scratch);
    total.applied += part.applied;
    total.missing += part.missing;
  }
  return total;
}

std::vector<std::uint64_t> SparseShard::rows() const {
  std::vector<std::uint64_t> rows(schema_.size(), 0);
  for (const Partition& partition : partition_) partition.count_rows(rows);
  return rows;
}

std::size_t SparseShard::bytes() const {
  const auto add = [](std::size_t sum, const Partition& p) { return sum + p.bytes(); };
  return std::accumulate(partition_.begin(), partition_.end(), std::size_t{0}, add);
}

TableRows SparseShard::export_rows(std::int64_t table) const {
  check_index("table", table, schema_.size());
  TableRows all;
  for (const Partition& partition : partition_) {
    const TableRows part = partition.copy_rows(static_cast<std::uint32_t>(table));
    all.keys.insert(all.keys.end(), part.keys.begin(), part.keys.end());
    all.values.insert(all.values.end(), part.values.begin(), part.values.end());
  }
  return sorted_by_key(all, schema_.table(static_cast<std::size_t>(table)).row_floats());
}

std::string SparseShard::dump_partition(std::int64_t partition) const {
  check_index("partition", partition, partitions_);
  const auto p = static_cast<std::uint32_t>(partition);
  return encode_partition(schema_, p, partitions_, partition_[p].copy_rows());
}

std::size_t SparseShard::load_partition(std::span<const std::byte> data) {
  const PartitionBlock block(data, schema_, partitions_);
  RowStore store(schema_, pool_);
  std::size_t loaded = 0;
  for (std::uint32_t table = 0; table < schema_.size(); ++table) {
    for (std::size_t i = 0; i < block.rows(table); ++i, ++loaded) {
      const std::uint64_t key = block.key(table, i);
      const auto hash = static_cast<std::uint32_t>(row_hash(schema_.salt(table), key));
      block.copy_row(table, i, store.row(store.add(table, key, hash)));
    }
  }
  partition_[block.partition()].replace(std::move(store));
  return loaded;
}

void SparseShard::clear() {
  for (Partition& partition : partition_) partition.clear();
}

}  // namespace embermesh
