#include "sparse_shard.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace embermesh {
namespace {

// Working memory that would cost more to allocate per request than the request itself. Not inlined,
// because GCC would rather look a thread's variable up at each use than hold its address.
[[gnu::noinline]] RequestRouter& thread_router() {
  thread_local RequestRouter router;
  return router;
}

[[gnu::noinline]] std::array<PushScratch, 2>& thread_lanes() {
  thread_local std::array<PushScratch, 2> lanes;
  return lanes;
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

std::size_t checked_threads(std::int64_t threads) {
  if (threads < 1 || threads > SparseShard::kMaxThreads) {
    throw std::invalid_argument("threads: must be 1 to " +
                                std::to_string(SparseShard::kMaxThreads) + ", got " +
                                std::to_string(threads));
  }
  return static_cast<std::size_t>(threads);
}

// Where piece `piece` of `pieces` begins, when all have about as many entries.
std::uint32_t first_partition(const RequestRouter& router, std::uint32_t partitions,
                              std::size_t piece, std::size_t pieces) {
  const std::size_t wanted = router.entries().size() * piece / pieces;
  std::uint32_t low = 0;
  for (std::uint32_t high = partitions; low < high;) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (router.start(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

SparseShard::SparseShard(std::vector<TableConfig> tables, std::int64_t partitions,
                         std::uint64_t seed, std::int64_t threads,
                         std::shared_ptr<StandbyMemory> standby)
    : schema_(std::move(tables), seed),
      partitions_(checked_partitions(partitions)),
      partition_of_(partitions_),
      memory_(schema_, standby ? std::move(standby) : std::make_shared<StandbyMemory>()),
      pulled_(schema_.size()),
      named_(partitions_),
      hot_keys_(schema_.size()),
      team_(checked_threads(threads)) {
  for (std::uint32_t p = 0; p < partitions_; ++p) {
    partition_.push_back(
        std::make_unique<Partition>(schema_, memory_, p, partitions_, snapshots_.now()));
  }
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

Request SparseShard::checked_request(std::span<const std::uint32_t> counts,
                                     std::span<const std::uint64_t> keys) const {
  static_cast<void>(request_floats(counts, keys.size()));
  return {schema_, partition_of_, partitions_, counts, keys};
}

void SparseShard::run(const Request& request, RequestRouter& router, const Task& task) {
  constexpr std::size_t kWorthATeam = 4096;  // keys; below, waking the others costs more
  constexpr std::size_t kPiece = 2048;       // keys: 0.1 ms, within which all are to end
  const ThreadTeam::Lease team =
      request.keys.size() >= kWorthATeam ? team_.try_take() : ThreadTeam::Lease();
  router.route(request, team);
  const std::size_t pieces =
      team.size() == 1 ? 1 : std::max(team.size(), request.keys.size() / kPiece);
  team.run(pieces, [&](std::size_t piece) {
    const std::uint32_t first = first_partition(router, partitions_, piece, pieces);
    const std::uint32_t end =
        piece + 1 == pieces ? partitions_ : first_partition(router, partitions_, piece + 1, pieces);
    for (std::uint32_t p = first; p < end; ++p) {
      const std::size_t keys = router.start(p + 1) - router.start(p);
      if (keys > 0) named_[p].fetch_add(keys, std::memory_order_relaxed);
    }
    if (first < end) task(first, end);
  });
}

template <class Verb>
void SparseShard::run_verb(Verb& verb, const RequestRouter& router, std::uint32_t first,
                           std::uint32_t end) {
  LockWindow locks(partition_, router, first);
  verb.run(UnitSource(router, first, end, Verb::kUnitEntries), locks);
}

void SparseShard::pull(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys,
                       bool insert, float* values, const Moment& moment) {
  const std::size_t floats = request_floats(counts, keys.size());
  RequestRouter& router = thread_router();
  run(checked_request(counts, keys), router, [&](std::uint32_t first, std::uint32_t end) {
    PullVerb verb(context(), moment, insert, values, floats);
    run_verb(verb, router, first, end);
  });
  if (!insert) return;
  for (std::size_t segment = 0; segment < counts.size(); ++segment) {
    pulled_[segment % schema_.size()].fetch_add(counts[segment], std::memory_order_relaxed);
  }
  hot_keys_.sample(counts, keys);
}

PushResult SparseShard::push(std::span<const std::uint32_t> counts,
                             std::span<const std::uint64_t> keys, std::span<const float> grads,
                             const Moment& moment, std::span<const float> shows,
                             std::span<const float> clicks) {
  const std::size_t floats = request_floats(counts, keys.size());
  if (grads.size() != floats) {
    throw std::invalid_argument("grads: the keys have " + std::to_string(floats) + " floats, got " +
                                std::to_string(grads.size()));
  }
  if (shows.size() != clicks.size() || (!shows.empty() && shows.size() != keys.size())) {
    throw std::invalid_argument("shows, clicks: expected none or " + std::to_string(keys.size()) +
                                " of each, got " + std::to_string(shows.size()) + " and " +
                                std::to_string(clicks.size()));
  }
  const PushUsage usage = shows.empty() ? PushUsage() : PushUsage(schema_, counts, shows, clicks);
  RequestRouter& router = thread_router();
  const TrainStep train_step = schema_.train_step(moment.step);
  std::atomic<std::uint64_t> applied = 0;
  std::atomic<std::uint64_t> missing = 0;
  run(checked_request(counts, keys), router, [&](std::uint32_t first, std::uint32_t end) {
    PushVerb verb(context(), moment, usage, grads.data(), train_step, thread_lanes());
    run_verb(verb, router, first, end);
    applied += verb.result().applied;
    missing += verb.result().missing;
  });
  return {applied, missing};
}

std::uint64_t SparseShard::erase(std::span<const std::uint32_t> counts,
                                 std::span<const std::uint64_t> keys) {
  RequestRouter& router = thread_router();
  std::atomic<std::uint64_t> removed = 0;
  run(checked_request(counts, keys), router, [&](std::uint32_t first, std::uint32_t end) {
    EraseVerb verb(context());
    run_verb(verb, router, first, end);
    removed += verb.removed();
    for (std::uint32_t p = first; p < end; ++p) {
      if (router.start(p) < router.start(p + 1)) partition_[p]->compact(false);
    }
  });
  return removed;
}

std::uint64_t SparseShard::evict(std::int64_t partition, std::uint32_t now) {
  check_index("partition", partition, partitions_);
  Partition& content = *partition_[static_cast<std::size_t>(partition)];
  std::uint64_t removed = 0;
  for (Sweep sweep(schema_, partitions_, now); !sweep.done(); sweep.think()) {
    removed += content.evict(sweep);
  }
  if (removed > 0) content.compact(false);
  return removed;
}

std::vector<TableStats> SparseShard::stats() const {
  std::vector<TableStats> tables(schema_.size());
  for (const auto& partition : partition_) partition->add_stats(tables);
  for (std::size_t table = 0; table < tables.size(); ++table) {
    tables[table].pulled = pulled_[table].load(std::memory_order_relaxed);
  }
  return tables;
}

IndexStats SparseShard::index_stats() const {
  constexpr std::uint32_t kSample = 32;
  IndexStats stats;
  // Which partitions a shard serves is not known here, so neighbours are as good as any: those it
  // does not serve are empty and cost nothing.
  for (const auto& partition : partition_) {
    if (stats.sampled == kSample) break;
    partition->add_stats(stats);
  }
  return stats;
}

std::vector<std::uint64_t> SparseShard::partition_keys() const {
  std::vector<std::uint64_t> keys(partitions_);
  for (std::uint32_t p = 0; p < partitions_; ++p) {
    keys[p] = named_[p].load(std::memory_order_relaxed);
  }
  return keys;
}

std::vector<HotKey> SparseShard::hot_keys(std::int64_t table, std::size_t n) const {
  check_index("table", table, schema_.size());
  return hot_keys_.top(static_cast<std::size_t>(table), n);
}

RemovedKeys SparseShard::removed() {
  std::vector<std::vector<std::uint64_t>> of_table(schema_.size());
  RemovedKeys removed;
  for (const auto& partition : partition_) {
    const TombstoneLog::Content content = partition->drain_tombstones();
    removed.is_complete = removed.is_complete && content.is_complete;
    for (const auto& [key, table] : content.removed) of_table[table].push_back(key);
  }
  for (const auto& keys : of_table) {
    removed.counts.push_back(static_cast<std::uint32_t>(keys.size()));
    removed.keys.insert(removed.keys.end(), keys.begin(), keys.end());
  }
  return removed;
}

void SparseShard::compact() {
  for (const auto& partition : partition_) partition->compact(true);
  memory_.trim();
}

std::vector<std::uint64_t> SparseShard::rows() const {
  std::vector<std::uint64_t> rows(schema_.size(), 0);
  for (const auto& partition : partition_) partition->count_rows(rows);
  return rows;
}

std::size_t SparseShard::bytes() const {
  const auto add = [](std::size_t sum, const auto& p) { return sum + p->bytes(); };
  return std::accumulate(partition_.begin(), partition_.end(), std::size_t{0}, add);
}

TableRows SparseShard::export_rows(std::int64_t table) const {
  check_index("table", table, schema_.size());
  TableRows all;
  for (const auto& partition : partition_) {
    const TableRows part = partition->copy_rows(static_cast<std::uint32_t>(table));
    all.keys.insert(all.keys.end(), part.keys.begin(), part.keys.end());
    all.values.insert(all.values.end(), part.values.begin(), part.values.end());
  }
  return sorted_by_key(all, schema_.table(static_cast<std::size_t>(table)).row_floats());
}

std::string SparseShard::dump_partition(std::int64_t partition) const {
  check_index("partition", partition, partitions_);
  const auto p = static_cast<std::uint32_t>(partition);
  return encode_partition(schema_, p, partitions_, partition_[p]->copy_rows());
}

std::size_t SparseShard::load_partition(std::span<const std::byte> data) {
  const PartitionBlock block(data, schema_, partitions_);
  if (block.kind() == BlockKind::kDelta) return partition_[block.partition()]->change(block);
  RowStore store(schema_, memory_, block.partition());
  const std::size_t loaded = store.apply(block);
  partition_[block.partition()]->replace(std::move(store));
  return loaded;
}

std::unique_ptr<Snapshot> SparseShard::begin_snapshot(std::uint64_t id,
                                                      std::optional<std::uint64_t> since) {
  return std::make_unique<Snapshot>(schema_, partition_, snapshots_, id, since);
}

std::string SparseShard::dump_lifecycle(std::int64_t partition, std::uint32_t now) const {
  check_index("partition", partition, partitions_);
  const auto p = static_cast<std::uint32_t>(partition);
  const std::vector<TableRecords> tables = partition_[p]->copy_records(now);
  const bool is_empty = std::ranges::all_of(tables, [](const auto& t) { return t.keys.empty(); });
  return is_empty ? std::string() : encode_lifecycle(schema_, p, partitions_, tables);
}

std::size_t SparseShard::load_lifecycle(std::span<const std::byte> data) {
  const LifecycleBlock block(data, schema_, partitions_);
  return partition_[block.partition()]->set_records(block);
}

void SparseShard::clear() {
  for (const auto& partition : partition_) partition->clear();
}

}  // namespace embermesh
