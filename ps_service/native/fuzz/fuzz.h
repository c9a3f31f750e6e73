// What the fuzz targets share: the shapes of a small job, checksums made good, and a way to take an
// input apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "crc32c.h"
#include "sparse_shard.h"

namespace embermesh::fuzz {

inline constexpr std::uint32_t kPartitions = 4;

// One of them has 16-bit weights, and its rows may be evicted.
inline std::vector<TableConfig> tables() {
  std::vector<TableConfig> out;
  out.emplace_back("a", 3, "adam", ParamMap{}, "uniform", ParamMap{}, UpdateOptions{}, "bf16");
  out.emplace_back("b", 5, "adagrad", ParamMap{}, "uniform", ParamMap{});
  out.front().rows = RowPolicy{"all", {}, RuleMap{{"lfu", {{"rows", 100.0}}}}};
  return out;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline constexpr std::uint32_t kNow = 1'800'000'000;

// Rows for a few keys of both tables, as training makes them.
inline void fill(SparseShard& shard) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 0; i < 24; ++i) keys.push_back(i % 5 == 0 ? ~i : i);
  const std::vector<std::uint32_t> counts = {12, 12};
  std::vector<float> values(shard.request_floats(counts, keys.size()));
  shard.pull(counts, keys, true, values.data(), {1, kNow});
}

// The input with a checksum that fits, so that what lies behind the checksum is tested too. An odd
// first byte leaves the input as it is; the byte itself is not part of it.
inline std::string block_of(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return {};
  std::string block(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1U) != 0 || block.size() < sizeof(std::uint32_t)) return block;
  block.resize(block.size() - sizeof(std::uint32_t));
  const std::uint32_t crc = masked_crc(crc32c(bytes_of(block)));
  block.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return block;
}

// Reads numbers off an input; zeros behind its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  template <class T>
  T next() {
    T value{};
    const std::size_t size = left_ < sizeof value ? left_ : sizeof value;
    std::memcpy(&value, data_, size);
    data_ += size;
    left_ -= size;
    return value;
  }

  // As many as there are, `limit` at most.
  template <class T>
  std::vector<T> some(std::size_t limit) {
    std::vector<T> out;
    while (left_ > 0 && out.size() < limit) out.push_back(next<T>());
    return out;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

// Says which promise was broken and stops the fuzzer.
#define FUZZ_CHECK(condition) \
  do {                        \
    if (!(condition)) {       \
      std::abort();           \
    }                         \
  } while (false)

}  // namespace embermesh::fuzz
