// Sum of squares with a fixed order of addition, so that no SIMD width changes a bit.
#pragma once

#include <cstddef>

namespace embermesh {

// In double: eight running sums that are added as a tree, then what is left, one by one.
inline double sum_squares(const float* values, std::size_t count) noexcept {
  constexpr std::size_t kLanes = 8;
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  double sum = lanes[0];
  for (; i < count; ++i) sum += double{values[i]} * values[i];
  return sum;
}

}  // namespace embermesh
