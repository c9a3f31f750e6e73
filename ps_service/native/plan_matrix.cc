// The two passes over a plan's matrix: rows into the places of a batch, gradients back onto rows.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "planner.h"
#include "row_copy.h"
#include "simd.h"

namespace embermesh {

// Which rows a member sums: every `shares`-th group of them, so that no two members share a line.
// All rows if `mask` is 0.
struct RowShare {
  static constexpr int kGroupBits = 4;

  std::uint32_t mask;  // number of shares, a power of two, - 1
  std::uint32_t share;

  [[nodiscard]] bool has(std::int32_t position) const noexcept {
    return ((static_cast<std::uint32_t>(position) >> kGroupBits) & mask) == share;
  }
};

namespace {

// One feature of some rows of the batch, as the kernels below see it. Key j of the slice has its
// row at values + start(j); bag b is row b of `matrix`, which begins at the feature's first column.
struct FeatureSlice {
  const std::size_t* starts;  // null: every row has `dim` floats
  const std::int32_t* inverse;
  std::size_t dim;
  std::size_t width;  // floats from one row of the matrix to the next

  [[nodiscard]] std::size_t start(std::size_t j) const noexcept {
    const auto position = static_cast<std::size_t>(inverse[j]);
    return starts == nullptr ? position * dim : starts[position];
  }
};

EMBERMESH_SIMD void gather_keys(const FeatureSlice& slice, std::size_t rows, const float* values,
                                float* out) noexcept {
  const FeatureSlice s = slice;
  with_width(s.dim, [&](auto width) __attribute__((always_inline)) {
    for_each_asked(
        rows,
        [&](std::size_t b) {
          prefetch_row<Cache::kFirst>(values + s.start(b), s.dim * sizeof(float));
          // Else a store that misses waits for its line alone, and all behind it wait for it.
          prefetch_row<Cache::kFirst>(out + b * s.width, s.dim * sizeof(float));
        },
        [&](std::size_t b) { width.copy(values + s.start(b), out + b * s.width); });
  });
}

EMBERMESH_SIMD void scatter_keys(const FeatureSlice& slice, std::size_t rows, const float* grads,
                                 float* sums) noexcept {
  const FeatureSlice s = slice;
  with_width(s.dim, [&](auto width) __attribute__((always_inline)) {
    for_each_asked(
        rows,
        [&](std::size_t b) {
          prefetch_row<Cache::kFirst>(grads + b * s.width, s.dim * sizeof(float));
          prefetch_row<Cache::kFirst>(sums + s.start(b), s.dim * sizeof(float));
        },
        [&](std::size_t b) { width.add(grads + b * s.width, sums + s.start(b)); });
  });
}

// As scatter_keys, of the rows of a share only. First which keys those are, without branches: that
// cannot be foreseen.
EMBERMESH_SIMD void scatter_keys_of(const FeatureSlice& slice, const RowShare& share,
                                    std::size_t rows, const float* grads, float* sums) noexcept {
  constexpr std::size_t kBlock = 256;
  const FeatureSlice s = slice;
  std::array<std::uint32_t, kBlock> mine;
  with_width(s.dim, [&](auto width) __attribute__((always_inline)) {
    for (std::size_t first = 0; first < rows; first += kBlock) {
      const std::size_t size = std::min(kBlock, rows - first);
      std::size_t found = 0;
      for (std::size_t b = first; b < first + size; ++b) {
        mine[found] = static_cast<std::uint32_t>(b);
        found += share.has(s.inverse[b]) ? 1 : 0;
      }
      for_each_asked(
          found,
          [&](std::size_t j) {
            prefetch_row<Cache::kFirst>(grads + mine[j] * s.width, s.dim * sizeof(float));
            prefetch_row<Cache::kFirst>(sums + s.start(mine[j]), s.dim * sizeof(float));
          },
          [&](std::size_t j) { width.add(grads + mine[j] * s.width, sums + s.start(mine[j])); });
    }
  });
}

EMBERMESH_SIMD void gather_bag(const FeatureSlice& slice, std::size_t keys, float scale,
                               const float* __restrict values, float* __restrict out) noexcept {
  std::fill_n(out, slice.dim, 0.0F);
  for (std::size_t j = 0; j < keys; ++j) {
    const float* row = values + slice.start(j);
    for (std::size_t i = 0; i < slice.dim; ++i) out[i] += row[i];
  }
  if (scale == 1.0F) return;
  for (std::size_t i = 0; i < slice.dim; ++i) out[i] *= scale;
}

EMBERMESH_SIMD void scatter_bag(const FeatureSlice& slice, const RowShare& share, std::size_t keys,
                                float scale, const float* __restrict grads,
                                float* __restrict sums) noexcept {
  for (std::size_t j = 0; j < keys; ++j) {
    if (!share.has(slice.inverse[j])) continue;
    float* row = sums + slice.start(j);
    for (std::size_t i = 0; i < slice.dim; ++i) row[i] += scale * grads[i];
  }
}

}  // namespace

float bag_scale(Combiner combiner, std::size_t keys) noexcept {
  const auto count = static_cast<float>(keys);
  if (keys < 2) return 1.0F;  // also an empty bag, whose sum is zero
  if (combiner == Combiner::kMean) return 1.0F / count;
  if (combiner == Combiner::kSqrtN) return 1.0F / std::sqrt(count);
  return 1.0F;
}

void Plan::gather(const float* values, float* out) const {
  constexpr std::size_t kBlock = 128;  // rows of the output that stay in the cache for all features
  const std::size_t blocks = (batch_ + kBlock - 1) / kBlock;
  const ThreadTeam::Lease team = take_team();
  const auto gather_block = [&](std::size_t block) {
    const std::size_t first = block * kBlock;
    gather_rows(first, std::min(kBlock, batch_ - first), values, out + first * config().width);
  };
  team.run(blocks, std::ref(gather_block));
}

void Plan::gather_rows(std::size_t first, std::size_t rows, const float* values,
                       float* out) const noexcept {
  const PlannerConfig& shape = config();
  for (std::size_t f = 0; f < shape.feature_tables.size(); ++f) {
    FeatureSlice slice{starts_.data(), inverse_.data(), shape.feature_dim(f), shape.width};
    float* matrix = out + shape.columns[f];
    const std::size_t bag = f * batch_ + first;
    if (offsets_.empty()) {
      slice.inverse += bag;
      gather_keys(slice, rows, values, matrix);
      continue;
    }
    for (std::size_t b = 0; b < rows; ++b, matrix += shape.width) {
      const auto start = static_cast<std::size_t>(offsets_[bag + b]);
      const std::size_t keys = static_cast<std::size_t>(offsets_[bag + b + 1]) - start;
      slice.inverse = inverse_.data() + start;
      gather_bag(slice, keys, bag_scale(shape.combiners[f], keys), values, matrix);
    }
  }
}

void Plan::scatter(const MatrixBlocks& grads, float* sums) const {
  constexpr std::size_t kCleared = 65536;  // floats that one member clears at a time
  struct Item {
    std::size_t table;
    RowShare share;
  };
  const ThreadTeam::Lease team = take_team();
  const auto clear = [&](std::size_t block) {
    const std::size_t first = block * kCleared;
    std::fill_n(sums + first, std::min(kCleared, total_floats_ - first), 0.0F);
  };
  team.run((total_floats_ + kCleared - 1) / kCleared, std::ref(clear));
  if (batch_ == 0) return;  // there may be no block
  std::vector<Item> items;
  for (std::size_t table = 0; table < core_->features_of.size(); ++table) {
    std::size_t keys = 0;
    for (const std::size_t f : core_->features_of[table]) keys += keys_of(f);
    const auto shares = static_cast<std::uint32_t>(
        std::bit_floor(parts_of_table(keys, inverse_.size(), team.size())));
    for (std::uint32_t share = 0; share < shares; ++share) {
      items.push_back({table, {.mask = shares - 1, .share = share}});
    }
  }
  const auto scatter = [&](std::size_t i) {
    scatter_table(items[i].table, items[i].share, grads, sums);
  };
  team.run(items.size(), std::ref(scatter));
}

void Plan::scatter_table(std::size_t table, const RowShare& share, const MatrixBlocks& grads,
                         float* sums) const noexcept {
  for (const std::size_t f : core_->features_of[table]) {
    std::size_t first = 0;
    for (const float* const block : grads.blocks) {
      const std::size_t rows = std::min(grads.rows, batch_ - first);
      scatter_feature(f, share, first, rows, block, sums);
      first += rows;
    }
  }
}

void Plan::scatter_feature(std::size_t f, const RowShare& share, std::size_t first,
                           std::size_t rows, const float* block, float* sums) const noexcept {
  const PlannerConfig& shape = config();
  FeatureSlice slice{starts_.data(), inverse_.data(), shape.feature_dim(f), shape.width};
  const float* matrix = block + shape.columns[f];
  const std::size_t bag = f * batch_ + first;
  if (offsets_.empty()) {
    slice.inverse += bag;
    if (share.mask == 0) {
      scatter_keys(slice, rows, matrix, sums);
    } else {
      scatter_keys_of(slice, share, rows, matrix, sums);
    }
    return;
  }
  for (std::size_t b = 0; b < rows; ++b, matrix += shape.width) {
    const auto start = static_cast<std::size_t>(offsets_[bag + b]);
    const std::size_t keys = static_cast<std::size_t>(offsets_[bag + b + 1]) - start;
    slice.inverse = inverse_.data() + start;
    scatter_bag(slice, share, keys, bag_scale(shape.combiners[f], keys), matrix, sums);
  }
}

std::size_t Plan::keys_of(std::size_t feature) const noexcept {
  if (offsets_.empty()) return batch_;
  return static_cast<std::size_t>(offsets_[(feature + 1) * batch_] - offsets_[feature * batch_]);
}

ThreadTeam::Lease Plan::take_team() const {
  constexpr std::size_t kWorthATeam = 8192;  // keys; below, waking the others costs more
  return inverse_.size() >= kWorthATeam ? core_->team.try_take() : ThreadTeam::Lease();
}

}  // namespace embermesh
