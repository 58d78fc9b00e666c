// arena.h: alignment, release to a mark, reuse of memory.
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "arena.h"
#include "check.h"

using namespace softwood;

static void allocations_are_aligned_and_apart() {
  Arena arena;
  std::vector<std::pair<char*, int>> pieces;
  for (int size : {1, 63, 64, 65, 1000, 1 << 16, 1 << 20, 3}) {
    char* piece = arena.allocate<char>(size);
    CHECK(reinterpret_cast<std::uintptr_t>(piece) % 64 == 0);
    std::memset(piece, size % 251, static_cast<std::size_t>(size));
    pieces.emplace_back(piece, size);
  }
  for (const auto& [piece, size] : pieces) {
    bool intact = true;
    for (int i = 0; i < size; ++i) intact &= piece[i] == static_cast<char>(size % 251);
    CHECK(intact);
  }
  CHECK(arena.n_bytes() >= (1 << 20) + (1 << 16));
}

static void release_goes_back_to_the_mark() {
  Arena arena;
  arena.allocate<double>(10);
  const Arena::Mark mark = arena.mark();
  float* first = arena.allocate<float>(100);
  for (int i = 0; i < 40; ++i) arena.allocate<float>(10000);
  arena.release(mark);
  CHECK(arena.allocate<float>(100) == first);
  arena.clear();
  CHECK(arena.n_bytes() == 0);
}

static void memory_is_used_again_by_the_next_arena() {
  std::set<void*> seen;
  for (int round = 0; round < 10; ++round) {
    Arena arena;
    seen.insert(arena.allocate<char>(1 << 18));
  }
  CHECK(seen.size() == 1);
}

static void a_moved_arena_owns_the_memory() {
  Arena from;
  int* value = from.allocate<int>(1);
  *value = 42;
  Arena to = std::move(from);
  CHECK(from.n_bytes() == 0);
  CHECK(to.n_bytes() > 0);
  CHECK(*value == 42);
}

static void many_threads_share_the_pool() {
  std::vector<std::thread> threads;
  std::vector<int> intact(4, 1);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &intact] {
      for (int round = 0; round < 300; ++round) {
        Arena arena;
        int* values = arena.allocate<int>(30000);
        for (int i = 0; i < 30000; i += 100) values[i] = t;
        for (int i = 0; i < 30000; i += 100) intact[static_cast<std::size_t>(t)] &= values[i] == t;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(intact == std::vector<int>(4, 1));
}

int main() {
  allocations_are_aligned_and_apart();
  release_goes_back_to_the_mark();
  memory_is_used_again_by_the_next_arena();
  a_moved_arena_owns_the_memory();
  many_threads_share_the_pool();
  return softwood::testing::report();
}
