#include "projection_kernels.h"

#include <algorithm>

#include "simd.h"

namespace embermesh::projection {
namespace {

using Vector
    [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] =
        float;

constexpr std::size_t kVectors = kTile / kLanes;
constexpr std::size_t kBlock = 32;  // rows whose sums stay in the first-level cache

[[gnu::always_inline]] inline Vector load(const float* from) noexcept {
  return *reinterpret_cast<const Vector*>(from);
}
[[gnu::always_inline]] inline void store(float* to, const Vector& vector) noexcept {
  *reinterpret_cast<Vector*>(to) = vector;
}

// `values` where the others are positive, else 0.
[[gnu::always_inline]] inline Vector positive(const Vector& others, const Vector& values) noexcept {
  return others > 0.0F ? values : Vector{};
}
// Keeps what is not a number.
[[gnu::always_inline]] inline Vector not_negative(const Vector& values) noexcept {
  return values < 0.0F ? Vector{} : values;
}

// kWide: 32 registers of a whole vector each (AVX-512), else 16 of half a vector (AVX2).
template <bool kWide>
struct Kernels {
  static constexpr std::size_t kColumns = kWide ? 4 : 1;  // vectors of a block of registers
  static constexpr std::size_t kRows = 6;                 // rows of it
  static constexpr std::size_t kBackRows = kWide ? 16 : 4;
  static constexpr std::size_t kDepth = 4;

  template <std::size_t kCount>
  [[gnu::always_inline]] static void multiply_rows(const float* values, std::size_t depth,
                                                   const float* weights, float* products) noexcept {
    for (std::size_t column = 0; column < kTile; column += kColumns * kLanes) {
      Vector sums[kCount][kColumns] = {};
      for (std::size_t k = 0; k < depth; ++k) {
        Vector factors[kColumns];
        for (std::size_t c = 0; c < kColumns; ++c) {
          factors[c] = load(weights + k * kTile + column + c * kLanes);
        }
        for (std::size_t r = 0; r < kCount; ++r) {
          for (std::size_t c = 0; c < kColumns; ++c) {
            sums[r][c] += factors[c] * values[r * depth + k];
          }
        }
      }
      for (std::size_t r = 0; r < kCount; ++r) {
        for (std::size_t c = 0; c < kColumns; ++c) {
          store(products + r * kTile + column + c * kLanes, sums[r][c]);
        }
      }
    }
  }

  [[gnu::always_inline]] static void multiply(const float* values, std::size_t rows,
                                              std::size_t depth, const float* weights,
                                              float* products) noexcept {
    std::size_t row = 0;
    for (; row + kRows <= rows; row += kRows) {
      multiply_rows<kRows>(values + row * depth, depth, weights, products + row * kTile);
    }
    for (; row < rows; ++row) {
      multiply_rows<1>(values + row * depth, depth, weights, products + row * kTile);
    }
  }

  template <std::size_t kCount>
  [[gnu::always_inline]] static void add(const Products* features, std::size_t samples,
                                         float* sums) noexcept {
    for (std::size_t b = 0; b < samples; ++b) {
      Vector total[kVectors];
      for (std::size_t c = 0; c < kVectors; ++c) total[c] = load(sums + b * kTile + c * kLanes);
      for (std::size_t f = 0; f < kCount; ++f) {
        const auto row = static_cast<std::size_t>(features[f].local[b]);
        for (std::size_t c = 0; c < kVectors; ++c) {
          total[c] += load(features[f].tile + row * kTile + c * kLanes);
        }
      }
      for (std::size_t c = 0; c < kVectors; ++c) store(sums + b * kTile + c * kLanes, total[c]);
    }
  }

  [[gnu::always_inline]] static void add_products(const Products* features, std::size_t count,
                                                  std::size_t samples, float* sums) noexcept {
    static_assert(kGroup == 4);
    switch (count) {
      case 4:
        return add<4>(features, samples, sums);
      case 3:
        return add<3>(features, samples, sums);
      case 2:
        return add<2>(features, samples, sums);
      default:
        return add<1>(features, samples, sums);
    }
  }

  [[gnu::always_inline]] static void add_products(const Products& feature, const Occurrences& keys,
                                                  float* sums) noexcept {
    for (std::size_t i = 0; i < keys.keys; ++i) {
      float* sum = sums + static_cast<std::size_t>(keys.sample[i]) * kTile;
      const float* row = feature.tile + static_cast<std::size_t>(feature.local[i]) * kTile;
      for (std::size_t c = 0; c < kTile; c += kLanes) {
        store(sum + c, load(sum + c) + load(row + c) * keys.scale[i]);
      }
    }
  }

  // sums[r] = what the gradients of row first + r's samples add up to.
  [[gnu::always_inline]] static void sum_samples(const Feature& f, std::size_t first,
                                                 std::size_t rows, const float* grads,
                                                 float* sums) noexcept {
    for (std::size_t r = 0; r < rows; ++r) {
      Vector total[kVectors] = {};
      for (std::int32_t i = f.starts[first + r]; i < f.starts[first + r + 1]; ++i) {
        const float* grad = grads + static_cast<std::size_t>(f.samples[i]) * kTile;
        const float scale = f.scales == nullptr ? 1.0F : f.scales[i];
        for (std::size_t c = 0; c < kVectors; ++c) total[c] += load(grad + c * kLanes) * scale;
      }
      for (std::size_t c = 0; c < kVectors; ++c) store(sums + r * kTile + c * kLanes, total[c]);
    }
  }

  // value_grads (kCount, depth) += sums (kCount, kTile) * weights (kTile, depth).
  template <std::size_t kCount>
  [[gnu::always_inline]] static void add_value_grads(const float* sums, const float* weights,
                                                     std::size_t depth, float* grads) noexcept {
    for (std::size_t k = 0; k < depth; k += kLanes) {
      Vector total[kCount];
      for (std::size_t r = 0; r < kCount; ++r) total[r] = load(grads + r * depth + k);
      for (std::size_t c = 0; c < kTile; ++c) {
        const Vector column = load(weights + c * depth + k);
        for (std::size_t r = 0; r < kCount; ++r) total[r] += column * sums[r * kTile + c];
      }
      for (std::size_t r = 0; r < kCount; ++r) store(grads + r * depth + k, total[r]);
    }
  }

  // weight_grads (depth, kTile) += the transpose of values (rows, depth) * sums (rows, kTile).
  [[gnu::always_inline]] static void add_weight_grads(const float* values, std::size_t rows,
                                                      std::size_t depth, const float* sums,
                                                      float* grads) noexcept {
    for (std::size_t k = 0; k < depth; k += kDepth) {
      for (std::size_t column = 0; column < kTile; column += kColumns * kLanes) {
        Vector total[kDepth][kColumns];
        for (std::size_t i = 0; i < kDepth; ++i) {
          for (std::size_t c = 0; c < kColumns; ++c) {
            total[i][c] = load(grads + (k + i) * kTile + column + c * kLanes);
          }
        }
        for (std::size_t r = 0; r < rows; ++r) {
          Vector sum[kColumns];
          for (std::size_t c = 0; c < kColumns; ++c) {
            sum[c] = load(sums + r * kTile + column + c * kLanes);
          }
          for (std::size_t i = 0; i < kDepth; ++i) {
            for (std::size_t c = 0; c < kColumns; ++c) {
              total[i][c] += sum[c] * values[r * depth + k + i];
            }
          }
        }
        for (std::size_t i = 0; i < kDepth; ++i) {
          for (std::size_t c = 0; c < kColumns; ++c) {
            store(grads + (k + i) * kTile + column + c * kLanes, total[i][c]);
          }
        }
      }
    }
  }

  [[gnu::always_inline]] static void cut_out(const Columns<const float>& from, const float* outputs,
                                             std::size_t rows, float* tile) noexcept {
    for (std::size_t row = 0; row < rows; ++row, tile += kTile) {
      const float* const values = from.first + row * from.stride;
      const float* const signs = outputs == nullptr ? nullptr : outputs + row * from.stride;
      if (from.columns == kTile) {
        for (std::size_t c = 0; c < kTile; c += kLanes) {
          const Vector value = load(values + c);
          store(tile + c, signs == nullptr ? value : positive(load(signs + c), value));
        }
        continue;
      }
      for (std::size_t c = 0; c < from.columns; ++c) {
        tile[c] = signs == nullptr || signs[c] > 0.0F ? values[c] : 0.0F;
      }
      std::fill(tile + from.columns, tile + kTile, 0.0F);
    }
  }

  [[gnu::always_inline]] static void put_back(const float* tile, std::size_t rows, bool relu,
                                              const Columns<float>& to) noexcept {
    for (std::size_t row = 0; row < rows; ++row, tile += kTile) {
      float* const values = to.first + row * to.stride;
      if (to.columns == kTile) {
        for (std::size_t c = 0; c < kTile; c += kLanes) {
          const Vector value = load(tile + c);
          store(values + c, relu ? not_negative(value) : value);
        }
        continue;
      }
      for (std::size_t c = 0; c < to.columns; ++c) {
        values[c] = relu && tile[c] < 0.0F ? 0.0F : tile[c];
      }
    }
  }

  [[gnu::always_inline]] static void pull_back_weights(const float* values, std::size_t rows,
                                                       std::size_t depth, const float* grads,
                                                       float* weight_grads) noexcept {
    for (std::size_t first = 0; first < rows; first += kBlock) {
      add_weight_grads(values + first * depth, std::min(kBlock, rows - first), depth,
                       grads + first * kTile, weight_grads);
    }
  }

  [[gnu::always_inline]] static void pull_back(const Feature& f, const float* grads) noexcept {
    alignas(kCacheLine) float sums[kBlock * kTile];
    for (std::size_t first = 0; first < f.rows; first += kBlock) {
      const std::size_t rows = std::min(kBlock, f.rows - first);
      sum_samples(f, first, rows, grads, sums);
      float* value_grads = f.value_grads + first * f.depth;
      std::size_t r = 0;
      for (; r + kBackRows <= rows; r += kBackRows) {
        add_value_grads<kBackRows>(sums + r * kTile, f.weights, f.depth, value_grads + r * f.depth);
      }
      for (; r < rows; ++r) {
        add_value_grads<1>(sums + r * kTile, f.weights, f.depth, value_grads + r * f.depth);
      }
      add_weight_grads(f.values + first * f.depth, rows, f.depth, sums, f.weight_grads);
    }
  }
};

// One version of each for every kind of CPU; whoever calls them here gets the best for this one.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes none
#define EMBERMESH_PROJECTION_KERNELS(target, wide)                                             \
  target void multiply_here(const float* values, std::size_t rows, std::size_t depth,          \
                            const float* weights, float* products) noexcept {                  \
    Kernels<wide>::multiply(values, rows, depth, weights, products);                           \
  }                                                                                            \
  target void add_here(const Products* features, std::size_t count, std::size_t samples,       \
                       float* sums) noexcept {                                                 \
    Kernels<wide>::add_products(features, count, samples, sums);                               \
  }                                                                                            \
  target void add_keys_here(const Products& feature, const Occurrences& keys,                  \
                            float* sums) noexcept {                                            \
    Kernels<wide>::add_products(feature, keys, sums);                                          \
  }                                                                                            \
  target void cut_out_here(const Columns<const float>& from, const float* outputs,             \
                           std::size_t rows, float* tile) noexcept {                           \
    Kernels<wide>::cut_out(from, outputs, rows, tile);                                         \
  }                                                                                            \
  target void put_back_here(const float* tile, std::size_t rows, bool relu,                    \
                            const Columns<float>& to) noexcept {                               \
    Kernels<wide>::put_back(tile, rows, relu, to);                                             \
  }                                                                                            \
  target void pull_back_here(const Feature& feature, const float* grads) noexcept {            \
    Kernels<wide>::pull_back(feature, grads);                                                  \
  }                                                                                            \
  target void pull_back_weights_here(const float* values, std::size_t rows, std::size_t depth, \
                                     const float* grads, float* weight_grads) noexcept {       \
    Kernels<wide>::pull_back_weights(values, rows, depth, grads, weight_grads);                \
  }
// NOLINTEND(bugprone-macro-parentheses)
EMBERMESH_PROJECTION_KERNELS(EMBERMESH_ANY_CPU, false)
#ifdef EMBERMESH_X86_64_V4
EMBERMESH_PROJECTION_KERNELS(EMBERMESH_X86_64_V3, false)
EMBERMESH_PROJECTION_KERNELS(EMBERMESH_X86_64_V4, true)
#endif

}  // namespace

void multiply(const float* values, std::size_t rows, std::size_t depth, const float* weights,
              float* products) noexcept {
  multiply_here(values, rows, depth, weights, products);
}

void add_products(const Products* features, std::size_t count, std::size_t samples,
                  float* sums) noexcept {
  add_here(features, count, samples, sums);
}

void add_products(const Products& feature, const Occurrences& keys, float* sums) noexcept {
  add_keys_here(feature, keys, sums);
}

void cut_out(const Columns<const float>& from, std::size_t rows, float* tile) noexcept {
  cut_out_here(from, nullptr, rows, tile);
}

void cut_out(const Columns<const float>& from, const float* outputs, std::size_t rows,
             float* tile) noexcept {
  cut_out_here(from, outputs, rows, tile);
}

void put_back(const float* tile, std::size_t rows, bool relu, const Columns<float>& to) noexcept {
  put_back_here(tile, rows, relu, to);
}

void pull_back(const Feature& feature, const float* grads) noexcept {
  pull_back_here(feature, grads);
}

void pull_back_weights(const float* values, std::size_t rows, std::size_t depth, const float* grads,
                       float* weight_grads) noexcept {
  pull_back_weights_here(values, rows, depth, grads, weight_grads);
}

}  // namespace embermesh::projection
