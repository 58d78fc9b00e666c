// thread_pool.h: each task runs once, on no more threads than allowed; calls from many threads, nested calls,
// exceptions, and calls after fork.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "softwood/thread_pool.h"

using namespace softwood;

static void each_task_runs_once() {
  for (int n_threads : {1, 2, 3, 8}) {
    for (int n_tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n_tasks));
      parallel_for(n_tasks, n_threads, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
      CHECK(std::all_of(runs.begin(), runs.end(), [](const auto& count) { return count == 1; }));
    }
  }
}

// Tasks that wait for one another: they only finish if there are as many threads as tasks.
static void threads_work_at_the_same_time() {
  std::atomic<int> arrived{0};
  std::atomic<bool> all_met{true};
  parallel_for(4, 4, [&](std::int64_t) {
    ++arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (arrived < 4 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (arrived < 4) all_met = false;
  });
  CHECK(all_met);
}

static void the_bound_on_threads_holds() {
  parallel_for(8, 8, [](std::int64_t) {});  // the pool has more workers than the next call may use
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> inside{0}, most{0};
  parallel_for(60, 3, [&](std::int64_t) {
    const int now = ++inside;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    --inside;
    std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  CHECK(most <= 3);
  CHECK(ids.size() <= 3);
}

static void one_thread_is_the_caller() {
  const auto caller = std::this_thread::get_id();
  bool elsewhere = false;
  parallel_for(100, 1, [&](std::int64_t) { elsewhere |= std::this_thread::get_id() != caller; });
  CHECK(!elsewhere);
}

static void many_callers_at_once() {
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) parallel_for(17, 1 + round % 4, [&](std::int64_t i) { total += i; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total == 6 * 200 * (16 * 17 / 2));
}

static void calls_may_be_nested() {
  std::atomic<int> count{0};
  parallel_for(6, 3, [&](std::int64_t) { parallel_for(5, 3, [&](std::int64_t) { ++count; }); });
  CHECK(count == 30);
}

static void an_exception_reaches_the_caller() {
  for (int n_threads : {1, 4}) {
    bool caught = false;
    try {
      parallel_for(100, n_threads, [](std::int64_t i) {
        if (i == 37) throw std::runtime_error("37");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught);
    std::atomic<int> count{0};
    parallel_for(10, n_threads, [&](std::int64_t) { ++count; });
    CHECK(count == 10);
  }
}

[[maybe_unused]] static void a_child_after_fork_has_threads_of_its_own() {
  parallel_for(8, 4, [](std::int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a deadlock ends the child
    std::atomic<int> arrived{0};
    parallel_for(2, 2, [&](std::int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    _exit(arrived == 2 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void the_default_can_be_set_and_reset() {
  const int by_default = num_threads();
  CHECK(by_default >= 1);
  set_num_threads(5);
  CHECK(num_threads() == 5);
  set_num_threads(0);
  CHECK(num_threads() == by_default);
}

int main() {
  each_task_runs_once();
  threads_work_at_the_same_time();
  the_bound_on_threads_holds();
  one_thread_is_the_caller();
  many_callers_at_once();
  calls_may_be_nested();
  an_exception_reaches_the_caller();
#if defined(__SANITIZE_THREAD__) || defined(SOFTWOOD_IN_EMULATOR)
  std::puts("skipped: a child after fork. Neither the thread sanitizer nor QEMU supports threads that it starts.");
#else
  a_child_after_fork_has_threads_of_its_own();
#endif
  the_default_can_be_set_and_reset();
  return softwood::testing::report();
}
