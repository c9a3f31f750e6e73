#include "thread_team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

namespace embermesh {
namespace {

using std::chrono_literals::operator""ms;

TEST(ThreadTeam, EveryItemOfEveryTaskIsDoneOnceBeforeRunReturns) {
  ThreadTeam team(4);
  for (std::size_t request = 0; request < 200; ++request) {
    const ThreadTeam::Lease lease = team.try_take();
    ASSERT_EQ(lease.size(), 4U);
    for (const std::size_t items : {0UL, 1UL, 3UL, 4UL, 50UL}) {
      std::vector<int> done(items, 0);  // plain: run() must order its writes before our reads
      lease.run(items, [&](std::size_t item) { ++done[item]; });
      ASSERT_EQ(std::ranges::count(done, 1), static_cast<std::ptrdiff_t>(items));
    }
  }
}

TEST(ThreadTeam, AnItemThatTakesLongKeepsNobodyFromTheOthers) {
  ThreadTeam team(2);
  const ThreadTeam::Lease lease = team.try_take();
  std::atomic<int> quick = 0;
  lease.run(100, [&](std::size_t item) {
    if (item > 0) {
      ++quick;
      return;
    }
    // Ends only if the other member does all the rest, so that this test hangs if it does not.
    while (quick < 99) std::this_thread::sleep_for(1ms);
  });
  EXPECT_EQ(quick, 99);
}

TEST(ThreadTeam, SleepersAreWokenForTheNextRequest) {
  ThreadTeam team(2);
  for (int request = 0; request < 3; ++request) {
    std::this_thread::sleep_for(5ms);  // long enough for the worker to sleep
    const ThreadTeam::Lease lease = team.try_take();
    std::atomic<int> there = 0;
    lease.run(2, [&](std::size_t) {
      ++there;
      while (there < 2) std::this_thread::sleep_for(1ms);
    });
    EXPECT_EQ(there, 2);
  }
}

TEST(ThreadTeam, WhoFindsItBusyWorksAlone) {
  ThreadTeam team(3);
  {
    const ThreadTeam::Lease first = team.try_take();
    const ThreadTeam::Lease second = team.try_take();
    EXPECT_EQ(first.size(), 3U);
    EXPECT_EQ(second.size(), 1U);
    std::set<std::thread::id> threads;
    std::vector<std::size_t> order;
    second.run(5, [&](std::size_t item) {
      threads.insert(std::this_thread::get_id());
      order.push_back(item);
    });
    EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
    EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  }
  EXPECT_EQ(team.try_take().size(), 3U);
}

TEST(ThreadTeam, AnExceptionReachesTheCallerAndTheTeamGoesOn) {
  ThreadTeam team(3);
  const ThreadTeam::Lease lease = team.try_take();
  for (const std::size_t bad : {0UL, 7UL, 19UL}) {
    std::atomic<int> ended = 0;
    const auto task = [&](std::size_t item) {
      if (item == bad) throw std::runtime_error(std::to_string(bad));
      ++ended;
    };
    EXPECT_THROW(lease.run(20, task), std::runtime_error);
    EXPECT_LT(ended, 20);
    ended = 0;
    lease.run(20, [&](std::size_t) { ++ended; });
    EXPECT_EQ(ended, 20);
  }
}

}  // namespace
}  // namespace embermesh
