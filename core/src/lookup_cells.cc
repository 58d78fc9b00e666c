// Cells of lookup columns for training; see softwood/lookup.h.
#include <algorithm>
#include <cmath>

#include "softwood/lookup.h"
#include "softwood/thread_pool.h"

namespace softwood {
namespace {

constexpr std::int64_t kSlice = 128;  // rows

// Entry and fraction of one value. Comparisons with NaN are false.
std::uint32_t cell_of(const LookupSource& source, float value) {
  if (std::isnan(value)) return source.missing_entry;
  if (source.n_knots == 0) {
    const bool known = value >= 0 && value < float(source.n_codes) && value == std::trunc(value);
    return known ? static_cast<std::uint32_t>(value) : source.unseen_entry;
  }
  const float* const knots = source.knots;
  const std::uint32_t last = source.n_knots - 1;
  if (!(value > knots[0])) return 0;
  if (value >= knots[last]) return last;
  const auto above = static_cast<std::uint32_t>(std::upper_bound(knots, knots + last, value) - knots);
  const double low = double(knots[above - 1]), high = double(knots[above]);
  const double fraction = (double(value) - low) / (high - low);
  return (above - 1) | static_cast<std::uint32_t>(std::lrint(fraction * 65535)) << 16;
}

}  // namespace

void lookup_cells(const std::vector<LookupSource>& sources, const Rows<float>& base, std::uint32_t* cells,
                  int n_threads) {
  const auto q = static_cast<std::int64_t>(sources.size());
  parallel_for((base.n_rows + kSlice - 1) / kSlice, n_threads, [&](std::int64_t slice) {
    const std::int64_t end = std::min(base.n_rows, (slice + 1) * kSlice);
    for (std::int64_t i = slice * kSlice; i < end; ++i) {
      const float* const row = base.row(i);
      for (std::int64_t c = 0; c < q; ++c) cells[i * q + c] = cell_of(sources[c], row[sources[c].base_column]);
    }
  });
}

}  // namespace softwood
