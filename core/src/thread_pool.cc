// One list of open calls, one condition variable for sleeping workers. A call is a counter from which its caller and at
// most `n_threads - 1` workers take tasks; it is on the stack of the caller, which returns only when no worker is
// inside.
//
// Waking a sleeping thread takes as long as a small call, so an idle thread spins briefly before it sleeps: the steps
// of a training loop follow each other faster than that. It does not spin longer, because that takes time from other
// processes.
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

constexpr int kMaxThreads = 1024;  // guards against a typo in the environment

constexpr auto kSpinTime = std::chrono::microseconds(50);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waits for a condition for at most kSpinTime.
template <typename Condition>
void spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
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

  // Runs tasks until none is left; after an exception the remaining ones are dropped.
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
    close(call);  // no further worker can join
    if (call.inside != 0) {
      lock.unlock();
      spin_until([&] { return call.inside.load(std::memory_order_relaxed) == 0; });
      lock.lock();
      call.last_left.wait(lock, [&] { return call.inside == 0; });
    }
    if (!failure) failure = call.failure;
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // The mutex is held, here and below. If the system refuses another thread, the existing ones do the work.
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
        spin_until([&] { return n_open_.load(std::memory_order_relaxed) != 0; });
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
      if (--call.inside == 0) call.last_left.notify_one();  // under the lock: then the caller destroys the call
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Call*> open_;  // calls with seats left, oldest first
  std::atomic<std::size_t> n_open_{0};
  int n_workers_ = 0, n_asleep_ = 0;
};

// Never destroyed: workers sleep in it until the process ends. After fork a child has no workers and cannot rely on the
// state of the mutex, so it abandons the parent's pool and creates its own when it needs one.
std::atomic<Pool*> current_pool{nullptr};

#if !defined(_WIN32)
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });
#endif

Pool& pool() {
  Pool* existing = current_pool.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  Pool* fresh = new Pool;
  if (current_pool.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;  // another thread was first; this pool has no workers yet
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
std::atomic<int> counted_threads{0};  // 0: not counted yet; not a static local, whose lock a fork could leave locked

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
