// A small thread pool, without OpenMP, so that it does not interfere with those of frameworks.
//
// Threads are started when they are first needed and sleep when idle. The calling thread always takes tasks too, so a
// call makes progress even if every worker is busy with another call. Safe to use from many threads at once, and in a
// child process after fork, which starts threads of its own.
#pragma once

#include <cstdint>
#include <functional>

namespace softwood {

// Calls task(0), ..., task(n_tasks - 1), each once, on at most `n_threads` threads, and returns when all are done.
// Which thread runs which task is unspecified: results must not depend on it. If a task throws, tasks that have not
// begun are dropped, and one of the exceptions is rethrown when every thread has left the call.
void parallel_for(std::int64_t n_tasks, int n_threads, const std::function<void(std::int64_t)>& task);

// The default number of threads: the last value given to `set_num_threads`, otherwise the environment variable
// SOFTWOOD_NUM_THREADS, otherwise the number of cores this process may run on. Setting 0 restores that default.
int num_threads();
void set_num_threads(int n_threads);

}  // namespace softwood
