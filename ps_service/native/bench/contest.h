// Sides that are measured in turn, one call of each per round, so that a slow second of the machine
// hits all of them alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace embermesh::bench {

// Medians by name; rates are in million keys per second.
using Results = std::map<std::string, double>;

// What one thread alone does is timed by the thread's own clock: the same as the wall's on a quiet
// machine, and on a busy one it leaves out the time that others had the core. The work of two
// threads has to be timed by the wall.
enum class Clock { kThread, kWall };

inline double seconds_now(Clock clock) {
  timespec time{};
  clock_gettime(clock == Clock::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
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
  void add(
      std::string name, Clock clock, std::size_t keys, Call call,
      Call prepare = [](std::size_t) {}) {
    sides_.push_back(Side{std::move(name), clock, keys, std::move(call), std::move(prepare), {}});
  }

  // The first round warms up and does not count.
  void run(std::size_t rounds, Results& results) {
    for (std::size_t round = 0; round <= rounds; ++round) {
      for (Side& side : sides_) {
        side.prepare(round);
        const double start = seconds_now(side.clock);
        side.call(round);
        const double rate =
            static_cast<double>(side.keys) / (seconds_now(side.clock) - start) / 1e6;
        if (round > 0) side.rates.push_back(rate);
      }
    }
    for (const Side& side : sides_) results[side.name] = median(side.rates);
  }

 private:
  struct Side {
    std::string name;
    Clock clock;
    std::size_t keys;
    Call call;
    Call prepare;
    std::vector<double> rates;
  };

  std::vector<Side> sides_;
};

}  // namespace embermesh::bench
