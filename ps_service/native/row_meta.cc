#include "row_meta.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace embermesh {
namespace {

constexpr int kMantissaBits = 7;
constexpr std::uint32_t kMantissas = 1U << kMantissaBits;
constexpr int kBias = 10;
constexpr std::uint32_t kTicks = 1U << 20;

double power_of_two(int exponent) noexcept {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// later - earlier in [-2^19, 2^19).
std::int32_t ticks_between(std::uint32_t earlier, std::uint32_t later) noexcept {
  constexpr int kSpare = 12;
  return static_cast<std::int32_t>((later - earlier) << kSpare) >> kSpare;
}

}  // namespace

double small_float::decode(std::uint32_t code) noexcept {
  const auto exponent = static_cast<int>(code >> kMantissaBits);
  const std::uint32_t mantissa = code % kMantissas;
  if (exponent == 0) return mantissa * power_of_two(1 - kBias - kMantissaBits);
  return (kMantissas + mantissa) * power_of_two(exponent - kBias - kMantissaBits);
}

std::uint32_t small_float::encode(double value, double chance) noexcept {
  if (value >= decode(kMax)) return kMax;
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52) - 1023 + kBias;
  const int octave = std::max(exponent, 1);
  const double steps = value / power_of_two(octave - kBias - kMantissaBits);  // exact
  const double whole = std::floor(steps);
  const auto code =
      static_cast<std::uint32_t>(octave - 1) * kMantissas + static_cast<std::uint32_t>(whole);
  return code + (steps - whole > chance ? 1 : 0);
}

double half_power(double x) noexcept {
  constexpr double kLn2 = 0.6931471805599453;
  if (x >= 1000.0) return 0.0;
  const double whole = std::floor(x);
  const double t = (x - whole) * -kLn2;
  double series = 1.0;  // e^t for t in (-ln 2, 0], to 1e-16
  for (int k = 17; k >= 1; --k) series = 1.0 + series * t / k;
  return series * power_of_two(-static_cast<int>(whole));
}

// Tick 0 means "not seen", so the one second in a million that would get it is one tick late.
std::uint32_t RowMetaCodec::tick(std::uint32_t seconds) const noexcept {
  const auto wrapped = static_cast<std::uint64_t>(seconds / unit_) % kTicks;
  return wrapped == 0 ? 1 : static_cast<std::uint32_t>(wrapped);
}

RowMeta RowMetaCodec::touch_usage(RowMeta meta, std::uint32_t seconds, double amount,
                                  std::uint64_t bits) const noexcept {
  std::uint32_t seen = meta >> small_float::kBits;
  double usage = small_float::decode(meta & small_float::kMax);
  if (seconds != 0) {
    const std::uint32_t at = tick(seconds);
    const std::int32_t later = seen == 0 ? 0 : ticks_between(seen, at);
    if (later < 0) {
      amount *= half_power(-later * halvings_per_tick_);
    } else {
      if (later > 0 && halvings_per_tick_ > 0.0) usage *= half_power(later * halvings_per_tick_);
      seen = at;
    }
  }
  const double chance = (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
  return seen << small_float::kBits | small_float::encode(usage + amount, chance);
}

double RowMetaCodec::age(RowMeta meta, std::uint32_t now) const noexcept {
  if (!was_seen(meta) || now == 0) return 0.0;
  if (unit_ == 0.0) return now > meta ? now - meta : 0.0;
  return std::max(0, ticks_between(meta >> small_float::kBits, tick(now))) * unit_;
}

double RowMetaCodec::usage(RowMeta meta, std::uint32_t now) const noexcept {
  if (unit_ == 0.0) return 0.0;
  const double stored = small_float::decode(meta & small_float::kMax);
  if (!was_seen(meta) || now == 0 || halvings_per_tick_ == 0.0) return stored;
  const std::int32_t ticks = ticks_between(meta >> small_float::kBits, tick(now));
  return ticks <= 0 ? stored : stored * half_power(ticks * halvings_per_tick_);
}

RowMetaCodec::Record RowMetaCodec::unpack(RowMeta meta, std::uint32_t now) const noexcept {
  if (unit_ == 0.0) return {meta, 0.0F};
  Record record{0, static_cast<float>(small_float::decode(meta & small_float::kMax))};
  if (!was_seen(meta)) return record;
  const auto now_tick = static_cast<std::int64_t>(now / unit_);
  const auto wrapped = static_cast<std::uint32_t>(now_tick % kTicks);
  const std::int64_t seen = now_tick - ticks_between(meta >> small_float::kBits, wrapped);
  // The middle of the tick: rounding cannot push it into the one before.
  const double seconds = (static_cast<double>(std::max<std::int64_t>(seen, 0)) + 0.5) * unit_;
  record.seen = static_cast<std::uint32_t>(std::clamp(seconds, 1.0, 4294967295.0));
  return record;
}

RowMeta RowMetaCodec::pack(const Record& record) const noexcept {
  if (unit_ == 0.0) return record.seen;
  const double usage = record.usage > 0.0F ? record.usage : 0.0;  // also when it is not a number
  const std::uint32_t seen = record.seen == 0 ? 0 : tick(record.seen);
  return seen << small_float::kBits | small_float::encode(usage, 1.0);
}

}  // namespace embermesh
