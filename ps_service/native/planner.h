// From the keys of a mini-batch to requests per shard and back: unique, inverse and partition in
// one pass, then gather of pulled values into the step's input and scatter of its gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "array.h"
#include "thread_team.h"

namespace embermesh {

// How the rows of a bag become one vector: their sum, divided by 1, by their number, or by the
// square root of their number. An empty bag gives zeros.
enum class Combiner : std::uint8_t { kSum, kMean, kSqrtN };

// Throws std::invalid_argument for an unknown name.
Combiner parse_combiner(std::string_view name);

// What each row counts in a bag of so many keys.
[[nodiscard]] float bag_scale(Combiner combiner, std::size_t keys) noexcept;

struct RowShare;  // plan_matrix.cc

// A matrix in pieces: blocks[i] holds its rows [i * rows, (i + 1) * rows), the last perhaps fewer.
struct MatrixBlocks {
  std::span<const float* const> blocks;
  std::size_t rows;
};

// What stays the same from batch to batch.
struct PlannerConfig {
  std::vector<std::uint32_t> feature_tables;  // [F] table of each feature
  std::vector<std::uint32_t> dims;            // [T]
  std::vector<std::uint32_t> columns;         // [F] first output column of each feature
  std::vector<Combiner> combiners;            // [F]
  std::vector<std::uint16_t> owners;          // [P] shard that owns each partition
  std::uint32_t shards = 0;
  std::size_t width = 0;  // columns of the gathered matrix

  [[nodiscard]] std::size_t feature_dim(std::size_t f) const { return dims[feature_tables[f]]; }

  // Of the gathered matrix, the first that belongs to a feature.
  [[nodiscard]] std::size_t first_column() const noexcept;

  // Throws std::invalid_argument naming the member, its value and what is allowed.
  void validate() const;
};

// What a planner and its plans share.
struct PlannerCore {
  PlannerCore(PlannerConfig checked, std::size_t threads);

  const PlannerConfig config;
  std::vector<std::vector<std::uint32_t>> features_of;  // [T] ascending
  std::size_t dim;                                      // of all tables; 0: they differ
  ThreadTeam team;
};

// How many parts to cut the keys of a table into so that `members` have about as much to do each,
// when there are `all` keys in the batch; 1 if there is no need, or parts would be too small.
[[nodiscard]] std::size_t parts_of_table(std::size_t keys, std::size_t all,
                                         std::size_t members) noexcept;

// The plan of one batch. Immutable after Planner::plan, so free to share.
//
// Values and gradients of a plan are one flat array: shard 0's reply, then shard 1's, ...; inside a
// shard the rows of table 0, then of table 1, ...
class Plan {
 public:
  // [U] keys in order of (shard, table), then of first occurrence in the batch.
  [[nodiscard]] std::span<const std::uint64_t> unique() const noexcept { return unique_.items(); }
  // [n] place of each key of the batch in unique().
  [[nodiscard]] std::span<const std::int32_t> inverse() const noexcept { return inverse_.items(); }
  // [S, T] unique keys per shard and table.
  [[nodiscard]] const std::vector<std::uint32_t>& counts() const noexcept { return counts_; }
  // [S] floats of each shard's reply.
  [[nodiscard]] const std::vector<std::int64_t>& value_floats() const noexcept {
    return value_floats_;
  }
  [[nodiscard]] std::size_t batch() const noexcept { return batch_; }
  [[nodiscard]] std::size_t total_floats() const noexcept { return total_floats_; }
  [[nodiscard]] const PlannerConfig& config() const noexcept { return core_->config; }
  // Keys of all bags of a feature.
  [[nodiscard]] std::size_t keys_of(std::size_t feature) const noexcept;

  // Pools every bag of `values` (total_floats) into `out` (batch, width); writes only the columns
  // of its features. Throws std::bad_alloc.
  void gather(const float* values, float* out) const;

  // The transpose of gather: from `grads` (batch, width) to `sums` (total_floats), each row the
  // float32 sum over its occurrences in the order of the batch's keys. Throws std::bad_alloc.
  void scatter(const MatrixBlocks& grads, float* sums) const;
  void scatter(const float* grads, float* sums) const { scatter({{&grads, 1}, batch_}, sums); }

  // Puts the rows of some keys into `values` (total_floats), where gather looks for them: `rows`
  // are those of the keys at `positions` of unique(), side by side. Throws std::invalid_argument,
  // before anything is written, for a position there is not or another number of floats.
  void place(std::span<const float> rows, std::span<const std::int32_t> positions,
             float* values) const;

 private:
  friend class Planner;
  friend class PlanBuilder;
  friend class Projection;
  friend class RecentKeys;  // plans of one planner share its core

  [[nodiscard]] std::size_t start(std::size_t position) const noexcept {
    return core_->dim != 0 ? position * core_->dim : starts_.data()[position];
  }
  [[nodiscard]] std::size_t row_floats(std::size_t position) const noexcept {
    const std::size_t next = position + 1;
    return (next < unique_.size() ? start(next) : total_floats_) - start(position);
  }
  // For as much work as the keys make.
  [[nodiscard]] ThreadTeam::Lease take_team() const;
  // The rows of the matrix [first, first + rows), which begins at `out`.
  void gather_rows(std::size_t first, std::size_t rows, const float* values,
                   float* out) const noexcept;
  // Of all features of the table, for the rows of a share.
  void scatter_table(std::size_t table, const RowShare& share, const MatrixBlocks& grads,
                     float* sums) const noexcept;
  // Of feature `f`, for the rows of the batch from `first` that are in a block.
  void scatter_feature(std::size_t f, const RowShare& share, std::size_t first, std::size_t rows,
                       const float* block, float* sums) const noexcept;

  std::shared_ptr<PlannerCore> core_;
  std::size_t batch_ = 0;
  std::size_t total_floats_ = 0;
  Array<std::uint64_t> unique_;
  Array<std::int32_t> inverse_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::int64_t> value_floats_;
  Array<std::size_t> starts_;          // [U] the first float of each unique row, where dims differ
  std::vector<std::int32_t> offsets_;  // [F*B+1]; empty if every bag has exactly one key
};

// Immutable but for its team, so any number of threads may plan at once.
class Planner {
 public:
  // `threads`: how many make a large plan together, gather or scatter, at most kMaxThreads; no
  // result depends on it. Throws std::invalid_argument, and std::system_error if threads cannot be
  // had.
  explicit Planner(PlannerConfig config, std::int64_t threads = 1);
  static constexpr std::int64_t kMaxThreads = 256;

  [[nodiscard]] const PlannerConfig& config() const noexcept { return core_->config; }

  // `keys` is CSR, feature-major: bag (f, b) holds keys[offsets[f*batch+b], offsets[f*batch+b+1]).
  // Throws std::invalid_argument unless `offsets` has F*batch+1 ascending values from 0 to n.
  [[nodiscard]] Plan plan(std::span<const std::uint64_t> keys,
                          std::span<const std::int32_t> offsets, std::int64_t batch) const;

 private:
  std::shared_ptr<PlannerCore> core_;
};

}  // namespace embermesh
