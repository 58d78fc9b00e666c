"""What the report opens with: claims of the paper, what was found, and verdicts that follow from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOLDS, IN_PART, FAILS, NOT_RUN = "holds", "holds in part", "does not hold", "not run"
OPEN = "open: too few sets"


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Parameters
    ----------
    text, where : str
        The claim, and where in the paper it stands.
    found : str
        What was measured.
    protocol : str
        "exact", or how the runs differ from the paper's.
    verdict : str
        One of `HOLDS`, `IN_PART`, `FAILS`, `OPEN`, `NOT_RUN`; "so far" follows while sets are missing.
    """

    text: str
    where: str
    found: str = NOT_RUN
    protocol: str = ""
    verdict: str = NOT_RUN

    def row(self) -> list[str]:
        """Cells of the opening table."""
        return [f"{self.text} ({self.where})", self.found, self.protocol or "none", f"**{self.verdict}**"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    Examples
    --------
    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def graded(share: float, *, holds: float, in_part: float) -> str:
    """Verdict of a number that is the better the larger it is.

    Examples
    --------
    >>> graded(12.0, holds=10, in_part=5), graded(6.0, holds=10, in_part=5), graded(1.0, holds=10, in_part=5)
    ('holds', 'holds in part', 'does not hold')
    """
    return HOLDS if share >= holds else IN_PART if share >= in_part else FAILS


def so_far(verdict: str, n_done: int, n_sets: int) -> str:
    """Verdict on a claim about `n_sets` sets, of which `n_done` have been run; none on fewer than half of them.

    Examples
    --------
    >>> so_far(HOLDS, 23, 23), so_far(HOLDS, 12, 23), so_far(HOLDS, 6, 23)
    ('holds', 'holds so far', 'open: too few sets')
    """
    if n_done >= n_sets:
        return verdict
    return f"{verdict} so far" if 2 * n_done >= n_sets else OPEN
