// A few threads that work on one request together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace embermesh {

// The caller is one of the team. A task is cut into items. Each member has a range of them, the
// same for every task of as many items, so that it finds in its core's caches what it used in the
// request before; whoever is done with its own helps with the others'. So a member that wakes late,
// or whose core is taken away, does less, and nobody waits for it but for the item it has.
// Thread-safe, but one request at a time.
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

    // Calls task(0), ..., task(items - 1) and returns when all have ended; the caller begins with
    // the first, and alone it keeps this order. If some throw, those that have not begun are left
    // out, and one of the exceptions is rethrown.
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
  // The next item of a member's range, in a cache line of its own.
  struct alignas(64) Next {
    std::atomic<std::size_t> item = 0;
  };

  // A task while it runs; on the stack of its caller.
  class Work {
   public:
    // `nexts`: one for each member.
    Work(std::size_t items, const Task& task, std::span<Next> nexts) noexcept;
    // Does items until there are no more.
    void take_part(std::size_t member) noexcept;
    // Of one of the items, once nobody takes part any more.
    [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }

   private:
    // Where the member's range begins.
    [[nodiscard]] std::size_t first_item(std::size_t member) const noexcept {
      return items_ * member / nexts_.size();
    }

    const std::size_t items_;
    const Task* task_;
    const std::span<Next> nexts_;
    std::mutex failing_;
    std::exception_ptr error_;
  };

  void run(Work& work);
  void stay(std::size_t member);  // the life of a worker

  std::mutex taken_;
  std::atomic<bool> is_leased_ = false;
  std::mutex mutex_;  // guards work_ and stop_, and changes of round_ and active_
  std::condition_variable wake_;
  std::condition_variable done_;
  Work* work_ = nullptr;                  // null once all its items have begun
  std::atomic<std::uint64_t> round_ = 0;  // of work_
  std::atomic<std::size_t> active_ = 0;   // workers that take part in it
  bool stop_ = false;
  std::vector<Next> nexts_;  // of work_
  std::vector<std::thread> workers_;
};

}  // namespace embermesh
