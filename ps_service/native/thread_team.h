// A few threads that work on one request together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace embermesh {

// The caller is one of the team. A task is cut into items, and whoever is free takes the next one:
// a member that wakes late, or whose core is taken away, does less and nobody waits for it but for
// the item it has. Thread-safe, but one request at a time.
class ThreadTeam {
 public:
  using Task = std::function<void(std::size_t item)>;

  // The right to the team for the tasks of one request, or none. As long as it lasts, members that
  // have nothing to do look out for the next task for some microseconds before they sleep: waking
  // up takes longer than many a task.
  class Lease {
   public:
    Lease() = default;
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease();

    // How many work on a task; 1 without a team.
    [[nodiscard]] std::size_t size() const noexcept { return team_ == nullptr ? 1 : team_->size(); }

    // Calls task(0), ..., task(items - 1), begun in this order, and returns when all have ended. If
    // some throw, those that have not begun are left out, and one of the exceptions is rethrown.
    void run(std::size_t items, const Task& task) const;

   private:
    friend class ThreadTeam;
    explicit Lease(ThreadTeam& team);

    ThreadTeam* team_ = nullptr;
    std::unique_lock<std::mutex> taken_;
  };

  // `size` >= 1 counts the caller. Throws std::system_error if threads cannot be had.
  explicit ThreadTeam(std::size_t size);
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam();

  [[nodiscard]] std::size_t size() const noexcept { return workers_.size() + 1; }

  // None if someone else has the team.
  [[nodiscard]] Lease try_take() { return Lease(*this); }

 private:
  // A task while it runs; on the stack of its caller.
  class Work {
   public:
    Work(std::size_t items, const Task& task) noexcept : items_(items), task_(&task) {}
    // Does items until there are no more.
    void take_part() noexcept;
    // Of one of the items, once nobody takes part any more.
    [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }

   private:
    const std::size_t items_;
    const Task* task_;
    std::atomic<std::size_t> next_ = 0;
    std::mutex failing_;
    std::exception_ptr error_;
  };

  void run(Work& work);
  void stay();  // the life of a worker

  std::mutex taken_;
  std::atomic<bool> is_leased_ = false;
  std::mutex mutex_;  // guards work_ and stop_, and changes of round_ and active_
  std::condition_variable wake_;
  std::condition_variable done_;
  Work* work_ = nullptr;                  // null once all its items have begun
  std::atomic<std::uint64_t> round_ = 0;  // of work_
  std::atomic<std::size_t> active_ = 0;   // workers that take part in it
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace embermesh
