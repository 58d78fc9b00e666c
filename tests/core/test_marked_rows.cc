// marked_rows.h: every pattern of marks is found in order, cleared, and moved; the other rows stay.
#include <random>
#include <vector>

#include "check.h"
#include "softwood/marked_rows.h"

using namespace softwood;

namespace {

constexpr std::int64_t kColumns = 3;

// Rows that hold their number, some of them marked.
template <typename T>
struct Marked {
  std::vector<std::uint8_t> marks;
  std::vector<T> rows, biases;
  std::vector<std::int64_t> expected;

  Marked(std::int64_t n_rows, double share, std::mt19937& random) {
    std::bernoulli_distribution is_marked(share);
    for (std::int64_t row = 0; row < n_rows; ++row) {
      marks.push_back(is_marked(random) ? 1 : 0);
      if (marks.back() != 0) expected.push_back(row);
      rows.insert(rows.end(), kColumns, T(row + 1));
      biases.push_back(T(-row - 1));
    }
  }

  std::int64_t n_rows() const { return static_cast<std::int64_t>(marks.size()); }

  // Whether the rows that were marked are zero and unmarked now, and the others as they were.
  bool is_cleared(bool with_biases) const {
    std::size_t next = 0;
    for (std::int64_t row = 0; row < n_rows(); ++row) {
      const bool was_marked = next < expected.size() && expected[next] == row;
      next += was_marked;
      if (marks[std::size_t(row)] != 0) return false;
      for (std::int64_t c = 0; c < kColumns; ++c) {
        if (rows[std::size_t(row * kColumns + c)] != (was_marked ? T(0) : T(row + 1))) return false;
      }
      if (biases[std::size_t(row)] != (was_marked && with_biases ? T(0) : T(-row - 1))) return false;
    }
    return true;
  }
};

template <typename T>
void marked_rows_are_cleared_or_moved() {
  std::mt19937 random(1);
  for (std::int64_t n_rows : {0, 1, 7, 8, 9, 63, 64, 65, 128, 200}) {
    for (double share : {0.0, 0.02, 0.5, 1.0}) {
      Marked<T> both(n_rows, share, random);
      clear_rows(both.marks.data(), n_rows, both.rows.data(), kColumns, both.biases.data(), 1);
      CHECK(both.is_cleared(true));

      Marked<T> one(n_rows, share, random);
      clear_rows(one.marks.data(), n_rows, one.rows.data(), kColumns, static_cast<T*>(nullptr), 0);
      CHECK(one.is_cleared(false));

      Marked<T> moved(n_rows, share, random);
      const std::vector<std::int64_t> taken = take_marks(moved.marks.data(), n_rows);
      CHECK(taken == moved.expected);
      std::vector<T> to(taken.size() * kColumns);
      take_rows(taken, kColumns, moved.rows.data(), to.data());
      CHECK(moved.is_cleared(false));
      for (std::size_t i = 0; i < to.size(); ++i) CHECK(to[i] == T(taken[i / kColumns] + 1));
    }
  }
}

}  // namespace

int main() {
  marked_rows_are_cleared_or_moved<float>();
  marked_rows_are_cleared_or_moved<double>();
  return softwood::testing::report();
}
