// Sides that are measured in turn, one call of each per round, so that a slow second of the machine
// hits all of them alike.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace embermesh::bench {

// Medians by name; rates are in million keys per second of wall-clock time.
using Results = std::map<std::string, double>;

inline double seconds_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

class Contest {
 public:
  using Call = std::function<void(std::size_t round)>;

  // `prepare` comes before each call and is not timed.
  void add(std::string name, std::size_t keys, Call call, Call prepare = [](std::size_t) {}) {
    sides_.push_back(Side{std::move(name), keys, std::move(call), std::move(prepare), {}});
  }

  // The first round warms up and does not count.
  void run(std::size_t rounds, Results& results) {
    for (std::size_t round = 0; round <= rounds; ++round) {
      for (Side& side : sides_) {
        side.prepare(round);
        const double start = seconds_now();
        side.call(round);
        const double rate = static_cast<double>(side.keys) / (seconds_now() - start) / 1e6;
        if (round > 0) side.rates.push_back(rate);
      }
    }
    for (const Side& side : sides_) results[side.name] = median(side.rates);
  }

 private:
  struct Side {
    std::string name;
    std::size_t keys;
    Call call;
    Call prepare;
    std::vector<double> rates;
  };

  std::vector<Side> sides_;
};

}  // namespace embermesh::bench
