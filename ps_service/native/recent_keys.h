// Which of a trainer's steps had each key last: what tells apart the rows of a coming batch that
// can be read at once from those that a step before it still changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "huge_array.h"
#include "planner.h"

namespace embermesh {

// Distinct keys of a plan as requests, in the plan's order.
struct KeyGroup {
  std::uint64_t step = 0;               // the step that had these keys last; 0: none that counts
  std::vector<std::int32_t> positions;  // of the keys in the plan's unique(), ascending
  std::vector<std::uint64_t> keys;
  std::vector<std::uint32_t> counts;  // [S, T] of the keys
};

// Remembers the keys of the last steps. A batch costs one look at a cell for each of its distinct
// keys, however many steps are looked back at. Memory is 16 bytes for each of 4 to 8 times the keys
// of these steps, on huge pages where there are many, and once more for those of one table.
class RecentKeys {
 public:
  static constexpr std::uint64_t kMaxSteps = 4096;  // that one call may look back at

  // The groups of the keys of `plan`, that of step `step`, by the last of the steps from `oldest`
  // to `step` - 1 that had them too: first that of none of them, then step by step those with keys.
  // From now on step `step` has these keys; what came before `oldest` is forgotten.
  //
  // Throws std::invalid_argument unless `step` grows and `oldest` doesn't fall from call to call,
  // 1 <= oldest <= step, the two are at most kMaxSteps apart, and all plans are of one planner; and
  // std::bad_alloc. Thread-safe.
  std::vector<KeyGroup> split(const Plan& plan, std::uint64_t step, std::uint64_t oldest);

  // Cells there are; each takes 16 bytes.
  [[nodiscard]] std::size_t cells();

 private:
  struct Cell {
    std::uint64_t key;
    std::uint64_t step;  // 0: free
  };

  // The keys of one table: open addressing, at most half full.
  struct Table {
    HugeArray<Cell> cells;
    std::size_t used = 0;

    [[nodiscard]] std::size_t mask() const noexcept { return cells.size() - 1; }
    // The cell of `key`: its own, or the free one where it belongs.
    [[nodiscard]] Cell& cell_of(std::uint64_t key, std::uint64_t hash) noexcept;
  };

  void check(const Plan& plan, std::uint64_t step, std::uint64_t oldest) const;
  // Room for `more` keys; where there is none, keys of steps before `oldest` are dropped. The cells
  // stay where they are if there are as many as needed: new ones every few steps would be pages to
  // clear and to take from all cores' translations.
  void make_room(Table& table, std::size_t more, std::uint64_t salt, std::uint64_t oldest);
  // Enters the keys of one table and shard. groups[i] becomes the number of the group of keys[i]: 0
  // for none, else 1 + the step's distance from `oldest`.
  static void enter(Table& table, std::uint64_t salt, std::span<const std::uint64_t> keys,
                    std::uint64_t step, std::uint64_t oldest, std::uint16_t* groups) noexcept;

  std::mutex mutex_;
  std::shared_ptr<const PlannerCore> core_;  // of all plans, once there was one
  std::vector<Table> tables_;
  std::vector<Cell> moving_;  // from one table's cells to its next ones; memory to be used again
  std::uint64_t last_step_ = 0;
  std::uint64_t oldest_ = 1;
};

}  // namespace embermesh
