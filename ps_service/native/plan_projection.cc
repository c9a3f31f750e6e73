#include "plan_projection.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "row_copy.h"

namespace embermesh {
namespace {

using projection::kGroup;
using projection::kLanes;
using projection::kTile;

std::size_t rounded_up(std::size_t size, std::size_t step) noexcept {
  return (size + step - 1) / step * step;
}

// Makes a list long enough. It never gets shorter: what is fresh would be cleared.
template <class List>
void reach(List& list, std::size_t size) {
  if (list.size() < size) list.resize(size);
}

std::vector<Tile> tiles_of(std::size_t units) {
  std::vector<Tile> tiles;
  for (std::size_t column = 0; column < units; column += kTile) {
    tiles.push_back({column, std::min(kTile, units - column)});
  }
  return tiles;
}

// A tile of a matrix of `units` columns.
template <class Float>
projection::Columns<Float> columns_of(const Tile& tile, Float* matrix, std::size_t units) noexcept {
  return {matrix + tile.column, units, tile.columns};
}

// `to` (kTile, depth) = the transpose of a tile of `from` (rows, units), with zeros around it.
void turn(const Tile& tile, const float* from, std::size_t rows, std::size_t units,
          std::size_t depth, float* to) {
  std::fill_n(to, kTile * depth, 0.0F);
  for (std::size_t row = 0; row < rows; ++row) {
    const float* const own = from + row * units + tile.column;
    for (std::size_t c = 0; c < tile.columns; ++c) to[c * depth + row] = own[c];
  }
}

}  // namespace

bool worth_projecting(const Plan& plan, std::size_t units) {
  // In multiply-adds per column. A float that is added to another, forward and backward, takes as
  // long as nine of them do in a product (bench/README.md, "The first layer").
  constexpr std::size_t kAdded = 9;
  const PlannerConfig& config = plan.config();
  std::vector<std::size_t> distinct(config.dims.size());
  for (std::size_t i = 0; i < plan.counts().size(); ++i) {
    distinct[i % distinct.size()] += plan.counts()[i];
  }
  std::size_t gathered = 0, projected = 0;
  for (std::size_t f = 0; f < config.feature_tables.size(); ++f) {
    const std::size_t keys = plan.keys_of(f), dim = config.feature_dim(f);
    const std::size_t rows = std::min(keys, distinct[config.feature_tables[f]]);
    gathered += 3 * plan.batch() * dim;
    projected += 3 * rows * rounded_up(dim, kLanes) + kAdded * keys;
  }
  constexpr double kClearly = 0.75;
  return static_cast<double>(projected * rounded_up(units, kTile)) <
         kClearly * static_cast<double>(gathered * units);
}

void Projection::take(const Plan& plan, std::size_t first, std::size_t rows, const float* values,
                      const float* dense, std::size_t dense_columns) {
  const PlannerConfig& config = plan.config();
  const std::size_t count = config.feature_tables.size();
  samples_ = floats_ = 0;
  has_grads_ = false;
  width_ = config.width;
  total_floats_ = plan.total_floats();
  bags_ = !plan.offsets_.empty();
  features_.assign(count, {});
  const auto begin_of = [&](std::size_t f, std::size_t sample) {
    const std::size_t bag = f * plan.batch_ + sample;
    return bags_ ? static_cast<std::size_t>(plan.offsets_[bag]) : bag;
  };
  std::size_t keys = 0;
  for (std::size_t f = 0; f < count; ++f) {
    Feature& feature = features_[f];
    feature.column = config.columns[f];
    feature.dim = config.feature_dim(f);
    feature.depth = rounded_up(feature.dim, kLanes);
    feature.keys = begin_of(f, first + rows) - begin_of(f, first);
    feature.first_key = keys;
    keys += feature.keys;
  }
  if (numbered_ > std::numeric_limits<std::int32_t>::max() / 2) {
    std::fill(seen_.begin(), seen_.end(), 0);
    numbered_ = 1;
  }
  reach(seen_, plan.unique_.size());
  for (auto* list : {&local_, &samples_by_row_, &sample_of_}) reach(*list, keys);
  for (auto* list : {&scale_of_, &scales_by_row_}) reach(*list, bags_ ? keys : 0);
  reach(row_starts_, keys);
  reach(starts_, keys + count);
  samples_ = rows;
  std::size_t all_rows = 0;
  for (std::size_t f = 0; f < count; ++f) {
    Feature& feature = features_[f];
    feature.first_row = all_rows;
    feature.first_start = all_rows + f;
    feature.first_float = floats_;
    number_rows(plan, feature, begin_of(f, first));
    if (bags_) describe_bags(plan, f, first, feature.first_key);
    sort_keys(feature);
    all_rows += feature.rows;
    floats_ += feature.rows * feature.depth;
  }
  reach(rows_, floats_);
  for (const Feature& feature : features_) copy_rows(feature, values);
  copy_dense(dense, dense_columns);
}

void Projection::number_rows(const Plan& plan, Feature& feature, std::size_t begin) {
  const std::int32_t* const inverse = plan.inverse_.data() + begin;
  std::int32_t* const local = local_.data() + feature.first_key;
  std::size_t* const row_starts = row_starts_.data() + feature.first_row;
  std::int32_t* const seen = seen_.data();
  const std::int32_t base = numbered_;
  std::int32_t rows = 0;
  for (std::size_t i = 0; i < feature.keys; ++i) {
    std::int32_t& number = seen[inverse[i]];
    if (number < base) {
      row_starts[rows] = plan.start(static_cast<std::size_t>(inverse[i]));
      number = base + rows++;
    }
    local[i] = number - base;
  }
  numbered_ += rows;
  feature.rows = static_cast<std::size_t>(rows);
}

void Projection::copy_rows(const Feature& feature, const float* values) noexcept {
  const std::size_t* const starts = row_starts_.data() + feature.first_row;
  float* to = rows_.data() + feature.first_float;
  with_width(feature.dim, [&](auto width) __attribute__((always_inline)) {
    for (std::size_t row = 0; row < feature.rows; ++row, to += feature.depth) {
      width.copy(values + starts[row], to);
      std::fill(to + feature.dim, to + feature.depth, 0.0F);
    }
  });
}

void Projection::describe_bags(const Plan& plan, std::size_t f, std::size_t first,
                               std::size_t first_key) {
  for (std::size_t b = 0; b < samples_; ++b) {
    const std::size_t bag = f * plan.batch_ + first + b;
    const auto keys = static_cast<std::size_t>(plan.offsets_[bag + 1] - plan.offsets_[bag]);
    const float scale = bag_scale(plan.config().combiners[f], keys);
    std::fill_n(sample_of_.data() + first_key, keys, static_cast<std::int32_t>(b));
    std::fill_n(scale_of_.data() + first_key, keys, scale);
    first_key += keys;
  }
}

void Projection::sort_keys(const Feature& feature) noexcept {
  std::int32_t* const starts = starts_.data() + feature.first_start;
  const std::int32_t* const local = local_.data() + feature.first_key;
  std::int32_t* const by_row = samples_by_row_.data() + feature.first_key;
  std::fill_n(starts, feature.rows + 1, 0);
  for (std::size_t i = 0; i < feature.keys; ++i) ++starts[local[i]];
  std::int32_t next = 0;
  for (std::size_t row = 0; row <= feature.rows; ++row) {
    next += starts[row];
    starts[row] = next;  // the end of the row's keys, so far
  }
  for (std::size_t i = feature.keys; i-- > 0;) {
    const auto place = static_cast<std::size_t>(--starts[local[i]]);
    const std::size_t key = feature.first_key + i;
    by_row[place] = bags_ ? sample_of_[key] : static_cast<std::int32_t>(i);
    if (bags_) scales_by_row_[feature.first_key + place] = scale_of_[key];
  }
}

void Projection::copy_dense(const float* dense, std::size_t columns) {
  dense_ = columns;
  dense_depth_ = rounded_up(columns + 1, kLanes);
  reach(dense_rows_, samples_ * dense_depth_);
  float* to = dense_rows_.data();
  for (std::size_t row = 0; row < samples_; ++row, to += dense_depth_) {
    std::copy_n(dense + row * columns, columns, to);
    to[columns] = 1.0F;
    std::fill(to + columns + 1, to + dense_depth_, 0.0F);
  }
}

void Projection::forward(const Layer<const float>& layer, float* out) {
  reach(sums_, samples_ * kTile);
  for (const Tile& tile : tiles_of(layer.units)) {
    forward_dense(tile, layer);
    for (std::size_t f = 0; f < features_.size(); f += kGroup) add_group(f, tile, layer);
    projection::put_back(sums_.data(), samples_, layer.relu, columns_of(tile, out, layer.units));
  }
}

void Projection::forward_dense(const Tile& tile, const Layer<const float>& layer) {
  reach(weights_, dense_depth_ * kTile);
  std::fill_n(weights_.data(), dense_depth_ * kTile, 0.0F);
  projection::cut_out(columns_of(tile, layer.weights, layer.units), dense_, weights_.data());
  if (layer.bias != nullptr) {
    projection::cut_out(columns_of(tile, layer.bias, layer.units), 1,
                        weights_.data() + dense_ * kTile);
  }
  projection::multiply(dense_rows_.data(), samples_, dense_depth_, weights_.data(), sums_.data());
}

void Projection::add_group(std::size_t f, const Tile& tile, const Layer<const float>& layer) {
  const std::span<const Feature> group(features_.data() + f,
                                       std::min(kGroup, features_.size() - f));
  std::size_t rows = 0;
  for (const Feature& feature : group) rows += feature.rows;
  reach(products_, rows * kTile);
  projection::Products products[kGroup];
  float* to = products_.data();
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Feature& feature = group[i];
    reach(weights_, feature.depth * kTile);
    std::fill_n(weights_.data(), feature.depth * kTile, 0.0F);
    projection::cut_out(columns_of(tile, layer.weights + feature.column * layer.units, layer.units),
                        feature.dim, weights_.data());
    projection::multiply(rows_.data() + feature.first_float, feature.rows, feature.depth,
                         weights_.data(), to);
    products[i] = {to, local_.data() + feature.first_key};
    to += feature.rows * kTile;
    if (!bags_) continue;
    projection::add_products(
        products[i],
        {sample_of_.data() + feature.first_key, scale_of_.data() + feature.first_key, feature.keys},
        sums_.data());
  }
  if (!bags_) projection::add_products(products, group.size(), samples_, sums_.data());
}

float Projection::backward(const Layer<const float>& layer, const float* out, const float* grads,
                           const Layer<float>& layer_grads) {
  reach(row_grads_, floats_);
  std::fill_n(row_grads_.data(), floats_, 0.0F);
  std::size_t written = dense_;
  for (const Feature& feature : features_) written += feature.dim;
  if (written < width_) std::fill_n(layer_grads.weights, width_ * layer.units, 0.0F);
  reach(sums_, samples_ * kTile);
  for (const Tile& tile : tiles_of(layer.units)) {
    const auto columns = columns_of(tile, grads, layer.units);
    if (layer.relu) {
      projection::cut_out(columns, out + tile.column, samples_, sums_.data());
    } else {
      projection::cut_out(columns, samples_, sums_.data());
    }
    backward_dense(tile, layer_grads);
    for (const Feature& feature : features_) backward_feature(feature, tile, layer, layer_grads);
  }
  has_grads_ = true;
  float lanes[kLanes] = {};
  for (std::size_t i = 0; i < floats_; i += kLanes) {
    for (std::size_t c = 0; c < kLanes; ++c) lanes[c] += row_grads_[i + c];
  }
  return std::accumulate(lanes, lanes + kLanes, 0.0F);
}

void Projection::backward_dense(const Tile& tile, const Layer<float>& layer_grads) {
  reach(weight_grads_, dense_depth_ * kTile);
  std::fill_n(weight_grads_.data(), dense_depth_ * kTile, 0.0F);
  projection::pull_back_weights(dense_rows_.data(), samples_, dense_depth_, sums_.data(),
                                weight_grads_.data());
  projection::put_back(weight_grads_.data(), dense_, false,
                       columns_of(tile, layer_grads.weights, layer_grads.units));
  if (layer_grads.bias != nullptr) {
    projection::put_back(weight_grads_.data() + dense_ * kTile, 1, false,
                         columns_of(tile, layer_grads.bias, layer_grads.units));
  }
}

void Projection::backward_feature(const Feature& feature, const Tile& tile,
                                  const Layer<const float>& layer,
                                  const Layer<float>& layer_grads) {
  const std::size_t first_weight = feature.column * layer.units;
  reach(weights_, feature.depth * kTile);
  reach(weight_grads_, feature.depth * kTile);
  turn(tile, layer.weights + first_weight, feature.dim, layer.units, feature.depth,
       weights_.data());
  std::fill_n(weight_grads_.data(), feature.depth * kTile, 0.0F);
  projection::pull_back({.rows = feature.rows,
                         .depth = feature.depth,
                         .values = rows_.data() + feature.first_float,
                         .weights = weights_.data(),
                         .starts = starts_.data() + feature.first_start,
                         .samples = samples_by_row_.data() + feature.first_key,
                         .scales = bags_ ? scales_by_row_.data() + feature.first_key : nullptr,
                         .value_grads = row_grads_.data() + feature.first_float,
                         .weight_grads = weight_grads_.data()},
                        sums_.data());
  projection::put_back(weight_grads_.data(), feature.dim, false,
                       columns_of(tile, layer_grads.weights + first_weight, layer.units));
}

void Projection::add_to(float* sums) const noexcept {
  for (const Feature& feature : features_) {
    const std::size_t* const starts = row_starts_.data() + feature.first_row;
    const float* grads = row_grads_.data() + feature.first_float;
    with_width(feature.dim, [&](auto width) __attribute__((always_inline)) {
      for (std::size_t row = 0; row < feature.rows; ++row, grads += feature.depth) {
        width.add(grads, sums + starts[row]);
      }
    });
  }
}

}  // namespace embermesh
