"""What texts of a column stand for."""

from __future__ import annotations

import numpy as np
import pytest

from softwood.tabular.reading.texts import date_kind, looks_like, text_kind, text_numbers

OCTOBER = 1349136000.0  # 2012-10-02 00:00 UTC


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["true", "False"], "boolean"),
        (["1", "-2.5e3", ".5", " 7 "], "numeric"),
        (["0", "0.5", "-0"], "numeric"),
        (["01234", "99999"], "category"),
        (["09:00", "23:59:30"], "numeric"),
        (["2012-10-02", "2012-1-3 9:00"], "datetime"),
        (["2012-10-02T09:00:00Z", "2012-10-02T09:00:00.25+02:00"], "datetime"),
        (["2012/10/02"], "datetime"),
        (["02-10-2012 09:00", "14-10-2012 10:00"], "datetime_day_first"),
        (["10/02/2012", "10/14/2012"], "datetime"),
        (["14/02/2012", "10/14/2012"], "category"),
        (["02.10.2012"], "datetime_day_first"),
        (["2 Oct 2012", "2-October-2012 9:00 pm", "Oct 2, 2012"], "datetime"),
        (["2012-02-30"], "category"),
        (["1,234", "5,678"], "category"),
        (["1", "red"], "category"),
        ([], "category"),
    ],
)
def test_kinds(texts, kind):
    assert text_kind(texts)[0] == kind


@pytest.mark.parametrize(
    ("text", "kind", "seconds"),
    [
        ("2012-10-02", "datetime", OCTOBER),
        ("2012-10-02T09:00:00Z", "datetime", OCTOBER + 9 * 3600),
        ("2012-10-02 09:00:00.5+02:00", "datetime", OCTOBER + 7 * 3600 + 0.5),
        ("2012-10-02 09:00 -0130", "datetime", OCTOBER + 10.5 * 3600),
        ("02-10-2012 09:00", "datetime_day_first", OCTOBER + 9 * 3600),
        ("10/02/2012", "datetime", OCTOBER),
        ("10/02/2012 12:30 AM", "datetime", OCTOBER + 1800),
        ("2 October 2012 12:30 pm", "datetime", OCTOBER + 12.5 * 3600),
        ("01:02:03", "numeric", 3723),
    ],
)
def test_numbers(text, kind, seconds):
    found = text_numbers(np.array([text, None], dtype=object), kind)
    np.testing.assert_array_equal(found, [seconds, np.nan])


def test_a_guess_is_remarked():
    kind, remark = text_kind(["10/02/2012", "11/03/2012"])
    assert kind == "datetime"
    assert "'10/02/2012' and the like could be read in two ways, and are read with the month before day" in remark
    assert date_kind(["03-02-2012"])[0] == "datetime_day_first"
    assert text_kind(["10/02/2012", "10/14/2012"])[1] is None


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("1,234.5", "numeric", r"'1,234.5' to a number \(write numbers without separators of thousands, currency"),
        ("$7", "numeric", "currency and percent signs"),
        ("12 %", "numeric", "currency and percent signs"),
        ("soon", "datetime", r"'soon' to a date \(write dates as 2012-10-02"),
        ("red", "numeric", r"could not convert 'red' to a number\.$"),
        ("yes", "boolean", r"could not convert 'yes' to true or false\.$"),
    ],
)
def test_texts_that_are_no_numbers_are_named_with_a_hint(text, kind, says):
    with pytest.raises(ValueError, match=says):
        text_numbers(np.array([text], dtype=object), kind)


def test_texts_that_nearly_are_numbers_or_dates():
    assert looks_like(["1,234", "$5", "7%"]) == "numbers"
    assert looks_like(["02/10/12", "03/10/12"]) == "dates"
    assert looks_like(["red", "1,234"]) is None
    assert looks_like(["600,23", "1.043,96", "-12,5 €"]) == "numbers"
    assert looks_like(["3,5 rooms", "2,5 rooms"]) is None
