#include "unique_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "hash.h"

namespace embermesh {
namespace {

using Hash = std::uint64_t (*)(std::uint64_t key);

std::uint64_t real_hash(std::uint64_t key) { return row_hash(table_salt(0), key); }
// Of which many keys share a tag, or a cell, or both.
std::uint64_t same_tag(std::uint64_t key) { return real_hash(key) & 0xFFFFFFFF; }
std::uint64_t few_cells(std::uint64_t key) { return real_hash(key) & ~0xFFFFFFF8ULL; }
std::uint64_t few_hashes(std::uint64_t key) { return real_hash(key) & 0x7; }

// The numbers of `keys` in order of first occurrence, by the set and by a map.
void expect_numbers_of_a_map(UniqueSet& set, const std::vector<std::uint64_t>& keys, Hash hash) {
  std::vector<std::uint64_t> distinct(keys.size());
  std::vector<std::int32_t> numbers(keys.size(), -7);
  std::vector<std::uint64_t> shown;
  set.begin(keys.size());
  for (std::size_t first = 0; first < keys.size(); first += UniqueSet::kBlock) {
    const std::size_t size = std::min<std::size_t>(UniqueSet::kBlock, keys.size() - first);
    const std::span block = std::span(keys).subspan(first, size);
    std::vector<std::uint64_t> hashes(size);
    std::ranges::transform(block, hashes.begin(), hash);
    set.prefetch(hashes);
    set.number_block(block, hashes.data(), numbers.data() + first, distinct.data(),
                     [&shown](std::uint32_t number, std::uint64_t hash_of_new) {
                       ASSERT_EQ(number, shown.size());
                       shown.push_back(hash_of_new);
                     });
  }
  std::unordered_map<std::uint64_t, std::int32_t> expected;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto number = static_cast<std::int32_t>(expected.size());
    const auto [at, is_new] = expected.try_emplace(keys[i], number);
    ASSERT_EQ(numbers[i], at->second) << i;
    if (!is_new) continue;
    ASSERT_EQ(distinct[static_cast<std::size_t>(number)], keys[i]);
    ASSERT_EQ(shown.at(static_cast<std::size_t>(number)), hash(keys[i]));
  }
  ASSERT_EQ(set.size(), expected.size());
  for (std::size_t first = 0; first <= keys.size(); first += 50) {
    const std::span some =
        std::span(keys).subspan(first, std::min<std::size_t>(50, keys.size() - first));
    std::vector<std::uint64_t> asked(some.begin(), some.end());
    asked.push_back(1'000'000 + first);  // no key
    std::vector<std::uint64_t> hashes(asked.size());
    std::ranges::transform(asked, hashes.begin(), hash);
    std::vector<std::int32_t> found(asked.size(), -7);
    set.find_block(asked, hashes.data(), found.data(), distinct.data());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto at = expected.find(asked[i]);
      ASSERT_EQ(found[i], at == expected.end() ? -1 : at->second) << asked[i];
    }
  }
}

TEST(UniqueSet, NumbersKeysAsAMapWould) {
  std::mt19937_64 random(1);
  UniqueSet set;  // one for all, so that cells of former sets lie about
  for (const Hash hash : {&real_hash, &same_tag, &few_cells, &few_hashes}) {
    const std::size_t most = hash == &few_hashes || hash == &few_cells ? 400 : 3000;
    for (int round = 0; round < 60; ++round) {
      std::vector<std::uint64_t> keys(random() % most);
      const std::uint64_t range = 1 + random() % (2 * most);  // from one key to hardly an equal one
      for (auto& key : keys) key = random() % range - 1;      // 2^64 - 1 among them
      ASSERT_NO_FATAL_FAILURE(expect_numbers_of_a_map(set, keys, hash)) << round;
    }
  }
}

// Blocks of new keys alone, which are not looked up first, and blocks of known ones in turn.
TEST(UniqueSet, NumbersBlocksOfNewAndOfKnownKeys) {
  UniqueSet set;
  std::vector<std::uint64_t> keys;
  for (std::uint64_t block = 0; block < 12; ++block) {
    const std::uint64_t first = block % 3 == 2 ? 0 : block * UniqueSet::kBlock;
    for (std::uint64_t i = 0; i < UniqueSet::kBlock; ++i) keys.push_back(first + i);
  }
  expect_numbers_of_a_map(set, keys, &real_hash);
  expect_numbers_of_a_map(set, {}, &real_hash);
}

}  // namespace
}  // namespace embermesh
