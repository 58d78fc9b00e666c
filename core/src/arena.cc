#include "arena.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace softwood {

struct Arena::Slab {
  Slab* previous;
  std::size_t capacity;  // of the whole slab, this header included; a power of two
  std::size_t used;
};

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kFirstSlab = std::size_t{1} << 16;
constexpr std::size_t kMaxKeptSlab = std::size_t{1} << 25;
constexpr std::size_t kMaxKeptBytes = std::size_t{1} << 26;  // of the whole pool

// Free slabs by size. A slab that exceeds the limit is returned to the operating system.
class SlabPool {
 public:
  void* take(std::size_t capacity) {
    if (capacity <= kMaxKeptSlab) {
      std::lock_guard lock(mutex_);
      Free*& head = free_[index(capacity)];
      if (head != nullptr) {
        Free* slab = head;
        head = slab->next;
        kept_ -= capacity;
        return slab;
      }
    }
    void* slab = std::aligned_alloc(kAlignment, capacity);
    if (slab == nullptr) throw std::bad_alloc();
    return slab;
  }

  void give(void* memory, std::size_t capacity) {
    if (capacity <= kMaxKeptSlab) {
      std::lock_guard lock(mutex_);
      if (kept_ + capacity <= kMaxKeptBytes) {
        Free* slab = static_cast<Free*>(memory);
        slab->next = free_[index(capacity)];
        free_[index(capacity)] = slab;
        kept_ += capacity;
        return;
      }
    }
    std::free(memory);
  }

  std::mutex& mutex() { return mutex_; }

 private:
  struct Free {
    Free* next;
  };
  static int index(std::size_t capacity) { return std::countr_zero(capacity); }

  std::mutex mutex_;
  Free* free_[64] = {};
  std::size_t kept_ = 0;
};

// Never destroyed: the arenas of threads may outlive static objects at exit.
SlabPool& pool = *new SlabPool;

#if !defined(_WIN32)
// Held while the process forks, so that the copy in the child is consistent and unlocked.
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { pool.mutex().lock(); }, [] { pool.mutex().unlock(); }, [] { pool.mutex().unlock(); });
#endif

}  // namespace

void* Arena::allocate_bytes(std::size_t n_bytes) {
  n_bytes = (n_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (slab_ == nullptr || slab_->capacity - slab_->used < n_bytes) {
    const std::size_t wanted = std::max(n_bytes + kAlignment, slab_ == nullptr ? kFirstSlab : 2 * slab_->capacity);
    // Slabs double up to the largest one that the pool keeps, unless a single allocation needs more.
    const std::size_t capacity = std::bit_ceil(std::max(n_bytes + kAlignment, std::min(wanted, kMaxKeptSlab)));
    Slab* slab = static_cast<Slab*>(pool.take(capacity));
    *slab = {slab_, capacity, kAlignment};
    slab_ = slab;
    n_bytes_ += capacity;
  }
  void* result = reinterpret_cast<char*>(slab_) + slab_->used;
  slab_->used += n_bytes;
  return result;
}

Arena::Mark Arena::mark() const { return {slab_, slab_ == nullptr ? 0 : slab_->used}; }

void Arena::release(Mark mark) {
  while (slab_ != mark.slab) {
    Slab* previous = slab_->previous;
    n_bytes_ -= slab_->capacity;
    pool.give(slab_, slab_->capacity);
    slab_ = previous;
  }
  if (slab_ != nullptr) slab_->used = mark.used;
}

}  // namespace softwood
