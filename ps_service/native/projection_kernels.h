// The products and sums that a projection is made of, on tiles of 64 columns.
//
// Vectors, so that a compiler cannot but use the CPU's; and fused multiply-adds where the CPU has
// them, unlike in the rest of the engine: these sums stand where TensorFlow's did, whose bits
// depend on the machine too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embermesh::projection {

inline constexpr std::size_t kLanes = 16;  // floats of a vector; rows are filled up to whole ones
inline constexpr std::size_t kTile = 64;   // columns of a tile
inline constexpr std::size_t kGroup = 4;   // features whose products are added up at a time

// The products of one feature's rows with a tile of its weights, and where they belong.
struct Products {
  const float* tile;          // (u, kTile)
  const std::int32_t* local;  // the row of each sample's key
};

// A feature with any number of keys in a sample: key i is of `sample[i]`, times `scale[i]`.
struct Occurrences {
  const std::int32_t* sample;
  const float* scale;
  std::size_t keys;
};

// products (rows, kTile) = values (rows, depth) * weights (depth, kTile).
void multiply(const float* values, std::size_t rows, std::size_t depth, const float* weights,
              float* products) noexcept;

// sums (samples, kTile) += the products of up to kGroup features, each of which has one key in
// every sample.
void add_products(const Products* features, std::size_t count, std::size_t samples,
                  float* sums) noexcept;

// sums (samples, kTile) += the products of one feature.
void add_products(const Products& feature, const Occurrences& keys, float* sums) noexcept;

// Of a matrix with rows of `stride` floats, `columns` <= kTile side by side.
template <class Float>
struct Columns {
  Float* first;
  std::size_t stride, columns;
};

// tile (rows, kTile) = the columns, and zeros behind them.
void cut_out(const Columns<const float>& from, std::size_t rows, float* tile) noexcept;

// The same, with 0 wherever the outputs, of the same shape, aren't positive.
void cut_out(const Columns<const float>& from, const float* outputs, std::size_t rows,
             float* tile) noexcept;

// The columns = tile (rows, kTile) without what is behind them, and 0 for what is negative if
// `relu`.
void put_back(const float* tile, std::size_t rows, bool relu, const Columns<float>& to) noexcept;

// One feature's rows and weights, and their gradients, which are added to.
struct Feature {
  std::size_t rows, depth;
  const float* values;          // (rows, depth)
  const float* weights;         // (kTile, depth): columns of the tile
  const std::int32_t* starts;   // [rows + 1] first of each row's keys
  const std::int32_t* samples;  // [keys] that they are in
  const float* scales;          // [keys]; null: 1
  float* value_grads;           // (rows, depth)
  float* weight_grads;          // (depth, kTile)
};

// From the gradients (samples, kTile) of the sums to those of a feature.
void pull_back(const Feature& feature, const float* grads) noexcept;

// weight_grads (depth, kTile) += the transpose of values (rows, depth) * grads (rows, kTile).
void pull_back_weights(const float* values, std::size_t rows, std::size_t depth, const float* grads,
                       float* weight_grads) noexcept;

}  // namespace embermesh::projection
