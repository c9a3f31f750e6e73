#include "standby_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "huge_pages.h"
#include "shard_fixture.h"
#include "slab_pool.h"

namespace embermesh {
namespace {

constexpr std::size_t kChunk = StandbyMemory::kChunkBytes;

// Whether it became so within a time that only a defect outlasts.
bool soon(const std::function<bool()>& is_so) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool soon_has(const StandbyMemory& memory, std::size_t chunks) {
  return soon([&] { return memory.bytes() == chunks * kChunk; });
}

// Taken at once, so that the thread has no time to fill up in between.
std::vector<std::byte*> take(StandbyMemory& memory, std::size_t chunks) {
  std::vector<std::byte*> taken;
  for (std::size_t i = 0; i < chunks; ++i) taken.push_back(memory.take());
  return taken;
}

void give_back(StandbyMemory& memory, const std::vector<std::byte*>& chunks) {
  for (std::byte* const chunk : chunks) memory.give_back(chunk);
}

// How many of the chunk's 4-KiB pages are in memory; -1 if it is not mapped.
int resident_pages(std::byte* chunk) {
  std::vector<unsigned char> pages(kChunk / 4096);
  if (::mincore(chunk, kChunk, pages.data()) != 0) return -1;
  return std::accumulate(pages.begin(), pages.end(), 0,
                         [](int sum, unsigned char page) { return sum + (page & 1); });
}

TEST(StandbyMemory, FillsToTheAmountInWholeChunks) {
  const StandbyMemory memory(2 * kChunk + 1);
  EXPECT_TRUE(soon_has(memory, 3));
  EXPECT_EQ(memory.cold(), 0U);
}

TEST(StandbyMemory, WhatIsTakenIsAlignedDistinctAndInMemory) {
  StandbyMemory memory(5 * kChunk);
  ASSERT_TRUE(soon_has(memory, 5));
  const auto chunks = take(memory, 5);
  EXPECT_EQ(std::set(chunks.begin(), chunks.end()).size(), 5U);
  for (std::byte* const chunk : chunks) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(chunk) % kChunk, 0U);
    EXPECT_EQ(resident_pages(chunk), static_cast<int>(kChunk / 4096));
  }
  EXPECT_EQ(memory.cold(), 0U);
  give_back(memory, chunks);
}

TEST(StandbyMemory, CountsWhatNoChunkStoodByFor) {
  StandbyMemory memory;
  const auto chunks = take(memory, 3);
  for (std::byte* const chunk : chunks) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(chunk) % kChunk, 0U);
    std::memset(chunk, 1, kChunk);
  }
  EXPECT_EQ(memory.cold(), 3U);
  give_back(memory, chunks);
  EXPECT_EQ(memory.bytes(), 0U);
  for (std::byte* const chunk : chunks) EXPECT_EQ(resident_pages(chunk), -1);
}

TEST(StandbyMemory, AfterItWasFullOnceAQuarterIsKept) {
  StandbyMemory memory(8 * kChunk);
  ASSERT_TRUE(soon_has(memory, 8));
  const auto first = take(memory, 5);
  EXPECT_EQ(memory.bytes(), 3 * kChunk);  // still more than are to stand by: nothing is added
  const auto rest = take(memory, 3);
  EXPECT_TRUE(soon_has(memory, 2));
  give_back(memory, first);
  give_back(memory, rest);
  EXPECT_EQ(memory.bytes(), 2 * kChunk);
  EXPECT_EQ(memory.cold(), 0U);
}

TEST(StandbyMemory, AtLeastOneChunkIsKept) {
  StandbyMemory memory(kChunk);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(soon_has(memory, 1));
    give_back(memory, take(memory, 1));
  }
}

TEST(StandbyMemory, EndsWhileItFills) {
  for (int i = 0; i < 10; ++i) {
    const StandbyMemory memory(std::size_t{64} << 30);  // more than there is time for
  }
  StandbyMemory busy(std::size_t{64} << 30);
  ASSERT_TRUE(soon([&] { return busy.bytes() > 0; }));
}

TEST(StandbyMemory, ManyThreadsShareIt) {
  StandbyMemory memory(4 * kChunk);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&memory, thread] {
      const std::byte mine{static_cast<unsigned char>(thread)};
      for (int i = 0; i < 50; ++i) {
        const auto chunks = take(memory, 1 + i % 3);
        for (std::byte* const chunk : chunks) chunk[i] = mine;
        for (std::byte* const chunk : chunks) EXPECT_EQ(chunk[i], mine);
        give_back(memory, chunks);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(soon([&] { return memory.bytes() >= kChunk; }));
  EXPECT_LE(memory.bytes(), 4 * kChunk);
}

// The system maps nothing while one lives.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    ::getrlimit(RLIMIT_AS, &usual_);
    const rlimit none{0, usual_.rlim_max};
    ::setrlimit(RLIMIT_AS, &none);
  }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;
  ~NoMoreMemory() { ::setrlimit(RLIMIT_AS, &usual_); }

  // False in an emulator of programs, which takes the limit and doesn't set it.
  [[nodiscard]] static bool holds() {
    rlimit now{};
    return ::getrlimit(RLIMIT_AS, &now) == 0 && now.rlim_cur == 0;
  }

 private:
  rlimit usual_{};
};

TEST(StandbyMemory, WithoutMemoryToBeHadItKeepsWhatComesBackAndTriesAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs memory of its own";
#endif
  StandbyMemory memory(8 * kChunk);
  ASSERT_TRUE(soon_has(memory, 8));
  std::vector<std::byte*> chunks;
  {
    const NoMoreMemory limit;
    if (!NoMoreMemory::holds()) GTEST_SKIP() << "no limit of memory here";
    chunks = take(memory, 8);
    EXPECT_THROW(static_cast<void>(memory.take()), std::bad_alloc);
    EXPECT_EQ(memory.cold(), 1U);
    give_back(memory, chunks);
    EXPECT_EQ(memory.bytes(), 2 * kChunk);
    EXPECT_EQ(resident_pages(chunks[2]), -1);
    chunks = {memory.take()};
    EXPECT_EQ(memory.bytes(), kChunk);
  }
  give_back(memory, chunks);
  EXPECT_EQ(memory.bytes(), 2 * kChunk);
  chunks = take(memory, 2);
  EXPECT_TRUE(soon_has(memory, 2));
  give_back(memory, chunks);
}

TEST(StandbyMemory, EndsWithoutMemoryToBeHad) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs memory of its own";
#endif
  auto memory = std::make_unique<StandbyMemory>(kChunk);
  ASSERT_TRUE(soon_has(*memory, 1));
  const NoMoreMemory limit;
  if (!NoMoreMemory::holds()) GTEST_SKIP() << "no limit of memory here";
  unmap_pages(memory->take(), kChunk);  // not given back: the thread finds no other one
  EXPECT_THROW(static_cast<void>(memory->take()), std::bad_alloc);
  memory.reset();
}

TEST(StandbyMemory, APoolGivesItsChunksBack) {
  StandbyMemory memory(4 * kChunk);
  ASSERT_TRUE(soon_has(memory, 4));
  {
    SlabPool pool(kChunk / 2, memory);
    std::vector<std::byte*> slabs;
    for (int i = 0; i < 8; ++i) slabs.push_back(pool.acquire());
    EXPECT_EQ(std::set(slabs.begin(), slabs.end()).size(), 8U);
    EXPECT_EQ(memory.cold(), 0U);
    pool.release(slabs);
    pool.trim();
    EXPECT_EQ(pool.mapped_bytes(), 0U);
  }
  EXPECT_TRUE(soon_has(memory, 1));
}

TEST(StandbyMemory, AShardGivesTheBitsOfOneWithout) {
  const auto memory = std::make_shared<StandbyMemory>(2 * kChunk);
  ASSERT_TRUE(soon_has(*memory, 2));
  SparseShard with(two_tables(), 4, 1, 1, memory);
  SparseShard without(two_tables(), 4, 1);
  constexpr std::uint32_t kKeys = 60000;  // of each table, and more memory than stands by
  std::vector<std::uint64_t> keys(2 * kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  EXPECT_EQ(pull(with, {kKeys, kKeys}, keys, true), pull(without, {kKeys, kKeys}, keys, true));
  std::vector<float> grads(
      with.request_floats(std::vector<std::uint32_t>{kKeys, kKeys}, 2 * kKeys));
  for (std::size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i % 17) - 8.0F;
  for (SparseShard* const shard : {&with, &without}) {
    shard->push(std::vector<std::uint32_t>{kKeys, kKeys}, keys, grads);
  }
  for (std::int64_t partition = 0; partition < 4; ++partition) {
    EXPECT_EQ(with.dump_partition(partition), without.dump_partition(partition));
  }
  EXPECT_EQ(with.bytes(), without.bytes());
  EXPECT_GT(with.bytes(), 2 * kChunk);
}

}  // namespace
}  // namespace embermesh
