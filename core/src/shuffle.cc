// Fisher-Yates shuffle with a counter-based generator: the order of an epoch needs no state of the epochs before it, so
// a resumed fit continues with the same batches.
#include <numeric>
#include <utility>

#include "softwood/trainer.h"

namespace softwood {
namespace {

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

void shuffled_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order) {
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
  std::uint64_t state = mixed(mixed(seed + golden) + static_cast<std::uint64_t>(epoch) * golden);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::uint64_t remaining = order.size(); remaining > 1; --remaining) {
    state += golden;
    // The high half of the product is uniform in [0, remaining) up to a bias of remaining / 2^64.
    const auto pick = static_cast<std::uint64_t>((static_cast<unsigned __int128>(mixed(state)) * remaining) >> 64);
    std::swap(order[remaining - 1], order[pick]);
  }
}

}  // namespace softwood
