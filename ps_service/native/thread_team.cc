#include "thread_team.h"

#include <utility>

namespace embermesh {
namespace {

// Lets `condition` come true for some 50 microseconds without giving up the core: as long as it
// takes to wake a sleeping thread.
template <class Condition>
void look_out_for(const Condition& condition) noexcept {
  constexpr int kLooks = 1000;
  for (int i = 0; i < kLooks && !condition(); ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }
}

}  // namespace

ThreadTeam::Lease::Lease(ThreadTeam& team) {
  if (team.size() == 1) return;
  taken_ = std::unique_lock(team.taken_, std::try_to_lock);
  if (!taken_) return;
  team_ = &team;
  team.is_leased_.store(true, std::memory_order_relaxed);
}

ThreadTeam::Lease::~Lease() {
  if (team_ != nullptr) team_->is_leased_.store(false, std::memory_order_relaxed);
}

void ThreadTeam::Lease::run(std::size_t items, const Task& task) const {
  if (team_ == nullptr || items < 2) {
    for (std::size_t item = 0; item < items; ++item) task(item);
    return;
  }
  Work work(items, task, team_->nexts_);
  team_->run(work);
  if (work.error()) std::rethrow_exception(work.error());
}

ThreadTeam::Work::Work(std::size_t items, const Task& task, std::span<Next> nexts) noexcept
    : items_(items), task_(&task), nexts_(nexts) {
  for (std::size_t member = 0; member < nexts.size(); ++member) {
    nexts[member].item.store(first_item(member), std::memory_order_relaxed);
  }
}

void ThreadTeam::Work::take_part(std::size_t member) noexcept {
  for (std::size_t i = 0; i < nexts_.size(); ++i) {
    const std::size_t owner = (member + i) % nexts_.size();
    const std::size_t end = first_item(owner + 1);
    for (;;) {
      const std::size_t item = nexts_[owner].item.fetch_add(1, std::memory_order_relaxed);
      if (item >= end) break;
      try {
        (*task_)(item);
      } catch (...) {
        for (Next& next : nexts_) next.item.store(items_, std::memory_order_relaxed);
        const std::scoped_lock lock(failing_);
        error_ = std::current_exception();
      }
    }
  }
}

ThreadTeam::ThreadTeam(std::size_t size) : nexts_(size) {
  for (std::size_t member = 1; member < size; ++member) {
    workers_.emplace_back([this, member] { stay(member); });
  }
}

ThreadTeam::~ThreadTeam() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(Work& work) {
  {
    const std::scoped_lock lock(mutex_);
    work_ = &work;
    round_.fetch_add(1, std::memory_order_relaxed);
  }
  wake_.notify_all();
  work.take_part(0);
  {
    const std::scoped_lock lock(mutex_);
    work_ = nullptr;  // who comes now comes too late
  }
  look_out_for([this] { return active_.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return active_ == 0; });
}

void ThreadTeam::stay(std::size_t member) {
  std::uint64_t seen = 0;
  for (;;) {
    look_out_for([&] {
      return round_.load(std::memory_order_relaxed) != seen ||
             !is_leased_.load(std::memory_order_relaxed);
    });
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    Work* const work = work_;
    if (work == nullptr) continue;
    ++active_;
    lock.unlock();
    work->take_part(member);
    lock.lock();
    if (--active_ == 0) done_.notify_one();
  }
}

}  // namespace embermesh
