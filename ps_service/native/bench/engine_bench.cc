// Measures the engine beside the limit of the memory bus and std::unordered_map, and prints one
// JSON object of medians.
//
//   engine_bench speed ROWS ROUNDS    pull, push, insert: one thread and two
//   engine_bench evict ROWS           how resident memory falls when 90 % of the rows are erased
//   engine_bench tables ROUNDS        pull and push of a trainer's batch: 26 tables and one
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>

#include "contest.h"
#include "huge_pages.h"
#include "limit.h"
#include "many_tables.h"
#include "sparse_shard.h"
#include "workload.h"

namespace embermesh::bench {
namespace {

constexpr std::size_t kRequest = 100'000;
constexpr std::size_t kBatches = 128;  // so many that no call of a contest has one again
constexpr std::size_t kDim = 16;
constexpr std::int64_t kPartitions = 1024;
constexpr std::size_t kOneThread = 0;  // places in EngineBench::shards_
constexpr std::size_t kTwoThreads = 1;

std::unique_ptr<SparseShard> make_shard(std::int64_t threads) {
  const TableConfig table("t", kDim, "adagrad", {{"lr", 0.05}}, "uniform", {});
  return std::make_unique<SparseShard>(std::vector{table}, kPartitions, 1, threads);
}

std::vector<std::uint32_t> counts_of(const Numbers& keys) {
  return {static_cast<std::uint32_t>(keys.size())};
}

// Numbers first to first + kRequest, as far as there are so many rows.
Numbers next_numbers(std::size_t first, std::size_t rows) {
  Numbers numbers(std::min(kRequest, rows - first));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

void print(const Results& results) {
  const char* before = "{\n";
  for (const auto& [name, value] : results) {
    std::printf("%s \"%s\": %.5g", before, name.c_str(), value);
    before = ",\n";
  }
  std::printf("\n}\n");
}

class EngineBench {
 public:
  EngineBench(std::size_t rows, std::size_t rounds)
      : rows_(rows),
        rounds_(rounds),
        limit_(rows, 2),
        values_(reinterpret_cast<float*>(map_pages(std::size_t{8} << 20, SlabPool::kChunkBytes))),
        grads_(kRequest * kDim, 1e-3F) {
    shards_.push_back(make_shard(1));
    shards_.push_back(make_shard(2));
  }

  Results run() {
    fill();
    const auto uniform = uniform_batches(rows_, kBatches, kRequest);
    measure("", uniform);
    measure("_zipf", zipf_batches(rows_, kBatches, kRequest, 1.05));
    measure_insert();
    shards_.clear();
    measure_map(uniform);
    return results_;
  }

 private:
  void fill() {
    std::vector<double> rates;
    for (std::size_t first = 0; first < rows_; first += kRequest) {
      const Numbers keys = keys_for(next_numbers(first, rows_));
      const double start = seconds_now(Clock::kThread);
      pull(kOneThread, keys, true);
      rates.push_back(static_cast<double>(keys.size()) / (seconds_now(Clock::kThread) - start) /
                      1e6);
      pull(kTwoThreads, keys, true);
    }
    results_["fill_mkeys"] = median(rates);
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
    // Every call takes the next batch, and in a contest every shard is called equally often, and
    // the limit's memory not more often: a side whose rows another side has just used, or whose
    // memory is used more than others', would find more of it in the cache.
    std::size_t calls = 0;
    const auto next = [&] { return calls++ % kBatches; };
    const auto reads = [&](Contest& contest, std::size_t lines, std::size_t team) {
      const std::string name = lines == 1 ? "limit_pull_mkeys" : "limit_push_mkeys";
      contest.add(name + variant + (team == 1 ? "" : "_2t"),
                  team == 1 ? Clock::kThread : Clock::kWall, kRequest,
                  [&, lines, team](std::size_t) { read_limit(places[next()], lines, team); });
    };
    const auto pulls = [&](Contest& contest, const std::string& name, Clock clock,
                           std::size_t shard) {
      contest.add(name, clock, kRequest,
                  [&, shard](std::size_t) { pull(shard, keys[next()], false); });
    };
    const auto pushes = [&](Contest& contest, const std::string& name, Clock clock,
                            std::size_t shard) {
      contest.add(name, clock, kRequest, [&, shard](std::size_t) { push(shard, keys[next()]); });
    };
    Contest one;
    reads(one, 1, 1);
    pulls(one, "pull_mkeys" + variant, Clock::kThread, kOneThread);
    reads(one, 2, 1);
    pushes(one, "push_mkeys" + variant, Clock::kThread, kOneThread);
    one.run(rounds_, results_);
    Contest two;
    reads(two, 1, 2);
    pulls(two, "pull_wall_mkeys" + variant, Clock::kWall, kOneThread);
    pulls(two, "pull_mkeys" + variant + "_2t", Clock::kWall, kTwoThreads);
    pushes(two, "push_wall_mkeys" + variant, Clock::kWall, kOneThread);
    pushes(two, "push_mkeys" + variant + "_2t", Clock::kWall, kTwoThreads);
    two.run(rounds_, results_);
  }

  // New keys beside all rows, in memory that is there: those of the round before have been erased.
  void measure_insert() {
    Contest contest;
    for (const std::size_t shard : {kOneThread, kTwoThreads}) {
      const auto keys = [this](std::size_t round) {
        const std::size_t first = rows_ + round * kRequest;
        return keys_for(next_numbers(first, first + kRequest));
      };
      contest.add(
          shard == kOneThread ? "insert_mkeys" : "insert_mkeys_2t",
          shard == kOneThread ? Clock::kThread : Clock::kWall, kRequest,
          [&, shard](std::size_t) { pull(shard, fresh_, true); },
          [&, shard, keys](std::size_t round) {
            if (round > 0) shards_[shard]->erase({{kRequest}}, keys(round - 1));
            fresh_ = keys(round);
          });
    }
    contest.run(rounds_, results_);
  }

  void measure_map(const std::vector<Numbers>& batches) {
    std::unordered_map<std::uint64_t, std::vector<float>> map;
    for (std::size_t number = 0; number < rows_; ++number) {
      map.emplace(key_for(number), std::vector<float>(kDim, 0.5F));
    }
    std::vector<Numbers> keys;
    for (const Numbers& batch : batches) keys.push_back(keys_for(batch));
    Contest contest;
    contest.add("unordered_map_mkeys", Clock::kThread, kRequest, [&](std::size_t round) {
      float* out = values_;
      for (const std::uint64_t key : keys[round % kBatches]) {
        out = std::ranges::copy(map.find(key)->second, out).out;
      }
    });
    contest.run(rounds_, results_);
  }

  void read_limit(std::span<const std::uint32_t> places, std::size_t lines, std::size_t team) {
    const std::size_t part = places.size() / team;
    std::vector<std::thread> others;
    for (std::size_t member = 1; member < team; ++member) {
      others.emplace_back(
          [=, this] { sum_ += limit_.read(places.subspan(member * part, part), lines); });
    }
    sum_ += limit_.read(places.first(part), lines);
    for (std::thread& other : others) other.join();
  }

  void pull(std::size_t shard, const Numbers& keys, bool insert) {
    shards_[shard]->pull(counts_of(keys), keys, insert, values_);
  }
  void push(std::size_t shard, const Numbers& keys) {
    shards_[shard]->push(counts_of(keys), keys, grads_);
  }

  std::size_t rows_;
  std::size_t rounds_;
  Limit limit_;
  float* values_;  // aligned, so that the engine may stream into it; lives as long as the process
  std::vector<float> grads_;
  std::vector<std::unique_ptr<SparseShard>> shards_;
  Numbers fresh_;
  std::atomic<std::uint64_t> sum_ = 0;
  Results results_;
};

double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0;
  double resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

Results measure_eviction(std::size_t rows) {
  const double empty = resident_bytes();
  const auto shard = make_shard(1);
  std::vector<float> values(kRequest * kDim);
  for (std::size_t first = 0; first < rows; first += kRequest) {
    const Numbers keys = keys_for(next_numbers(first, rows));
    shard->pull(counts_of(keys), keys, true, values.data());
  }
  const double full = resident_bytes() - empty;
  const double start = seconds_now(Clock::kThread);
  for (std::size_t first = 0; first < rows; first += kRequest) {
    Numbers numbers = next_numbers(first, rows);
    std::erase_if(numbers, [](std::uint64_t n) { return mix64(n) % 10 == 0; });
    const Numbers keys = keys_for(numbers);
    shard->erase(counts_of(keys), keys);
  }
  const double erased = seconds_now(Clock::kThread) - start;
  shard->compact();
  return {{"evict_rss_drop", 1.0 - (resident_bytes() - empty) / full},
          {"evict_mrows_s", 0.9 * static_cast<double>(rows) / erased / 1e6}};
}

}  // namespace
}  // namespace embermesh::bench

int main(int argc, char** argv) {
  using namespace embermesh::bench;
  const std::string task = argc > 2 ? argv[1] : "";
  const std::size_t rows = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (task == "speed" && argc == 4) {
    print(EngineBench(rows, std::strtoull(argv[3], nullptr, 10)).run());
  } else if (task == "evict") {
    print(measure_eviction(rows));
  } else if (task == "tables") {
    print(measure_many_tables(rows));
  } else {
    std::fprintf(stderr, "usage: engine_bench speed ROWS ROUNDS | evict ROWS | tables ROUNDS\n");
    return 2;
  }
}
