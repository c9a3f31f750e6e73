// One walk over a partition that finds the rows to evict, in slices short enough to be made between
// requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "eviction.h"
#include "row_store.h"
#include "table_config.h"

namespace embermesh {

// To be driven like this, by one thread:
//
//   while (!sweep.done()) {
//     { lock the partition; for (victim : sweep.slice(store)) remove it; }
//     sweep.think();
//   }
//
// Between slices the partition may change in any way. What is then missed is found by the next
// sweep; what was used in the meantime is not removed.
class Sweep {
 public:
  struct Victim {
    std::uint64_t hash;
    std::uint32_t table;
    Reason reason;
  };

  // `schema` must outlive it. `now` is the event time that ages are counted to.
  Sweep(const Schema& schema, std::uint32_t partitions, std::uint32_t now);

  [[nodiscard]] bool done() const noexcept { return table_ == schema_->size(); }

  // With the partition's lock held: looks at some rows (kRows at most) and names those to remove,
  // each of which is in `store` now. Rows that were never seen are stamped with `now`.
  // Valid until the next call. Throws std::bad_alloc, and then the sweep is over.
  [[nodiscard]] std::span<const Victim> slice(RowStore& store);

  // Without the lock: what the next slice needs.
  void think();

  static constexpr std::size_t kRows = 2048;  // per slice; an eighth of it where norms are read

 private:
  // A row above the table's limit, if it is still what it was.
  struct Candidate {
    std::uint64_t rank;
    std::uint64_t hash;
    friend auto operator<=>(const Candidate&, const Candidate&) = default;
  };

  void scan(RowStore& store, const EvictionPolicy& policy);
  void trim(RowStore& store, const EvictionPolicy& policy);
  void begin_table(const RowStore& store, const EvictionPolicy& policy);
  void next_table() noexcept;

  const Schema* schema_;
  std::uint32_t partitions_;
  std::uint32_t now_;
  std::uint32_t table_ = 0;
  bool is_begun_ = false;     // the present table
  bool is_scanned_ = false;   // the present table
  bool ranks_rows_ = false;   // it has too many
  std::size_t buckets_ = 0;   // of the index, at the last slice
  std::size_t bucket_ = 0;    // the scan is through with those from here on
  std::uint64_t excess_ = 0;  // rows to trim
  std::size_t trimmed_ = 0;   // candidates looked at
  std::vector<Candidate> candidates_;
  std::vector<float> widened_;  // weights of one row
  std::vector<Victim> victims_;
};

}  // namespace embermesh
