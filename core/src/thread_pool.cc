// One list of open calls, one condition variable for sleeping workers. A call is a counter of tasks that its caller and
// at most `n_threads - 1` workers draw from; it lives on the caller's stack, who leaves only when no worker is inside.
//
// To wake a sleeping thread takes as long as a small call, so whoever has nothing to do looks around for a moment
// first: the steps of a training loop follow each other faster than that. The moment is short, because a thread that
// only looks takes time from other processes.
#include "softwood/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
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

constexpr auto kMoment = std::chrono::microseconds(50);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Looks for a moment whether a condition comes true.
template <typename Condition>
void look_for(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kMoment;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
}

struct Call {
  Call(const std::function<void(std::int64_t)>& task, std::int64_t n_tasks, int seats)
      : task(task), n_tasks(n_tasks), seats(seats) {}

  const std::function<void(std::int64_t)>& task;
  const std::int64_t n_tasks;
  std::atomic<std::int64_t> next{0};
  // Written under the pool's mutex.
  int seats;                   // workers that may still join
  std::atomic<int> inside{0};  // workers that joined and have not left
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
    int n_to_wake = call.seats;  // read before the workers can see the call
    {
      std::lock_guard lock(mutex_);
      start_workers(n_to_wake);
      if (n_workers_ > 0) open(call);
      n_to_wake = std::min(n_to_wake, n_asleep_);
    }
    for (int i = 0; i < n_to_wake; ++i) work_.notify_one();
    std::exception_ptr failure = call.run();
    std::unique_lock lock(mutex_);
    close(call);  // workers that come too late find it gone
    if (call.inside != 0) {
      lock.unlock();
      look_for([&] { return call.inside.load(std::memory_order_relaxed) == 0; });
      lock.lock();
      call.last_left.wait(lock, [&] { return call.inside == 0; });
    }
    if (!failure) failure = call.failure;
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // The mutex is held, here and below. A system that refuses another thread leaves the caller with those it has.
  void start_workers(int n_wanted) {
    try {
      for (; n_workers_ < n_wanted; ++n_workers_) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void open(Call& call) {
    open_.push_back(&call);
    n_open_.store(open_.size(), std::memory_order_relaxed);
  }

  void close(Call& call) {
    std::erase(open_, &call);
    n_open_.store(open_.size(), std::memory_order_relaxed);
  }

  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (open_.empty()) {
        lock.unlock();
        look_for([&] { return n_open_.load(std::memory_order_relaxed) != 0; });
        lock.lock();
        ++n_asleep_;
        work_.wait(lock, [&] { return !open_.empty(); });
        --n_asleep_;
      }
      Call& call = *open_.front();
      ++call.inside;
      if (--call.seats == 0) close(call);
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
  std::atomic<std::size_t> n_open_{0};
  int n_workers_ = 0, n_asleep_ = 0;
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
