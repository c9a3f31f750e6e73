#include "many_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "sparse_shard.h"
#include "workload.h"

namespace embermesh::bench {
namespace {

constexpr std::size_t kTables = 26;
constexpr std::size_t kSamples = 4096;
constexpr std::size_t kDim = 16;
constexpr std::size_t kBatches = 32;
constexpr std::int64_t kPartitions[] = {1024, 64};

// Values per slot: those of bench/workload.py, 10 to 2 M in equal ratios, but not above what makes
// 1.55 M rows of them, as many as training has after a while.
std::vector<std::size_t> cardinalities() {
  constexpr double kMost = 220'000;
  std::vector<std::size_t> all;
  for (std::size_t slot = 0; slot < kTables; ++slot) {
    const double exponent = static_cast<double>(slot) / (kTables - 1);
    all.push_back(static_cast<std::size_t>(std::min(kMost, 10.0 * std::pow(2e5, exponent))));
  }
  return all;
}

struct Batch {
  std::vector<std::uint32_t> counts;  // [kTables]
  Numbers keys;                       // table by table, each distinct
};

// Slot by slot, so that the tables of Zipf's law are made once.
std::vector<Batch> zipf_samples(std::span<const std::size_t> cardinality) {
  std::vector<Batch> batches(kBatches);
  for (std::size_t slot = 0; slot < kTables; ++slot) {
    std::size_t next = 0;
    const auto draws = zipf_batches(cardinality[slot], kBatches, kSamples, 1.05);
    for (Numbers numbers : draws) {
      std::ranges::sort(numbers);
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
      for (std::uint64_t& number : numbers) number = mix64(number << 8 | slot);
      std::ranges::sort(numbers);  // no order that its rows were made in
      Batch& batch = batches[next++];
      batch.counts.push_back(static_cast<std::uint32_t>(numbers.size()));
      batch.keys.insert(batch.keys.end(), numbers.begin(), numbers.end());
    }
  }
  return batches;
}

class Side {
 public:
  Side(std::size_t tables, std::int64_t partitions) : tables_(tables) {
    std::vector<TableConfig> configs;
    for (std::size_t table = 0; table < tables; ++table) {
      configs.emplace_back(std::to_string(table), kDim, "adagrad", ParamMap{{"lr", 0.05}},
                           "uniform", ParamMap{});
    }
    shard_ = std::make_unique<SparseShard>(std::move(configs), partitions, 1);
  }

  void fill(std::span<const std::size_t> cardinality) {
    constexpr std::size_t kPart = 20'000;
    for (std::size_t slot = 0; slot < kTables; ++slot) {
      for (std::size_t first = 0; first < cardinality[slot]; first += kPart) {
        Batch part{std::vector<std::uint32_t>(kTables, 0), {}};
        for (std::size_t n = first; n < std::min(first + kPart, cardinality[slot]); ++n) {
          part.keys.push_back(mix64(n << 8 | slot));
        }
        part.counts[slot] = static_cast<std::uint32_t>(part.keys.size());
        pull(part, true);
      }
    }
  }

  void pull(const Batch& batch, bool insert) {
    if (values_.size() < batch.keys.size() * kDim) values_.resize(batch.keys.size() * kDim);
    shard_->pull(counts_of(batch), batch.keys, insert, values_.data());
  }
  void push(const Batch& batch) {
    if (grads_.size() < batch.keys.size() * kDim) grads_.resize(batch.keys.size() * kDim, 1e-3F);
    shard_->push(counts_of(batch), batch.keys, std::span(grads_).first(batch.keys.size() * kDim));
  }
  [[nodiscard]] double bytes_per_row() const {
    double rows = 0;
    for (const std::uint64_t n : shard_->rows()) rows += static_cast<double>(n);
    return static_cast<double>(shard_->bytes()) / rows;
  }

 private:
  [[nodiscard]] std::vector<std::uint32_t> counts_of(const Batch& batch) const {
    if (tables_ == kTables) return batch.counts;
    return {static_cast<std::uint32_t>(batch.keys.size())};
  }

  std::size_t tables_;
  std::unique_ptr<SparseShard> shard_;
  std::vector<float> values_;
  std::vector<float> grads_;
};

}  // namespace

Results measure_many_tables(std::size_t rounds) {
  const auto cardinality = cardinalities();
  const auto batches = zipf_samples(cardinality);
  Results results;
  std::size_t keys = 0;
  for (const Batch& batch : batches) keys += batch.keys.size() / kBatches;
  results["many_tables_keys"] = static_cast<double>(keys);
  for (const std::int64_t partitions : kPartitions) {
    const std::string suffix = partitions == kPartitions[0] ? "" : "_64p";
    std::vector<std::unique_ptr<Side>> sides;
    Contest contest;
    for (const std::size_t tables : {kTables, std::size_t{1}}) {
      Side& side = *sides.emplace_back(std::make_unique<Side>(tables, partitions));
      side.fill(cardinality);
      const std::string name = tables == 1 ? "_one_table" : "_26_tables";
      results["bytes_per_row" + name + suffix] = side.bytes_per_row();
      contest.add("pull" + name + "_ns" + suffix, Clock::kThread, keys,
                  [&](std::size_t round) { side.pull(batches[2 * round % kBatches], false); });
      contest.add("push" + name + "_ns" + suffix, Clock::kThread, keys,
                  [&](std::size_t round) { side.push(batches[(2 * round + 1) % kBatches]); });
    }
    Results rates;
    contest.run(rounds, rates);
    for (const auto& [name, rate] : rates) results[name] = 1e3 / rate;
  }
  return results;
}

}  // namespace embermesh::bench
