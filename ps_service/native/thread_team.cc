#include "thread_team.h"

#include <utility>

namespace embermesh {

ThreadTeam::ThreadTeam(std::size_t size) {
  for (std::size_t member = 1; member < size; ++member) {
    workers_.emplace_back([this, member] { work(member); });
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

void ThreadTeam::run(const std::function<void(std::size_t)>& task) {
  if (!workers_.empty()) {
    const std::scoped_lock lock(mutex_);
    task_ = &task;
    running_ = workers_.size();
    ++round_;
    wake_.notify_all();
  }
  std::exception_ptr own;
  try {
    task(0);
  } catch (...) {
    own = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
  task_ = nullptr;
  const std::exception_ptr other = std::exchange(error_, nullptr);
  if (own) std::rethrow_exception(own);
  if (other) std::rethrow_exception(other);
}

void ThreadTeam::work(std::size_t member) {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    const auto* task = task_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*task)(member);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace embermesh
