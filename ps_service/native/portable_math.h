// Elementary functions of which every machine computes the same bits: IEEE +, -, *, / only, never a
// libm function whose last digit is a matter of taste. Accurate to a few units in the last place.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace embermesh {

// Natural logarithm of a positive normal double by range reduction and the atanh series.
[[nodiscard]] inline double portable_log(double x) noexcept {
  constexpr double kLn2 = 0.6931471805599453;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  auto mantissa = std::bit_cast<double>((bits & kMantissa) | (std::uint64_t{1023} << 52));
  if (mantissa > 1.4142135623730951) {  // into [1/sqrt2, sqrt2], where the series is short
    mantissa *= 0.5;
    ++exponent;
  }
  const double t = (mantissa - 1.0) / (mantissa + 1.0);
  const double t2 = t * t;
  double series = 0.0;
  for (int k = 21; k >= 1; k -= 2) series = series * t2 + 1.0 / k;
  return exponent * kLn2 + 2.0 * t * series;
}

// e^x for x <= 0; 0 where the result would be below the normal doubles.
[[nodiscard]] inline double portable_exp(double x) noexcept {
  constexpr double kLn2High = 0.693147180369123816490;    // ln 2 in two parts: exponent * high is
  constexpr double kLn2Low = 1.90821492927058770002e-10;  // exact
  if (!(x > -708.0)) return 0.0;
  const auto exponent = static_cast<std::int64_t>(x / (kLn2High + kLn2Low) - 0.5);
  const auto power = static_cast<double>(exponent);
  const double rest = (x - power * kLn2High) - power * kLn2Low;  // within +- ln 2 / 2
  double series = 1.0;
  for (int k = 14; k >= 1; --k) series = 1.0 + rest / k * series;
  return series * std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// cos(pi * t) for 0 <= t <= 1, by the series of sin(pi * (1/2 - t)).
[[nodiscard]] inline double portable_cos_pi(double t) noexcept {
  constexpr double kPi = 3.141592653589793;
  const double x = kPi * (0.5 - t);
  double series = 1.0;
  for (int k = 22; k >= 2; k -= 2) series = 1.0 - x * x / (k * (k + 1)) * series;
  return x * series;
}

}  // namespace embermesh
