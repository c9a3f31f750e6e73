// A sparse shard: the tables' rows, divided into partitions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hash.h"
#include "hot_keys.h"
#include "request_pipeline.h"
#include "request_router.h"
#include "row_memory.h"
#include "shard_stats.h"
#include "snapshot.h"
#include "standby_memory.h"
#include "table_config.h"
#include "thread_team.h"
#include "verbs.h"

namespace embermesh {

// A shard can hold any of the job's partitions; which ones it serves is its caller's affair.
//
// A request names keys by segments: `counts` holds one or more groups of one count per table, and
// `keys` the keys of group 0 / table 0, group 0 / table 1, ... Values and gradients lie in the same
// order, dim floats to a key. Empty requests and duplicate keys are legal, and so is every key.
//
// Thread-safe: any number of threads may call any verbs at once. A verb is atomic per partition,
// not across partitions. Bad arguments throw std::invalid_argument before anything has changed.
class SparseShard {
 public:
  // `partitions`: a power of two <= kMaxPartitions. `threads`: how many work on a large request
  // together, at most kMaxThreads; the result does not depend on it. `standby`: memory for new
  // rows; null: none stands by.
  SparseShard(std::vector<TableConfig> tables, std::int64_t partitions, std::uint64_t seed,
              std::int64_t threads = 1, std::shared_ptr<StandbyMemory> standby = nullptr);
  static constexpr std::int64_t kMaxThreads = 256;

  [[nodiscard]] const Schema& schema() const noexcept { return schema_; }
  [[nodiscard]] std::uint32_t partitions() const noexcept { return partitions_; }

  // Floats that values or gradients of a request have. Throws if `counts` is not a positive number
  // of groups or does not add up to `keys` keys.
  [[nodiscard]] std::size_t request_floats(std::span<const std::uint32_t> counts,
                                           std::size_t keys) const;

  // Writes request_floats floats. With `insert`, missing keys that are admitted get a row, and rows
  // become as young as `moment`; without, nothing changes.
  void pull(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys, bool insert,
            float* values, const Moment& moment = {});

  // Sums the gradients of equal keys in request order, then makes one optimizer step per key.
  // `moment.step` is the number of the step of training, from 1: schedules and stochastic rounding
  // go by it. `shows` and `clicks`: empty, or for each key how many samples had it, and how many of
  // them with a click.
  PushResult push(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys,
                  std::span<const float> grads, const Moment& moment = {},
                  std::span<const float> shows = {}, std::span<const float> clicks = {});

  // Removes the keys; how many there were. Packs partitions that are less than half full then.
  std::uint64_t erase(std::span<const std::uint32_t> counts, std::span<const std::uint64_t> keys);

  // Removes the partition's rows that their table's rules let go, in slices with the lock free in
  // between; how many. `now` is the event time that ages are counted to, in Unix seconds.
  std::uint64_t evict(std::int64_t partition, std::uint32_t now);

  // Per table.
  [[nodiscard]] std::vector<TableStats> stats() const;
  // Of a sample of the partitions.
  [[nodiscard]] IndexStats index_stats() const;
  // Per partition: keys that requests have named since the shard was made, each as often as it was.
  [[nodiscard]] std::vector<std::uint64_t> partition_keys() const;
  // The table's keys that training pulls name most often, most first; from a sample.
  [[nodiscard]] std::vector<HotKey> hot_keys(std::int64_t table, std::size_t n) const;
  // Keys whose rows were removed since the last call. Rows that were replaced by load_partition or
  // clear make the next answer incomplete, and so does the first call.
  [[nodiscard]] RemovedKeys removed();

  // Packs the rows of every partition, a slice at a time under its lock, and gives all free memory
  // back to the operating system.
  void compact();

  // Rows per table, and memory held by index and rows.
  [[nodiscard]] std::vector<std::uint64_t> rows() const;
  [[nodiscard]] std::size_t bytes() const;

  // A copy of the table in ascending order of unsigned keys.
  [[nodiscard]] TableRows export_rows(std::int64_t table) const;

  [[nodiscard]] std::string dump_partition(std::int64_t partition) const;
  // Replaces the partition named in the block, or with a delta block changes it; returns the number
  // of rows in the block. On any error the shard is unchanged, but for a delta on std::bad_alloc.
  std::size_t load_partition(std::span<const std::byte> block);

  // See Snapshot; the shard must outlive it.
  [[nodiscard]] std::unique_ptr<Snapshot> begin_snapshot(std::uint64_t id,
                                                         std::optional<std::uint64_t> since);

  // The partition's row metadata as a block, or nothing if no table that evicts has rows in it.
  // `now` is any time near the tables' events, in Unix seconds.
  [[nodiscard]] std::string dump_lifecycle(std::int64_t partition, std::uint32_t now) const;
  // Sets the metadata of the rows that are there and returns how many; after load_partition. On any
  // error the shard is unchanged.
  std::size_t load_lifecycle(std::span<const std::byte> block);

  void clear();

 private:
  using Task = std::function<void(std::uint32_t first, std::uint32_t end)>;

  [[nodiscard]] Request checked_request(std::span<const std::uint32_t> counts,
                                        std::span<const std::uint64_t> keys) const;
  [[nodiscard]] VerbContext context() const noexcept {
    return {schema_, partition_, partition_of_};
  }
  template <class Verb>
  void run_verb(Verb& verb, const RequestRouter& router, std::uint32_t first, std::uint32_t end);
  // Routes the request, cuts its partitions into pieces for the team and runs the task on each.
  void run(const Request& request, RequestRouter& router, const Task& task);

  const Schema schema_;
  const std::uint32_t partitions_;
  const Partitioning partition_of_;
  SnapshotBook snapshots_;                          // outlives the partitions
  RowMemory memory_;                                // outlives the partitions
  Partitions partition_;                            // never resized after construction
  std::vector<std::atomic<std::uint64_t>> pulled_;  // per table: places of training pulls
  std::vector<std::atomic<std::uint64_t>> named_;   // per partition: see partition_keys
  HotKeySampler hot_keys_;
  ThreadTeam team_;
};

}  // namespace embermesh
