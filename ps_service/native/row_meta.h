// Four bytes beside every row: when it was last seen, and how much it was used.
//
// Two layouts, by what the table's eviction needs to know:
//   time:  u32 Unix seconds of the last sighting
//   usage: u20 tick of the last sighting | u12 usage at that tick (a small float)
// Zero means "not seen yet" in both. A tick is `unit` seconds, and ticks are compared modulo 2^20:
// ages are right up to 2^19 ticks.
#pragma once

#include <cstdint>

namespace embermesh {

using RowMeta = std::uint32_t;

// Unsigned floats of 12 bits, 5 of exponent and 7 of mantissa: 0, 2^-16 ... 4,177,920, in steps of
// less than 1 %. Adding 1 again and again still counts right on average, because what lies between
// two of them is rounded up with just that probability.
namespace small_float {
inline constexpr int kBits = 12;
inline constexpr std::uint32_t kMax = (1U << kBits) - 1;
[[nodiscard]] double decode(std::uint32_t code) noexcept;
// Rounds `value` >= 0 down, or up if its place between the two neighbours exceeds `chance`, which
// is in [0, 1]: with a uniform one the mean is exact, with 1 it rounds down. The largest stays.
[[nodiscard]] std::uint32_t encode(double value, double chance) noexcept;
}  // namespace small_float

// 2^-x for x >= 0 with the same bits on every machine: no libm.
[[nodiscard]] double half_power(double x) noexcept;

// Reads and writes the four bytes of one table's rows. Immutable.
class RowMetaCodec {
 public:
  // What the four bytes say, independent of layout: the form in which they are stored in files.
  struct Record {
    std::uint32_t seen = 0;  // Unix seconds; 0 = not seen yet
    float usage = 0.0F;      // as of `seen`
  };

  // The time layout.
  RowMetaCodec() = default;
  // The usage layout: usage halves every `half_life` seconds (0: never); `unit` > 0 is in seconds.
  RowMetaCodec(double unit, double half_life) noexcept
      : unit_(unit), halvings_per_tick_(half_life > 0.0 ? unit / half_life : 0.0) {}

  [[nodiscard]] bool has_usage() const noexcept { return unit_ > 0.0; }

  // The row was seen at `seconds` (0: at an unknown time, which makes it no younger) and its usage
  // grows by `amount`. A late event makes no row older and adds what is left of its amount.
  // `bits` decides how usage is rounded.
  [[nodiscard]] RowMeta touch(RowMeta meta, std::uint32_t seconds, double amount,
                              std::uint64_t bits) const noexcept {
    if (unit_ == 0.0) return seconds > meta ? seconds : meta;
    return touch_usage(meta, seconds, amount, bits);
  }

  [[nodiscard]] bool was_seen(RowMeta meta) const noexcept {
    return (unit_ == 0.0 ? meta : meta >> small_float::kBits) != 0;
  }
  // Seconds since the last sighting, 0 for a row not seen yet or seen later than `now`.
  [[nodiscard]] double age(RowMeta meta, std::uint32_t now) const noexcept;
  // Usage decayed to `now`.
  [[nodiscard]] double usage(RowMeta meta, std::uint32_t now) const noexcept;

  // `now` is any time near the table's events.
  [[nodiscard]] Record unpack(RowMeta meta, std::uint32_t now) const noexcept;
  [[nodiscard]] RowMeta pack(const Record& record) const noexcept;

 private:
  [[nodiscard]] RowMeta touch_usage(RowMeta meta, std::uint32_t seconds, double amount,
                                    std::uint64_t bits) const noexcept;
  [[nodiscard]] std::uint32_t tick(std::uint32_t seconds) const noexcept;

  double unit_ = 0.0;  // seconds per tick; 0 = time layout
  double halvings_per_tick_ = 0.0;
};

}  // namespace embermesh
