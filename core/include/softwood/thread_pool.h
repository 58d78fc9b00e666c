// A small thread pool: no OpenMP, so that it lives beside any framework's own.
//
// Threads are started at first need and sleep when there is nothing to do. The calling thread always takes tasks too,
// so that a call makes progress even when every worker is busy with another call. Safe to use from many threads at
// once, and in a child after fork (which starts threads of its own).
#pragma once

#include <cstdint>
#include <functional>

namespace softwood {

// Calls task(0), ..., task(n_tasks - 1), each once, on at most `n_threads` threads, and returns when all are done.
// Which thread runs which task is left open: results must not depend on it. If a task throws, tasks not yet begun are
// dropped and one of the exceptions is thrown from here once every thread has left the call.
void parallel_for(std::int64_t n_tasks, int n_threads, const std::function<void(std::int64_t)>& task);

// The number of threads used where a caller names none: what `set_num_threads` said last, else the environment variable
// SOFTWOOD_NUM_THREADS, else the cores this process may run on. Setting 0 returns to that default.
int num_threads();
void set_num_threads(int n_threads);

}  // namespace softwood
