// Rows that come in several parts, as to a trainer that reads them ahead of their step.
#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

#include "planner.h"
#include "row_copy.h"
#include "simd.h"

namespace embermesh {

namespace {

[[noreturn]] void refuse_size(std::size_t expected, std::size_t actual) {
  throw std::invalid_argument("rows: expected " + std::to_string(expected) + " values, got " +
                              std::to_string(actual));
}

// values + positions[i] * dim becomes row i of `rows`.
EMBERMESH_SIMD void place_rows(const float* rows, std::span<const std::int32_t> positions,
                               std::size_t dim, float* values) noexcept {
  const std::int32_t* const to = positions.data();
  const auto place_of = [=](std::size_t i) {
    return values + static_cast<std::size_t>(to[i]) * dim;
  };
  with_width(dim, [&](auto width) __attribute__((always_inline)) {
    for_each_asked(
        positions.size(),
        [&](std::size_t i) { prefetch_row<Cache::kFirst>(place_of(i), dim * sizeof(float)); },
        [&](std::size_t i) { width.copy(rows + i * dim, place_of(i)); });
  });
}

}  // namespace

void Plan::place(std::span<const float> rows, std::span<const std::int32_t> positions,
                 float* values) const {
  for (const std::int32_t position : positions) {
    if (position < 0 || static_cast<std::size_t>(position) >= unique_.size()) {
      throw std::invalid_argument("positions: " + std::to_string(position) + " is not in 0 to " +
                                  std::to_string(unique_.size()) + " - 1");
    }
  }
  if (core_->dim != 0) {
    if (rows.size() != positions.size() * core_->dim) {
      refuse_size(positions.size() * core_->dim, rows.size());
    }
    place_rows(rows.data(), positions, core_->dim, values);
    return;
  }
  std::size_t floats = 0;
  for (const std::int32_t position : positions) {
    floats += row_floats(static_cast<std::size_t>(position));
  }
  if (floats != rows.size()) refuse_size(floats, rows.size());
  const float* row = rows.data();
  for (const std::int32_t position : positions) {
    const auto key = static_cast<std::size_t>(position);
    const std::size_t size = row_floats(key);
    std::copy_n(row, size, values + start(key));
    row += size;
  }
}

}  // namespace embermesh
