#include "planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "simd.h"
#include "unique_set.h"

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

float bag_scale(Combiner combiner, std::size_t keys) noexcept {
  const auto count = static_cast<float>(keys);
  if (keys < 2) return 1.0F;  // also an empty bag, whose sum is zero
  if (combiner == Combiner::kMean) return 1.0F / count;
  if (combiner == Combiner::kSqrtN) return 1.0F / std::sqrt(count);
  return 1.0F;
}

// Rows and cells of a set are in the second-level cache at best: ask for each a few keys early.
constexpr std::size_t kAhead = 16;

// Finding a variable of a thread costs a call, in a shared library, and GCC would rather make that
// call for every key than hold the address.
[[gnu::noinline]] UniqueSet& thread_set() {
  thread_local UniqueSet set;
  return set;
}

}  // namespace

Combiner parse_combiner(std::string_view name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtN;
  refuse("combiners: unknown combiner '" + std::string(name) + "'; known are: sum, mean, sqrtn");
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

Planner::Planner(PlannerConfig config)
    : config_((config.validate(), std::make_shared<const PlannerConfig>(std::move(config)))),
      partition_of_(static_cast<std::uint32_t>(config_->owners.size())),
      features_of_(config_->dims.size()) {
  for (std::uint32_t f = 0; f < config_->feature_tables.size(); ++f) {
    features_of_[config_->feature_tables[f]].push_back(f);
  }
}

Plan Planner::plan(std::span<const std::uint64_t> keys, std::span<const std::int32_t> offsets,
                   std::int64_t batch) const {
  const std::size_t features = config_->feature_tables.size();
  constexpr std::int64_t kMaxBatch = std::numeric_limits<std::int32_t>::max();
  if (batch < 0 || batch > kMaxBatch) {
    refuse("batch: must be 0 to 2^31 - 1, got " + std::to_string(batch));
  }
  const auto rows = static_cast<std::size_t>(batch);

  Plan plan;
  plan.config_ = config_;
  plan.batch_ = rows;
  if (!has_single_keys(offsets, features * rows, keys.size())) {
    check_offsets(offsets, features * rows, keys.size());
    plan.offsets_.assign(offsets.begin(), offsets.end());
  }
  plan.inverse_.resize(keys.size());

  arrange(plan, number_keys(keys, offsets, rows, plan.inverse_));
  return plan;
}

// Table by table, because keys of different tables are never equal: the set stays in the cache.
Planner::Distinct Planner::number_keys(std::span<const std::uint64_t> keys,
                                       std::span<const std::int32_t> offsets, std::size_t batch,
                                       std::vector<std::int32_t>& numbers) const {
  UniqueSet& set = thread_set();
  Distinct found;
  found.keys = std::make_unique_for_overwrite<std::uint64_t[]>(keys.size());
  found.shards = std::make_unique_for_overwrite<std::uint16_t[]>(keys.size());
  std::size_t size = 0;
  const auto first_key = [&](std::size_t f) {
    return static_cast<std::size_t>(offsets[f * batch]);
  };
  for (std::uint32_t table = 0; table < features_of_.size(); ++table) {
    const std::uint64_t salt = table_salt(table);
    std::uint64_t* const table_keys = found.keys.get() + size;
    std::uint16_t* const table_shards = found.shards.get() + size;
    std::size_t most = 0;
    for (const std::uint32_t f : features_of_[table]) most += first_key(f + 1) - first_key(f);
    set.begin(most);
    for (const std::uint32_t f : features_of_[table]) {
      for (std::size_t i = first_key(f), end = first_key(f + 1); i < end;) {
        std::array<std::uint64_t, kAhead> hashes;
        const std::size_t block = std::min(kAhead, end - i);
        for (std::size_t j = 0; j < block; ++j) {
          hashes[j] = row_hash(salt, keys[i + j]);
          set.prefetch(hashes[j]);
        }
        for (std::size_t j = 0; j < block; ++j, ++i) {
          const std::uint32_t known = set.size();
          const std::uint32_t number = set.number_of(keys[i], hashes[j], table_keys);
          if (number == known) table_shards[number] = config_->owners[partition_of_(hashes[j])];
          numbers[i] = static_cast<std::int32_t>(size + number);
        }
      }
    }
    size += set.size();
    found.table_ends.push_back(size);
  }
  return found;
}

// A stable counting sort from (table, first occurrence) to (shard, table, first occurrence).
void Planner::arrange(Plan& plan, const Distinct& found) const {
  const std::size_t tables = config_->dims.size();
  plan.counts_.assign(config_->shards * tables, 0);
  for (std::size_t table = 0, i = 0; table < tables; ++table) {
    for (; i < found.table_ends[table]; ++i) ++plan.counts_[found.shards[i] * tables + table];
  }
  std::vector<std::size_t> place(plan.counts_.size());  // next place in unique of each segment
  std::vector<std::size_t> start(plan.counts_.size());  // and its first float
  plan.value_floats_.assign(config_->shards, 0);
  std::size_t places = 0;
  for (std::size_t segment = 0; segment < plan.counts_.size(); ++segment) {
    const std::size_t floats = plan.counts_[segment] * std::size_t{config_->dims[segment % tables]};
    place[segment] = places;
    start[segment] = plan.total_floats_;
    places += plan.counts_[segment];
    plan.total_floats_ += floats;
    plan.value_floats_[segment / tables] += static_cast<std::int64_t>(floats);
  }
  plan.unique_.resize(found.size());
  plan.starts_.resize(found.size());
  std::vector<std::int32_t> moved(found.size());
  for (std::size_t table = 0, i = 0; table < tables; ++table) {
    for (; i < found.table_ends[table]; ++i) {
      const std::size_t segment = found.shards[i] * tables + table;
      const std::size_t to = place[segment]++;
      plan.unique_[to] = found.keys[i];
      plan.starts_[to] = start[segment];
      start[segment] += config_->dims[table];
      moved[i] = static_cast<std::int32_t>(to);
    }
  }
  for (std::int32_t& number : plan.inverse_) number = moved[static_cast<std::size_t>(number)];
}

// One feature of some rows of the batch, as the kernels below see it. Key j of the slice has its
// row at values + starts[inverse[j]]; bag b is row b of `matrix`, which begins at the feature's
// first column.
struct FeatureSlice {
  const std::size_t* starts;
  const std::int32_t* inverse;
  std::size_t dim;
  std::size_t width;  // floats from one row of the matrix to the next
};

EMBERMESH_SIMD void gather_keys(const FeatureSlice& slice, std::size_t rows,
                                const float* __restrict values, float* __restrict out) noexcept {
  for (std::size_t b = 0; b < rows; ++b, out += slice.width) {
    if (b + kAhead < rows) {
      prefetch_row<Cache::kFirst>(values + slice.starts[slice.inverse[b + kAhead]],
                                  slice.dim * sizeof(float));
    }
    const float* row = values + slice.starts[slice.inverse[b]];
    for (std::size_t i = 0; i < slice.dim; ++i) out[i] = row[i];
  }
}

EMBERMESH_SIMD void scatter_keys(const FeatureSlice& slice, std::size_t rows,
                                 const float* __restrict grads, float* __restrict sums) noexcept {
  for (std::size_t b = 0; b < rows; ++b, grads += slice.width) {
    if (b + kAhead < rows) {
      prefetch_row<Cache::kFirst>(grads + kAhead * slice.width, slice.dim * sizeof(float));
      prefetch_row<Cache::kFirst>(sums + slice.starts[slice.inverse[b + kAhead]],
                                  slice.dim * sizeof(float));
    }
    float* row = sums + slice.starts[slice.inverse[b]];
    for (std::size_t i = 0; i < slice.dim; ++i) row[i] += grads[i];
  }
}

EMBERMESH_SIMD void gather_bag(const FeatureSlice& slice, std::size_t keys, float scale,
                               const float* __restrict values, float* __restrict out) noexcept {
  std::fill_n(out, slice.dim, 0.0F);
  for (std::size_t j = 0; j < keys; ++j) {
    const float* row = values + slice.starts[slice.inverse[j]];
    for (std::size_t i = 0; i < slice.dim; ++i) out[i] += row[i];
  }
  if (scale == 1.0F) return;
  for (std::size_t i = 0; i < slice.dim; ++i) out[i] *= scale;
}

EMBERMESH_SIMD void scatter_bag(const FeatureSlice& slice, std::size_t keys, float scale,
                                const float* __restrict grads, float* __restrict sums) noexcept {
  for (std::size_t j = 0; j < keys; ++j) {
    float* row = sums + slice.starts[slice.inverse[j]];
    for (std::size_t i = 0; i < slice.dim; ++i) row[i] += scale * grads[i];
  }
}

void Plan::gather(const float* values, float* out) const noexcept {
  constexpr std::size_t kBlock = 128;  // rows of the output that stay in the cache for all features
  const PlannerConfig& config = *config_;
  for (std::size_t first = 0; first < batch_; first += kBlock) {
    const std::size_t rows = std::min(kBlock, batch_ - first);
    for (std::size_t f = 0; f < config.feature_tables.size(); ++f) {
      FeatureSlice slice{starts_.data(), inverse_.data(), config.feature_dim(f), config.width};
      float* matrix = out + first * config.width + config.columns[f];
      const std::size_t bag = f * batch_ + first;
      if (offsets_.empty()) {
        slice.inverse += bag;
        gather_keys(slice, rows, values, matrix);
        continue;
      }
      for (std::size_t b = 0; b < rows; ++b) {
        const auto start = static_cast<std::size_t>(offsets_[bag + b]);
        const std::size_t keys = static_cast<std::size_t>(offsets_[bag + b + 1]) - start;
        slice.inverse = inverse_.data() + start;
        gather_bag(slice, keys, bag_scale(config.combiners[f], keys), values,
                   matrix + b * config.width);
      }
    }
  }
}

void Plan::scatter(const float* grads, float* sums) const noexcept {
  const PlannerConfig& config = *config_;
  std::fill_n(sums, total_floats_, 0.0F);
  if (batch_ == 0) return;  // `grads` may be null
  for (std::size_t f = 0; f < config.feature_tables.size(); ++f) {
    FeatureSlice slice{starts_.data(), inverse_.data(), config.feature_dim(f), config.width};
    const float* matrix = grads + config.columns[f];
    const std::size_t bag = f * batch_;
    if (offsets_.empty()) {
      slice.inverse += bag;
      scatter_keys(slice, batch_, matrix, sums);
      continue;
    }
    for (std::size_t b = 0; b < batch_; ++b) {
      const auto start = static_cast<std::size_t>(offsets_[bag + b]);
      const std::size_t keys = static_cast<std::size_t>(offsets_[bag + b + 1]) - start;
      slice.inverse = inverse_.data() + start;
      scatter_bag(slice, keys, bag_scale(config.combiners[f], keys), matrix + b * config.width,
                  sums);
    }
  }
}

}  // namespace embermesh
