// Rows that come in several parts, as to a trainer that reads them ahead of their step.
#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

#include "planner.h"

namespace embermesh {

void Plan::place(std::span<const float> rows, std::span<const std::int32_t> positions,
                 float* values) const {
  std::size_t floats = 0;
  for (const std::int32_t position : positions) {
    if (position < 0 || static_cast<std::size_t>(position) >= unique_.size()) {
      throw std::invalid_argument("positions: " + std::to_string(position) + " is not in 0 to " +
                                  std::to_string(unique_.size()) + " - 1");
    }
    floats += row_floats(static_cast<std::size_t>(position));
  }
  if (floats != rows.size()) {
    throw std::invalid_argument("rows: expected " + std::to_string(floats) + " values, got " +
                                std::to_string(rows.size()));
  }
  const float* row = rows.data();
  for (const std::int32_t position : positions) {
    const auto key = static_cast<std::size_t>(position);
    const std::size_t size = row_floats(key);
    std::copy_n(row, size, values + start(key));
    row += size;
  }
}

}  // namespace embermesh
