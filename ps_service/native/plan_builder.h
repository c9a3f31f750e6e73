// How a plan is made: distinct keys, their order on the wire, and the place of every key of the
// batch among them, by one thread or several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hash.h"
#include "planner.h"
#include "thread_team.h"
#include "unique_set.h"

namespace embermesh {

// The keys of a batch as they came; see Planner::plan.
struct PlanInput {
  std::span<const std::uint64_t> keys;
  std::span<const std::int32_t> offsets;
  std::size_t batch;
};

// One batch on its way to its plan. The keys are cut into pieces, which one thread each numbers by
// itself: the whole keys of a table, because keys of different tables are never equal, or parts of
// them where a table has so many that the team would wait for it. Every step is a pure function of
// the pieces before it, and the order of the outcome that of first occurrence: it does not depend
// on the cut.
//
// Working memory is cut like the keys: a piece of n keys has n places, of which it uses as many as
// it has distinct keys.
class PlanBuilder {
 public:
  // All arguments must outlive the builder; offsets are checked, and `plan` knows its core.
  PlanBuilder(const PlannerCore& core, const PlanInput& input, const ThreadTeam::Lease& team,
              Plan& plan);

  // Fills the plan. Throws std::bad_alloc.
  void build();

 private:
  struct Piece {
    std::uint32_t table;
    std::uint32_t part;    // number of it among the table's pieces
    bool is_whole;         // the table has no other
    std::size_t from;      // its first key among the table's keys
    std::size_t keys;      // how many it has
    std::size_t base;      // its first place in the working memory
    std::size_t set;       // among sets_; of a part only
    std::size_t size = 0;  // distinct keys
  };

  void cut();
  // Calls visit(first, last) for the runs of neighbours in the batch that make up the piece.
  template <class Visit>
  void for_each_run(const Piece& piece, const Visit& visit) const;
  // Finds the piece's distinct keys; in plan.inverse_ each of its keys gets its number among them.
  void number(Piece& piece) const;
  // Finds which of the distinct keys [first, last) of a part are in parts before it, and counts
  // those that are not.
  void find_twins(const Piece& piece, std::size_t first, std::size_t last) const;
  void find_all_twins() const;
  // Counts of the plan, and the first place of every piece in each of its segments.
  void lay_out() const;
  void list_starts(std::size_t keys) const;
  // Puts the distinct keys where they belong in the plan.
  void place(const Piece& piece) const;
  // Turns numbers among the piece's keys into places in the plan.
  void renumber(const Piece& piece) const;

  // Next place of the piece's keys of a shard; before lay_out(), how many it has.
  [[nodiscard]] std::uint32_t* places(const Piece& piece) const noexcept {
    return places_.get() + static_cast<std::size_t>(&piece - pieces_.data()) * places_apart_;
  }

  const PlannerCore& core_;
  const PlannerConfig& config_;
  const PlanInput input_;
  const ThreadTeam::Lease& team_;
  Plan& plan_;
  const Partitioning partition_of_;
  std::vector<Piece> pieces_;  // tables ascending, in a table from its first key to its last
  std::span<UniqueSet> sets_;  // of parts
  std::uint64_t* keys_;        // distinct keys of each piece
  std::uint16_t* shards_;      // owner of each
  // Its place in the plan. Between find_twins and renumber, that of a key that an earlier part has
  // too is -1 - (place of that in the working memory).
  std::int32_t* moved_;
  // From one piece's to the next one's: a cache line is left free in between, because members count
  // at every key and would take it from each other.
  const std::size_t places_apart_;
  std::unique_ptr<std::uint32_t[]> places_;  // [piece][shard]
};

}  // namespace embermesh
