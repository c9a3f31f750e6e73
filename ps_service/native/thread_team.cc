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
  Work work(items, task);
  team_->run(work);
  if (work.error()) std::rethrow_exception(work.error());
}

void ThreadTeam::Work::take_part() noexcept {
  for (;;) {
    const std::size_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) return;
    try {
      (*task_)(item);
    } catch (...) {
      next_.store(items_, std::memory_order_relaxed);
      const std::scoped_lock lock(failing_);
      error_ = std::current_exception();
    }
  }
}

ThreadTeam::ThreadTeam(std::size_t size) {
  for (std::size_t member = 1; member < size; ++member) {
    workers_.emplace_back([this] { stay(); });
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
  work.take_part();
  {
    const std::scoped_lock lock(mutex_);
    work_ = nullptr;  // who comes now comes too late
  }
  look_out_for([this] { return active_.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return active_ == 0; });
}

void ThreadTeam::stay() {
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
    work->take_part();
    lock.lock();
    if (--active_ == 0) done_.notify_one();
  }
}

}  // namespace embermesh
