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

#include "hash.h"

namespace embermesh {

// How the rows of a bag become one vector: their sum, divided by 1, by their number, or by the
// square root of their number. An empty bag gives zeros.
enum class Combiner : std::uint8_t { kSum, kMean, kSqrtN };

// Throws std::invalid_argument for an unknown name.
Combiner parse_combiner(std::string_view name);

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

  // Throws std::invalid_argument naming the member, its value and what is allowed.
  void validate() const;
};

// The plan of one batch. Immutable after Planner::plan, so free to share.
//
// Values and gradients of a plan are one flat array: shard 0's reply, then shard 1's, ...; inside a
// shard the rows of table 0, then of table 1, ...
class Plan {
 public:
  // [U] keys in order of (shard, table), then of first occurrence in the batch.
  [[nodiscard]] const std::vector<std::uint64_t>& unique() const noexcept { return unique_; }
  // [n] place of each key of the batch in unique().
  [[nodiscard]] const std::vector<std::int32_t>& inverse() const noexcept { return inverse_; }
  // [S, T] unique keys per shard and table.
  [[nodiscard]] const std::vector<std::uint32_t>& counts() const noexcept { return counts_; }
  // [S] floats of each shard's reply.
  [[nodiscard]] const std::vector<std::int64_t>& value_floats() const noexcept {
    return value_floats_;
  }
  [[nodiscard]] std::size_t batch() const noexcept { return batch_; }
  [[nodiscard]] std::size_t total_floats() const noexcept { return total_floats_; }
  [[nodiscard]] const PlannerConfig& config() const noexcept { return *config_; }

  // Pools every bag of `values` (total_floats) into `out` (batch, width); writes only the columns
  // of its features.
  void gather(const float* values, float* out) const noexcept;

  // The transpose of gather: from `grads` (batch, width) to `sums` (total_floats), each row the
  // float32 sum over its occurrences in the order of the batch's keys.
  void scatter(const float* grads, float* sums) const noexcept;

  // Puts the rows of some keys into `values` (total_floats), where gather looks for them: `rows`
  // are those of the keys at `positions` of unique(), side by side. Throws std::invalid_argument,
  // before anything is written, for a position there is not or another number of floats.
  void place(std::span<const float> rows, std::span<const std::int32_t> positions,
             float* values) const;

 private:
  friend class Planner;
  friend class RecentKeys;  // plans of one planner share a config

  [[nodiscard]] std::size_t row_floats(std::size_t position) const noexcept {
    const std::size_t next = position + 1;
    return (next < starts_.size() ? starts_[next] : total_floats_) - starts_[position];
  }

  std::shared_ptr<const PlannerConfig> config_;
  std::size_t batch_ = 0;
  std::size_t total_floats_ = 0;
  std::vector<std::uint64_t> unique_;
  std::vector<std::int32_t> inverse_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::int64_t> value_floats_;
  std::vector<std::size_t> starts_;    // [U] first float of each unique row
  std::vector<std::int32_t> offsets_;  // [F*B+1]; empty if every bag has exactly one key
};

// Immutable, so any number of threads may plan at once.
class Planner {
 public:
  explicit Planner(PlannerConfig config);

  [[nodiscard]] const PlannerConfig& config() const noexcept { return *config_; }

  // `keys` is CSR, feature-major: bag (f, b) holds keys[offsets[f*batch+b], offsets[f*batch+b+1]).
  // Throws std::invalid_argument unless `offsets` has F*batch+1 ascending values from 0 to n.
  [[nodiscard]] Plan plan(std::span<const std::uint64_t> keys,
                          std::span<const std::int32_t> offsets, std::int64_t batch) const;

 private:
  // The distinct keys of a batch: tables ascending, in a table by first occurrence.
  struct Distinct {
    // With room for every key of the batch; most of it is never touched.
    std::unique_ptr<std::uint64_t[]> keys;
    std::unique_ptr<std::uint16_t[]> shards;  // owner of each
    std::vector<std::size_t> table_ends;      // [T] one past the table's last

    [[nodiscard]] std::size_t size() const noexcept { return table_ends.back(); }
  };

  // Finds the distinct keys; numbers[i] becomes the place of keys[i] among them.
  [[nodiscard]] Distinct number_keys(std::span<const std::uint64_t> keys,
                                     std::span<const std::int32_t> offsets, std::size_t batch,
                                     std::vector<std::int32_t>& numbers) const;
  // Fills the plan with them in the order of the wire, renumbering plan.inverse_.
  void arrange(Plan& plan, const Distinct& found) const;

  std::shared_ptr<const PlannerConfig> config_;
  Partitioning partition_of_;
  std::vector<std::vector<std::uint32_t>> features_of_;  // [T] ascending
};

}  // namespace embermesh
