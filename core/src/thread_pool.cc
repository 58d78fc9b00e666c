// One list of open calls, one condition variable for sleeping workers. A call is a counter of tasks that its caller and
// at most `n_threads - 1` workers draw from; it lives on the caller's stack, who leaves only when no worker is inside.
#include "softwood/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace softwood {
namespace {

constexpr int kMaxThreads = 1024;  // against a typo in the environment, not a limit of the design

struct Call {
  Call(const std::function<void(std::int64_t)>& task, std::int64_t n_tasks, int seats)
      : task(task), n_tasks(n_tasks), seats(seats) {}

  const std::function<void(std::int64_t)>& task;
  const std::int64_t n_tasks;
  std::atomic<std::int64_t> next{0};
  // Guarded by the pool's mutex.
  int seats;       // workers that may still join
  int inside = 0;  // workers that joined and have not left
  std::exception_ptr failure;
  std::condition_variable last_left;

  // Draws tasks until none is left; after a failure the remaining ones are dropped.
  std::exception_ptr run() {
    for (;;) {
      const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= n_tasks) return nullptr;
      try {
        task(i);
      } catch (...) {
        next.store(n_tasks, std::memory_order_relaxed);
        return std::current_exception();
      }
    }
  }
};

class Pool {
 public:
  void run(Call& call) {
    const int n_wanted = call.seats;  // read before the workers can see the call
    {
      std::lock_guard lock(mutex_);
      start_workers(n_wanted);
      if (n_workers_ > 0) open_.push_back(&call);
    }
    for (int i = 0; i < n_wanted; ++i) work_.notify_one();
    std::exception_ptr failure = call.run();
    std::unique_lock lock(mutex_);
    std::erase(open_, &call);  // workers that come too late find it gone
    call.last_left.wait(lock, [&] { return call.inside == 0; });
    if (!failure) failure = call.failure;
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // The mutex is held. A system that refuses another thread leaves the caller with those it has.
  void start_workers(int n_wanted) {
    try {
      for (; n_workers_ < n_wanted; ++n_workers_) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return !open_.empty(); });
      Call& call = *open_.front();
      ++call.inside;
      if (--call.seats == 0) open_.pop_front();
      lock.unlock();
      std::exception_ptr failure = call.run();
      lock.lock();
      if (failure) call.failure = failure;
      if (--call.inside == 0) call.last_left.notify_one();  // under the lock: the caller frees the call after it
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Call*> open_;  // calls with seats left, oldest first
  int n_workers_ = 0;
};

// Never destroyed: workers sleep in it until the process ends. A child after fork has none of its parent's workers and
// cannot trust the state of its mutex, so it drops the parent's pool and makes its own at first need.
std::atomic<Pool*> current_pool{nullptr};

#if !defined(_WIN32)
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });
#endif

Pool& pool() {
  Pool* existing = current_pool.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  Pool* fresh = new Pool;
  if (current_pool.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;  // another thread was first; this one has no workers yet
  return *existing;
}

int available_cores() {
#if defined(__linux__)
  for (int n_cpus = 1024; n_cpus <= 1 << 20; n_cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(n_cpus);
    if (set == nullptr) break;
    const std::size_t n_bytes = CPU_ALLOC_SIZE(n_cpus);
    const bool known = sched_getaffinity(0, n_bytes, set) == 0;
    const bool too_small = !known && errno == EINVAL;  // the machine has more than n_cpus
    const int count = known ? CPU_COUNT_S(n_bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
    if (!too_small) break;
  }
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int default_threads() {
  if (const char* text = std::getenv("SOFTWOOD_NUM_THREADS")) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && value >= 1) return static_cast<int>(std::min<long>(value, kMaxThreads));
  }
  return std::min(available_cores(), kMaxThreads);
}

std::atomic<int> chosen_threads{0};   // 0: not chosen
std::atomic<int> counted_threads{0};  // 0: not counted yet; no static local, whose lock a fork could leave taken

}  // namespace

void parallel_for(std::int64_t n_tasks, int n_threads, const std::function<void(std::int64_t)>& task) {
  const std::int64_t n_useful = std::min<std::int64_t>({n_tasks, n_threads, kMaxThreads});
  if (n_useful <= 1) {
    for (std::int64_t i = 0; i < n_tasks; ++i) task(i);
    return;
  }
  Call call(task, n_tasks, static_cast<int>(n_useful - 1));
  pool().run(call);
}

int num_threads() {
  const int chosen = chosen_threads.load(std::memory_order_relaxed);
  if (chosen > 0) return chosen;
  int counted = counted_threads.load(std::memory_order_relaxed);
  if (counted == 0) {
    counted = default_threads();
    counted_threads.store(counted, std::memory_order_relaxed);
  }
  return counted;
}

void set_num_threads(int n_threads) {
  chosen_threads.store(std::clamp(n_threads, 0, kMaxThreads), std::memory_order_relaxed);
}

}  // namespace softwood
