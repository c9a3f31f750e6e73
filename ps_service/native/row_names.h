// How 32 bits name a row of a partition: the number of its table and its number among the rows of
// that width.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace embermesh {

// Number of a row within its arena: slab by slab, counted from 0.
using RowNumber = std::uint32_t;
inline constexpr RowNumber kNoRow = std::numeric_limits<RowNumber>::max();

// Table above, row below. The fewer tables a shard has, the more bits are left for rows: all 32
// with one table, 27 with 26, 16 with 65,536.
class RowNames {
 public:
  explicit constexpr RowNames(std::size_t tables) noexcept
      : RowNames(static_cast<RowBits>(32 - std::bit_width(tables - 1))) {}

  // What the names depend on, to be kept in little room.
  enum class RowBits : std::uint16_t {};
  explicit constexpr RowNames(RowBits bits) noexcept
      : row_bits_(static_cast<unsigned>(bits)),
        bound_(static_cast<RowNumber>((std::uint64_t{1} << row_bits_) - 1)) {}
  [[nodiscard]] constexpr RowBits row_bits() const noexcept {
    return static_cast<RowBits>(row_bits_);
  }

  // Numbers are below this, so that no name equals kNoRow.
  [[nodiscard]] constexpr RowNumber bound() const noexcept { return bound_; }
  [[nodiscard]] constexpr std::uint32_t name(std::uint32_t table, RowNumber row) const noexcept {
    return first(table) | row;
  }
  // The name of the table's row 0; the others follow.
  [[nodiscard]] constexpr std::uint32_t first(std::uint32_t table) const noexcept {
    return static_cast<std::uint32_t>(std::uint64_t{table} << row_bits_);
  }
  [[nodiscard]] constexpr std::uint32_t table(std::uint32_t name) const noexcept {
    return static_cast<std::uint32_t>(std::uint64_t{name} >> row_bits_);
  }
  [[nodiscard]] constexpr RowNumber row(std::uint32_t name) const noexcept { return name & bound_; }

 private:
  unsigned row_bits_;
  RowNumber bound_;
};

}  // namespace embermesh
