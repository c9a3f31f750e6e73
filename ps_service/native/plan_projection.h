// The first layer of a network that begins with a dense layer over a plan's matrix, without the
// matrix: a key that many samples share is multiplied with the weights once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "line_vector.h"
#include "planner.h"
#include "projection_kernels.h"

namespace embermesh {

// Whether a projection to `units` columns is clearly less work than a product of the gathered
// matrix, by the plan's numbers alone: two runs choose the same. Throws std::bad_alloc.
[[nodiscard]] bool worth_projecting(const Plan& plan, std::size_t units);

// The weights (width, units) of a dense layer over a gathered matrix, and its bias (units); null:
// it has none. `relu`: only what is positive of its outputs goes on, and back.
template <class Float>
struct Layer {
  Float* weights;
  Float* bias;
  std::size_t units;
  bool relu = false;
};

// Columns of a matrix that are a tile or its beginning.
struct Tile {
  std::size_t column, columns;
};

// Of some samples of a plan's batch. Let X be their gathered rows, W the weights of the columns of
// X, E the distinct rows of a feature and S the sums of gradients dY over the samples of each of
// them. By features:
//
//   X W = sum of (E W)[key of each sample],   dW = transpose of E * S,   dE = S * transpose of W
//
// Dense features are columns of X too, the first; every sample has a row of its own of them. A
// constant 1 behind them makes the layer's bias one more row of its weights.
//
// Rows are taken in the order in which the samples name them, so neither the number of shards nor
// that of threads changes a bit. Memory is kept from batch to batch: fresh one costs as much as a
// product. Not thread-safe.
class Projection {
 public:
  // Takes the samples [first, first + rows) of the plan's batch; `values` as for gather. `dense`
  // (rows, dense_columns) are of these samples. Throws std::bad_alloc; it must take samples again
  // then, before anything else.
  void take(const Plan& plan, std::size_t first, std::size_t rows, const float* values,
            const float* dense, std::size_t dense_columns);

  [[nodiscard]] std::size_t samples() const noexcept { return samples_; }
  // Columns of the gathered matrix, which is rows of the weights.
  [[nodiscard]] std::size_t width() const noexcept { return width_; }
  // Floats of all rows of the plan.
  [[nodiscard]] std::size_t total_floats() const noexcept { return total_floats_; }

  // out (samples, units) = X W + bias. Throws std::bad_alloc.
  void forward(const Layer<const float>& layer, float* out);

  // Keeps dE, and writes the layer's gradients, zero for columns that are neither dense nor of a
  // feature, from `grads` (samples, units) of `out`, which is as forward left it. Returns the sum
  // of dE: not finite if one of them isn't. Throws std::bad_alloc.
  float backward(const Layer<const float>& layer, const float* out, const float* grads,
                 const Layer<float>& layer_grads);

  // Whether backward has been called for these samples.
  [[nodiscard]] bool has_grads() const noexcept { return has_grads_; }

  // Adds dE, which it must have, to where the rows are in `sums` (total_floats).
  void add_to(float* sums) const noexcept;

 private:
  // Of a feature: where its lists begin, and how long they are.
  struct Feature {
    std::size_t column, dim;
    std::size_t depth;  // `dim` filled up to whole vectors
    std::size_t rows, first_row;
    std::size_t keys, first_key;
    std::size_t first_float;
    std::size_t first_start;
  };

  // Numbers the distinct rows of the feature's keys, those of the plan from `begin` on.
  void number_rows(const Plan& plan, Feature& feature, std::size_t begin);
  void copy_rows(const Feature& feature, const float* values) noexcept;
  // The sample and the factor of every key, for features with any number of keys in a sample.
  void describe_bags(const Plan& plan, std::size_t f, std::size_t first, std::size_t first_key);
  // Lists the keys by row.
  void sort_keys(const Feature& feature) noexcept;
  void copy_dense(const float* dense, std::size_t columns);
  // Of the dense features and the bias.
  void forward_dense(const Tile& tile, const Layer<const float>& layer);
  void backward_dense(const Tile& tile, const Layer<float>& layer_grads);
  // Of one feature.
  void backward_feature(const Feature& feature, const Tile& tile, const Layer<const float>& layer,
                        const Layer<float>& layer_grads);
  // Products of up to kGroup features from `f` on with a tile of the weights, added to `sums_`.
  void add_group(std::size_t f, const Tile& tile, const Layer<const float>& layer);

  std::size_t samples_ = 0, width_ = 0, total_floats_ = 0, floats_ = 0;
  std::size_t dense_ = 0, dense_depth_ = 0;  // columns, and with a 1 filled up to whole vectors
  bool has_grads_ = false;
  bool bags_ = false;  // a sample may have any number of keys of a feature, else each has one
  std::vector<Feature> features_;
  std::int32_t numbered_ = 1;  // rows go on from here: what is less was given to another feature
  // Lists are as long as the longest was, their ends stale.
  std::vector<std::int32_t> seen_;            // [U] last number that each row of a plan had
  std::vector<std::size_t> row_starts_;       // [u] the first float of each row in plan's values
  LineVector<float> dense_rows_;              // (samples, dense_depth_)
  LineVector<float> rows_;                    // [floats_] feature after feature, (rows, depth) each
  LineVector<float> row_grads_;               // [floats_]
  std::vector<std::int32_t> local_;           // [n] number of each key's row among its feature's
  std::vector<std::int32_t> starts_;          // [u + F] first of each row's keys in samples_by_row_
  std::vector<std::int32_t> samples_by_row_;  // [n] the samples of each row's keys
  std::vector<std::int32_t> sample_of_;       // [n] if bags_: the sample of each key
  std::vector<float> scale_of_;               // [n] if bags_: what its row counts in the sample
  std::vector<float> scales_by_row_;          // [n] if bags_
  LineVector<float> products_, weights_, weight_grads_, sums_;  // of a tile
};

}  // namespace embermesh
