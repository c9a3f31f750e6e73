// Keys of the benchmark: numbers 0 to rows - 1, drawn uniformly or by Zipf's law.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "hash.h"

namespace embermesh::bench {

using Numbers = std::vector<std::uint64_t>;

// The key of a number; the number itself would be an easy key.
inline std::uint64_t key_for(std::uint64_t number) { return mix64(number + 0x9E3779B97F4A7C15ULL); }

inline Numbers keys_for(const Numbers& numbers) {
  Numbers keys(numbers.size());
  std::ranges::transform(numbers, keys.begin(), key_for);
  return keys;
}

inline std::vector<Numbers> uniform_batches(std::size_t rows, std::size_t batches,
                                            std::size_t size) {
  std::mt19937_64 random(1);
  std::vector<Numbers> all(batches, Numbers(size));
  for (Numbers& batch : all) {
    for (std::uint64_t& number : batch) number = random() % rows;
  }
  return all;
}

// P(rank r) ~ (r + 1)^-exponent.
inline std::vector<Numbers> zipf_batches(std::size_t rows, std::size_t batches, std::size_t size,
                                         double exponent) {
  std::vector<double> cumulative(rows);
  double sum = 0.0;
  for (std::size_t r = 0; r < rows; ++r) {
    sum += std::pow(static_cast<double>(r + 1), -exponent);
    cumulative[r] = sum;
  }
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(0.0, sum);
  std::vector<Numbers> all(batches, Numbers(size));
  for (Numbers& batch : all) {
    for (std::uint64_t& number : batch) {
      const auto at = std::ranges::upper_bound(cumulative, uniform(random));
      const auto rank = std::min<std::size_t>(at - cumulative.begin(), rows - 1);
      number = rank * 7368787 % rows;  // 7368787 is odd and prime to 10^7: frequent ones spread
    }
  }
  return all;
}

}  // namespace embermesh::bench
