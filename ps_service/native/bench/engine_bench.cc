// Measures the engine beside the limit of the memory bus and std::unordered_map, in one process and
// in turn, and prints one JSON object of medians. Usage: engine_bench [rows [rounds [cpu]]]
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>

#include "huge_pages.h"
#include "limit.h"
#include "sparse_shard.h"
#include "workload.h"

namespace embermesh::bench {
namespace {

constexpr std::size_t kRequest = 100'000;
constexpr std::size_t kBatches = 8;
constexpr std::size_t kDim = 16;
constexpr std::int64_t kPartitions = 1024;

bool use_cpu_time = false;

double now() {
  timespec t{};
  clock_gettime(use_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

TableConfig table() { return {"t", kDim, "adagrad", {{"lr", 0.05}}, "uniform", {}}; }

// Sides whose rates, in million keys/s, are measured in turn: one call of each per round.
class Contest {
 public:
  void add(std::string name, std::size_t keys, std::function<void(std::size_t round)> call) {
    sides_.push_back(Side{std::move(name), keys, std::move(call), {}});
  }

  void run(std::size_t rounds, std::map<std::string, double>& results) {
    for (std::size_t round = 0; round < rounds + 1; ++round) {
      for (Side& side : sides_) {
        const double start = now();
        side.call(round);
        const double rate = static_cast<double>(side.keys) / (now() - start) / 1e6;
        if (round > 0) side.rates.push_back(rate);  // the first round warms up
      }
    }
    for (const Side& side : sides_) results[side.name] = median(side.rates);
  }

 private:
  struct Side {
    std::string name;
    std::size_t keys;
    std::function<void(std::size_t)> call;
    std::vector<double> rates;
  };
  std::vector<Side> sides_;
};

class EngineBench {
 public:
  EngineBench(std::size_t rows, std::size_t rounds)
      : rows_(rows),
        rounds_(rounds),
        limit_(rows, 2),
        values_(kRequest * kDim),
        grads_(kRequest * kDim, 1e-3F) {}

  void run() {
    fill();
    measure("", uniform_batches(rows_, kBatches, kRequest));
    measure("_zipf", zipf_batches(rows_, kBatches, kRequest, 1.05));
    shards_.pop_back();  // that of two threads
    measure_eviction();
    print();
  }

 private:
  // Fills the shards with all rows; the median rate of one is `insert_mkeys`.
  void fill() {
    shards_.push_back(std::make_unique<SparseShard>(std::vector{table()}, kPartitions, 1, 1));
    shards_.push_back(std::make_unique<SparseShard>(std::vector{table()}, kPartitions, 1, 2));
    std::vector<std::vector<double>> rates(2);
    for (std::size_t first = 0; first < rows_; first += kRequest) {
      Numbers numbers(std::min(kRequest, rows_ - first));
      std::iota(numbers.begin(), numbers.end(), first);
      const Numbers keys = keys_for(numbers);
      for (std::size_t s = 0; s < 2; ++s) {
        const double start = now();
        pull(s, keys, true);
        rates[s].push_back(static_cast<double>(keys.size()) / (now() - start) / 1e6);
      }
    }
    results_["insert_mkeys"] = median(rates[0]);
    results_["insert_mkeys_2t"] = median(rates[1]);
    results_["bytes_per_row"] =
        static_cast<double>(shards_[0]->bytes()) / static_cast<double>(rows_);
  }

  void measure(const std::string& variant, const std::vector<Numbers>& batches) {
    std::vector<Numbers> keys;
    std::vector<std::vector<std::uint32_t>> places;
    for (const Numbers& batch : batches) {
      keys.push_back(keys_for(batch));
      auto& of_batch = places.emplace_back();
      for (const std::uint64_t number : batch) of_batch.push_back(limit_.place_of(number));
    }
    const auto read = [&](std::size_t round, std::size_t lines, std::size_t part,
                          std::size_t parts) {
      const auto all = std::span<const std::uint32_t>(places[round % kBatches]);
      const std::size_t size = all.size() / parts;
      sink_ = sink_ + limit_.read(all.subspan(part * size, size), lines);
    };
    const auto read_by_two = [&](std::size_t round, std::size_t lines) {
      std::thread other([&] { read(round, lines, 1, 2); });
      read(round, lines, 0, 2);
      other.join();
    };
    Contest contest;
    contest.add("limit_pull_mkeys" + variant, kRequest, [&](std::size_t r) { read(r, 1, 0, 1); });
    contest.add("pull_mkeys" + variant, kRequest,
                [&](std::size_t r) { pull(0, keys[r % kBatches], false); });
    contest.add("limit_push_mkeys" + variant, kRequest, [&](std::size_t r) { read(r, 2, 0, 1); });
    contest.add("push_mkeys" + variant, kRequest,
                [&](std::size_t r) { push(0, keys[r % kBatches]); });
    contest.add("limit_pull_mkeys" + variant + "_2t", kRequest,
                [&](std::size_t r) { read_by_two(r, 1); });
    contest.add("pull_mkeys" + variant + "_2t", kRequest,
                [&](std::size_t r) { pull(1, keys[r % kBatches], false); });
    contest.add("push_mkeys" + variant + "_2t", kRequest,
                [&](std::size_t r) { push(1, keys[r % kBatches]); });
    contest.run(rounds_, results_);
  }

  void measure_eviction() {
    const std::size_t before = resident_bytes();
    for (std::size_t first = 0; first < rows_; first += kRequest) {
      Numbers numbers;
      for (std::size_t n = first; n < std::min(first + kRequest, rows_); ++n) {
        if (mix64(n) % 10 != 0) numbers.push_back(n);
      }
      const Numbers keys = keys_for(numbers);
      shards_[0]->erase(count(keys), keys);
    }
    shards_[0]->compact();
    const std::size_t after = resident_bytes();
    // The limit's arrays and the benchmark's own are no part of the engine.
    results_["resident_before_mb"] = static_cast<double>(before) / 1e6;
    results_["resident_after_mb"] = static_cast<double>(after) / 1e6;
  }

  void pull(std::size_t shard, const Numbers& keys, bool insert) {
    shards_[shard]->pull(count(keys), keys, insert, values_.data());
  }
  void push(std::size_t shard, const Numbers& keys) {
    shards_[shard]->push(count(keys), keys, grads_);
  }
  static std::vector<std::uint32_t> count(const Numbers& keys) {
    return {static_cast<std::uint32_t>(keys.size())};
  }

  void print() const {
    std::printf("{");
    const char* comma = "";
    for (const auto& [name, value] : results_) {
      std::printf("%s\n \"%s\": %.4g", comma, name.c_str(), value);
      comma = ",";
    }
    std::printf("\n}\n");
  }

  std::size_t rows_;
  std::size_t rounds_;
  Limit limit_;
  std::vector<std::unique_ptr<SparseShard>> shards_;
  std::vector<float> values_;
  std::vector<float> grads_;
  volatile std::uint64_t sink_ = 0;
  std::map<std::string, double> results_;
};

}  // namespace
}  // namespace embermesh::bench

int main(int argc, char** argv) {
  const std::size_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  const std::size_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 15;
  embermesh::bench::use_cpu_time = argc > 3;
  embermesh::bench::EngineBench(rows, rounds).run();
}
