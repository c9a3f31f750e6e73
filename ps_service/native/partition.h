// One partition: its rows and the lock that guards them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "row_store.h"
#include "simd.h"
#include "table_config.h"

namespace embermesh {

// One key of a request, on its way to its partition.
struct Entry {
  std::uint64_t key;
  std::uint64_t offset;  // first float of this key's values or gradient within the request
  std::uint32_t hash;    // low half of row_hash
  std::uint32_t table;
};

// What became of the positions of a push: applied + missing = number of keys.
struct PushResult {
  std::uint64_t applied = 0;  // gradient used (alone, or summed with the key's others)
  std::uint64_t missing = 0;  // key not in the table: its gradient was skipped
};

// Working memory of a push, reused from call to call by one thread.
class PushScratch {
 private:
  friend class Partition;

  struct Seen {
    RowNumber row;
    std::uint32_t round;
    std::uint32_t update;  // place in `updates`
  };

  // Starts a round for up to `entries` rows.
  void begin(std::size_t entries);
  // The cell of `row` in this round; a fresh one has another round number.
  Seen& seen(RowNumber row) noexcept;
  // Adds a further gradient of the row of `updates[update]`.
  void add_to(std::size_t update, const float* grad, std::size_t dim, std::size_t sum_floats);

  std::vector<Seen> seen_;
  std::uint32_t round_ = 0;
  std::vector<RowNumber> rows_;
  std::vector<RowUpdate> updates_;
  std::vector<float> sums_;
  std::size_t sums_used_ = 0;
};

// Thread-safe. Each verb holds the lock for its whole group of keys, so no reader ever sees a row
// half written, and no pointer into a row outlives the lock. Never takes another partition's lock.
class alignas(kCacheLine) Partition {
 public:
  Partition(const Schema& schema, SlabPool& pool)
      : schema_(&schema), pool_(&pool), store_(schema, pool) {}

  // Writes the weights of each entry to values + entry.offset. A missing key gets its initial
  // weights, and with `insert` also a row. Throws std::bad_alloc (only with `insert`).
  void pull(std::span<const Entry> entries, bool insert, float* values);

  // Applies the gradients at grads + entry.offset. The gradients of equal keys are summed in the
  // order of `entries`, in float32, and applied once.
  PushResult push(std::span<const Entry> entries, const float* grads, PushScratch& scratch);

  // Adds the rows per table to `rows`.
  void count_rows(std::span<std::uint64_t> rows) const;
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] TableRows copy_rows(std::uint32_t table) const;
  [[nodiscard]] std::vector<TableRows> copy_rows() const;

  // Replaces the content.
  void replace(RowStore&& content);
  void clear() { replace(RowStore(*schema_, *pool_)); }

 private:
  // Floats of all gradients of `entries`: what their sums can need at most.
  [[nodiscard]] std::size_t sum_floats(std::span<const Entry> entries) const noexcept;
  void apply(std::span<const RowUpdate> updates) const noexcept;

  const Schema* schema_;
  SlabPool* pool_;
  mutable std::mutex mutex_;
  RowStore store_;
};

}  // namespace embermesh
