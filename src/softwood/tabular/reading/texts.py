"""Texts of a column in, what they stand for out: numbers, truth values, times of day, dates, or categories.

A file of text and a data frame of texts hold the same table, so the same rules read both: `text_kind` decides from all
texts of a column, `text_numbers` reads them once the kind is known. Empty texts are missing cells and come as None.

==================  ==========================================================================================
boolean             true and false, in small or capital letters
numeric             decimal numbers without leading zeros (0123 is a code); also 09:30[:15]
datetime            2012-10-02, 2012/10/02, 10/02/2012 (month first), 2 Oct 2012, October 2, 2012; each also with a
                    time (09:00, 09:00:15.5, 9:00 pm) and a zone (Z, +02:00)
datetime_day_first  the same, with 02-10-2012 read as the second of October
category            all else
==================  ==========================================================================================

Day and month are told apart by values above 12. Where there are none, points and hyphens mean that the day comes
first, slashes that the month does, and a warning says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import numpy as np
from numpy.typing import NDArray

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|infinity)|nan", re.IGNORECASE)
_NEEDLESS_ZERO = re.compile(r"[-+]?0\d")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")
_TIME = (
    r"(?:[ T]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?P<fraction>\.\d+)?)?"
    r"\s*(?P<half>[AaPp]\.?[Mm]\.?)?\s*(?P<zone>Z|UTC|[-+]\d{2}(?::?\d{2})?)?)?"
)
_YEAR_FIRST = re.compile(r"(?P<year>\d{4})([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})" + _TIME)
_YEAR_LAST = re.compile(r"(?P<first>\d{1,2})(?P<mark>[-/.])(?P<second_part>\d{1,2})(?P=mark)(?P<year>\d{4})" + _TIME)
_DAY_NAME = re.compile(r"(?P<day>\d{1,2})[-\s]+(?P<name>[A-Za-z]{3,9})\.?[-\s,]+(?P<year>\d{4})" + _TIME)
_NAME_DAY = re.compile(r"(?P<name>[A-Za-z]{3,9})\.?\s+(?P<day>\d{1,2}),?\s+(?P<year>\d{4})" + _TIME)
_MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september"]
_MONTHS += ["october", "november", "december"]
_LIKE_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(?!\d)")
_LIKE_NUMBER = re.compile(
    r"[-+]?\s*[$€£¥]?\s*\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*[%€$£]?|[-+]?[$€£¥]\s*[\d.]+|[-+]?[\d.]+\s*[%€$£¥]"
    r"|[-+]?\s*€?\s*(?:\d+|\d{1,3}(?:[. ']\d{3})+),\d+\s*[%€]?\Z"  # 1.234,56 and 12,5
)


def text_kind(texts: Sequence[str]) -> tuple[str, str | None]:
    """Kind of a column with these distinct texts, and a remark if it is a guess that may be wrong.

    Examples
    --------
    >>> text_kind(["02-10-2012 09:00", "14-10-2012 10:00"])
    ('datetime_day_first', None)
    >>> text_kind(["01234", "99999"])
    ('category', None)
    """
    found = [text.strip() for text in texts]
    if not found:
        return "category", None
    if all(text.lower() in ("true", "false") for text in found):
        return "boolean", None
    if all(map(_NUMBER.fullmatch, found)):
        return ("category" if any(map(_NEEDLESS_ZERO.match, found)) else "numeric"), None
    if all(_seconds_of_clock(text) is not None for text in found):
        return "numeric", None
    day_first, remark = _order(found)
    if day_first is not None and all(_seconds(text, day_first) is not None for text in found):
        return ("datetime_day_first" if day_first else "datetime"), remark
    return "category", None


def date_kind(texts: Sequence[str]) -> tuple[str, str | None]:
    """Kind of a column that the caller declares to hold dates; texts that are none fail when they are read."""
    day_first, remark = _order([text.strip() for text in texts if _seconds(text.strip(), True) is not None])
    return ("datetime_day_first" if day_first else "datetime"), remark


def text_numbers(labels: NDArray[np.object_], kind: str) -> NDArray[np.float64]:
    """Texts [n] of a column of this kind as numbers, NaN where missing; a ValueError names one that is none."""
    number_of: dict[str | None, float] = {None: math.nan}
    for text in set(labels.tolist()) - {None}:
        number = _number(text.strip(), kind)
        if number is None:
            what = {"boolean": "true or false", "numeric": "a number"}.get(kind, "a date")
            raise ValueError(f"could not convert {text!r} to {what}{hint(text, kind)}.")
        number_of[text] = number
    return np.array([number_of[label] for label in labels.tolist()], dtype=np.float64)


def hint(text: str, kind: str) -> str:
    """What to do about a text that is nearly a number or a date; empty if it is neither."""
    if _LIKE_NUMBER.fullmatch(text.strip()):
        return " (write numbers without separators of thousands, currency and percent signs: 1234.5)"
    if kind.startswith("datetime") or _LIKE_DATE.match(text.strip()):
        return " (write dates as 2012-10-02, with a time as 2012-10-02 09:00)"
    return ""


def looks_like(texts: Sequence[str]) -> str | None:
    """ "numbers" or "dates" if most of these distinct texts of a category nearly are such; None otherwise."""
    for what, pattern in {"numbers": _LIKE_NUMBER, "dates": _LIKE_DATE}.items():
        n_alike = sum(pattern.match(text.strip()) is not None for text in texts)
        if texts and n_alike >= 0.9 * len(texts):
            return what
    return None


def _number(text: str, kind: str) -> float | None:
    if kind == "boolean":
        return {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}.get(text.lower())
    if kind != "numeric":
        return _seconds(text, kind == "datetime_day_first")
    return float(text) if _NUMBER.fullmatch(text) else _seconds_of_clock(text)


def _seconds_of_clock(text: str) -> float | None:
    found = _CLOCK.fullmatch(text)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or float(found[3] or 0) >= 60:
        return None
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3] or 0)


def _order(texts: Sequence[str]) -> tuple[bool | None, str | None]:
    """Whether days come before months, None if both orders would be needed; and a remark if nothing tells."""
    parts = [found for found in map(_YEAR_LAST.fullmatch, texts) if found is not None]
    if not parts:
        return False, None
    day_first = any(int(found["first"]) > 12 for found in parts)
    month_first = any(int(found["second_part"]) > 12 for found in parts)
    if day_first and month_first:
        return None, None
    if day_first or month_first:
        return day_first, None
    guess = parts[0]["mark"] != "/"
    order = "day before month" if guess else "month before day"
    return guess, f"{parts[0][0]!r} and the like could be read in two ways, and are read with the {order}"


def _seconds(text: str, day_first: bool) -> float | None:
    """Seconds since 1970 (UTC) of a date; None if the text is none."""
    for pattern in (_YEAR_FIRST, _YEAR_LAST, _DAY_NAME, _NAME_DAY):
        found = pattern.fullmatch(text)
        if found is not None:
            break
    else:
        return None
    parts = found.groupdict()
    if "first" in parts:
        parts["day"], parts["month"] = parts["first"], parts["second_part"]
        if not day_first:
            parts["day"], parts["month"] = parts["month"], parts["day"]
    month = _month(parts["name"]) if "name" in parts else int(parts["month"])
    hour = int(parts["hour"] or 0)
    if parts["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if parts["half"][0] in "pP" else 0)
    clock = (hour, int(parts["minute"] or 0), int(parts["second"] or 0))
    try:
        moment = datetime(int(parts["year"]), month, int(parts["day"]), *clock, tzinfo=timezone.utc)
    except ValueError:  # the 31st of February
        return None
    return (moment - _zone(parts["zone"])).timestamp() + float(parts["fraction"] or 0)


def _month(name: str) -> int:
    """Number of a month from its English name or the beginning of it; 0 if there is none."""
    matches = [number for number, month in enumerate(_MONTHS, 1) if month.startswith(name.lower())]
    return matches[0] if len(matches) == 1 else 0


def _zone(text: str | None) -> timedelta:
    if text is None or text in ("Z", "UTC"):
        return timedelta(0)
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -offset if text[0] == "-" else offset
