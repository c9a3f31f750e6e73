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
// First all rows are looked at, whatever their table; then tables that are above their limit lose
// the rows of lowest rank, table by table. Between slices the partition may change in any way. What
// is then missed is found by the next sweep; what was used in the meantime is not removed.
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
  // A row above its table's limit, if it is still what it was.
  struct Candidate {
    std::uint64_t rank;
    std::uint64_t hash;
    friend auto operator<=>(const Candidate&, const Candidate&) = default;
  };

  struct Table {
    std::uint64_t most = 0;     // rows it may have
    std::uint64_t fewest = 0;   // rows that stay
    std::uint64_t leaving = 0;  // rows that this slice names
    bool ranks_rows = false;    // it had too many when the sweep began
    std::uint64_t excess = 0;   // rows to trim
    std::vector<Candidate> candidates;
  };

  void begin(const RowStore& store);
  void scan(RowStore& store);
  void look_at(const RowStore& store, Slot slot);
  void trim(const RowStore& store);
  [[nodiscard]] const EvictionPolicy& policy(std::size_t table) const noexcept {
    return *schema_->table(table).rows.eviction;
  }

  const Schema* schema_;
  std::uint32_t partitions_;
  std::uint32_t now_;
  std::vector<Table> tables_;
  bool reads_norms_ = false;  // some table goes by them
  bool is_begun_ = false;
  bool is_scanned_ = false;
  std::uint32_t table_ = 0;     // that is being trimmed
  std::size_t buckets_ = 0;     // of the index, at the last slice
  std::size_t bucket_ = 0;      // the scan is through with those from here on
  std::size_t trimmed_ = 0;     // candidates of table_ looked at
  std::vector<float> widened_;  // weights of one row
  std::vector<Victim> victims_;
};

}  // namespace embermesh
