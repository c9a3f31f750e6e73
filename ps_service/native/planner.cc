#include "planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "hash.h"
#include "plan_builder.h"
#include "simd.h"

namespace embermesh {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

template <class T>
void check_each_below(const char* name, const std::vector<T>& values, std::size_t bound) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= bound) {
      refuse(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
             ", must be below " + std::to_string(bound));
    }
  }
}

void check_size(const char* name, std::size_t actual, std::size_t expected) {
  if (actual == expected) return;
  refuse(std::string(name) + ": expected " + std::to_string(expected) + " values, got " +
         std::to_string(actual));
}

void check_columns(const PlannerConfig& config) {
  std::vector<std::size_t> order(config.columns.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t f) { return config.columns[f]; });
  std::size_t free = 0;
  for (const std::size_t f : order) {
    const std::size_t end = config.columns[f] + config.feature_dim(f);
    const std::string where = "columns[" + std::to_string(f) + "]: columns " +
                              std::to_string(config.columns[f]) + " to " + std::to_string(end);
    if (end > config.width) refuse(where + " exceed the width " + std::to_string(config.width));
    if (config.columns[f] < free) refuse(where + " overlap those of another feature");
    free = end;
  }
}

void check_offsets(std::span<const std::int32_t> offsets, std::size_t bags, std::size_t keys) {
  if (offsets.size() != bags + 1) {
    refuse("offsets: expected " + std::to_string(bags + 1) +
           " values (features * batch + 1), got " + std::to_string(offsets.size()));
  }
  if (offsets.front() != 0) refuse("offsets[0] is " + std::to_string(offsets.front()) + ", not 0");
  for (std::size_t i = 0; i < bags; ++i) {
    if (offsets[i + 1] < offsets[i]) {
      refuse("offsets[" + std::to_string(i + 1) + "] is " + std::to_string(offsets[i + 1]) +
             ", below the value before it, " + std::to_string(offsets[i]));
    }
  }
  if (static_cast<std::size_t>(offsets.back()) != keys) {
    refuse("offsets: the last is " + std::to_string(offsets.back()) + ", but there are " +
           std::to_string(keys) + " keys");
  }
}

// Whether there is exactly one key to a bag: offsets[i] = i. Without a way out of the loop, so that
// it can be made of vectors.
EMBERMESH_SIMD bool has_single_keys(std::span<const std::int32_t> offsets, std::size_t bags,
                                    std::size_t keys) {
  if (offsets.size() != bags + 1 || bags != keys) return false;
  std::uint32_t different = 0;
  const auto size = static_cast<std::uint32_t>(offsets.size());
  for (std::uint32_t i = 0; i < size; ++i) different |= static_cast<std::uint32_t>(offsets[i]) ^ i;
  return different == 0;
}

std::size_t checked_threads(std::int64_t threads) {
  if (threads < 1 || threads > Planner::kMaxThreads) {
    refuse("threads: must be 1 to " + std::to_string(Planner::kMaxThreads) + ", got " +
           std::to_string(threads));
  }
  return static_cast<std::size_t>(threads);
}

}  // namespace

Combiner parse_combiner(std::string_view name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtN;
  refuse("combiners: unknown combiner '" + std::string(name) + "'; known are: sum, mean, sqrtn");
}

std::size_t PlannerConfig::first_column() const noexcept {
  return columns.empty() ? width : *std::min_element(columns.begin(), columns.end());
}

void PlannerConfig::validate() const {
  constexpr std::size_t kMaxShards = 65536;
  constexpr std::size_t kMaxWidth = std::size_t{1} << 31;
  const std::size_t features = feature_tables.size();
  if (dims.empty()) refuse("dims: there must be at least one table");
  if (std::ranges::find(dims, 0U) != dims.end()) refuse("dims: every dim must be at least 1");
  check_each_below("dims", dims, std::size_t{1} << 20);
  check_each_below("feature_tables", feature_tables, dims.size());
  check_size("columns", columns.size(), features);
  check_size("combiners", combiners.size(), features);
  if (!Partitioning::is_valid(static_cast<std::int64_t>(owners.size()))) {
    refuse("owners: its length must be a power of two from 1 to " + std::to_string(kMaxPartitions) +
           ", got " + std::to_string(owners.size()));
  }
  if (shards < 1 || shards > kMaxShards) {
    refuse("shards: must be 1 to " + std::to_string(kMaxShards) + ", got " +
           std::to_string(shards));
  }
  check_each_below("owners", owners, shards);
  if (width > kMaxWidth) refuse("width: must be at most 2^31, got " + std::to_string(width));
  check_columns(*this);
}

PlannerCore::PlannerCore(PlannerConfig checked, std::size_t threads)
    : config(std::move(checked)),
      features_of(config.dims.size()),
      dim(std::ranges::count(config.dims, config.dims[0]) == std::ssize(config.dims)
              ? config.dims[0]
              : 0),
      team(threads) {
  for (std::uint32_t f = 0; f < config.feature_tables.size(); ++f) {
    features_of[config.feature_tables[f]].push_back(f);
  }
}

std::size_t parts_of_table(std::size_t keys, std::size_t all, std::size_t members) noexcept {
  constexpr std::size_t kLeast = 4096;  // keys of a part
  const std::size_t shares = all == 0 ? 1 : (keys * members + all / 2) / all;
  return std::max<std::size_t>(1, std::min(shares, keys / kLeast));
}

Planner::Planner(PlannerConfig config, std::int64_t threads) {
  config.validate();
  core_ = std::make_shared<PlannerCore>(std::move(config), checked_threads(threads));
}

Plan Planner::plan(std::span<const std::uint64_t> keys, std::span<const std::int32_t> offsets,
                   std::int64_t batch) const {
  const std::size_t features = config().feature_tables.size();
  constexpr std::int64_t kMaxBatch = std::numeric_limits<std::int32_t>::max();
  if (batch < 0 || batch > kMaxBatch) {
    refuse("batch: must be 0 to 2^31 - 1, got " + std::to_string(batch));
  }
  const auto rows = static_cast<std::size_t>(batch);

  Plan plan;
  plan.core_ = core_;
  plan.batch_ = rows;
  if (!has_single_keys(offsets, features * rows, keys.size())) {
    check_offsets(offsets, features * rows, keys.size());
    plan.offsets_.assign(offsets.begin(), offsets.end());
  }
  constexpr std::size_t kWorthATeam = 8192;  // keys; below, waking the others costs more
  const ThreadTeam::Lease team =
      keys.size() >= kWorthATeam ? core_->team.try_take() : ThreadTeam::Lease();
  PlanBuilder(*core_, {keys, offsets, rows}, team, plan).build();
  return plan;
}

}  // namespace embermesh
