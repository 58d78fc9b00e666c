// Scratch memory: allocation is an addition, release is a return to a mark, and in the steady state nothing is returned
// to the operating system. Memory comes in slabs from a pool that all arenas share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softwood {

class Arena {
 public:
  // A position to return to: everything allocated after it is released together.
  struct Mark {
    void* slab;
    std::size_t used;
  };

  Arena() = default;
  ~Arena() { clear(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  Arena(Arena&& other) noexcept : slab_(other.slab_), n_bytes_(other.n_bytes_) {
    other.slab_ = nullptr;
    other.n_bytes_ = 0;
  }

  // Uninitialised memory for `count` values, aligned to 64 bytes. Throws std::bad_alloc.
  template <typename T>
  T* allocate(std::int64_t count) {
    return static_cast<T*>(allocate_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }
  Mark mark() const;
  void release(Mark mark);
  void clear() { release({nullptr, 0}); }
  std::size_t n_bytes() const { return n_bytes_; }  // held, used or not

 private:
  struct Slab;
  void* allocate_bytes(std::size_t n_bytes);

  Slab* slab_ = nullptr;
  std::size_t n_bytes_ = 0;
};

// Releases what is allocated during its lifetime.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  const Arena::Mark mark_;
};

}  // namespace softwood
