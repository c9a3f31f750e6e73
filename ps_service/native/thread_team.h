// A few threads that work on one request together.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace embermesh {

// The caller is one of the team. Thread-safe, but one task at a time: who finds the team busy works
// alone.
class ThreadTeam {
 public:
  // `size` >= 1 counts the caller. Throws std::system_error if threads cannot be had.
  explicit ThreadTeam(std::size_t size);
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam();

  [[nodiscard]] std::size_t size() const noexcept { return workers_.size() + 1; }

  // Its owner may call run(); empty if someone else has the team.
  [[nodiscard]] std::unique_lock<std::mutex> try_take() {
    return std::unique_lock(taken_, std::try_to_lock);
  }

  // Calls task(0), ..., task(size() - 1), each on its own thread, and returns when all have ended.
  // Rethrows one of their exceptions.
  void run(const std::function<void(std::size_t)>& task);

 private:
  void work(std::size_t member);

  std::mutex taken_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::size_t)>* task_ = nullptr;
  std::size_t round_ = 0;
  std::size_t running_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace embermesh
