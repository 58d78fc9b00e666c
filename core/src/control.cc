#include <algorithm>
#include <utility>

#include "softwood/trainer.h"

namespace softwood {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(50);
constexpr double kMaxSeconds = 1e8;  // keeps the deadline within the range of the clock

}  // namespace

Control::Control(double seconds_left, std::function<bool()> poll)
    : deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(std::min(seconds_left, kMaxSeconds)))),
      next_poll_(Clock::now() + kPollInterval),
      poll_(std::move(poll)) {}

bool Control::should_stop() {
  if (stopped_.load(std::memory_order_relaxed)) return true;
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) stop();
  if (poll_ && now >= next_poll_) {
    next_poll_ = now + kPollInterval;
    if (poll_()) stop();
  }
  return stopped_.load(std::memory_order_relaxed);
}

}  // namespace softwood
