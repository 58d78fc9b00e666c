"""The report: its numbers, and the page in a real browser, where choices change the pictures.

The browser is Chromium (or Chrome) with its driver, from the PATH; without one the tests of this module that need it
are skipped, and `make test` says so.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import softwood
from softwood.cli.metrics import calibration_points, compute_metrics
from softwood.cli.task import learning_task
from softwood.explain.baseline import baseline_predictions
from softwood.explain.effects import column_effect
from softwood.explain.judgement import Judgement
from softwood.explain.report import report_data, write_report
from softwood.tabular.reading.table import read_table

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the PATH")

SMALL = {"n_members": 2, "n_trees": 4, "depth": 3, "max_epochs": 5, "learning_rate": 0.03, "random_state": 0}


def make(task):
    """A fitted estimator and its rows; column names and cells that would break a careless page."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=150)
    columns = {"x <b>": x, "größe": rng.normal(size=150), "</script>": rng.choice(["</script>", "a&b"], 150)}
    target = {"binary": np.where(x > 0, "yes", "no"), "multiclass": np.digitize(x, [-0.5, 0.5]), "regression": x * 3}
    found = learning_task(pa.table(columns | {"target": target[task]}), "target")
    kind = softwood.TreeEnsembleRegressor if task == "regression" else softwood.TreeEnsembleClassifier
    return kind(**SMALL).fit(found.features, found.target), found


@pytest.fixture(scope="module", params=["binary", "multiclass", "regression"])
def page(request, tmp_path_factory):
    estimator, rows = make(request.param)
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, estimator, rows.features, rows.target, target_name=rows.target_name)
    return request.param, path


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def choose(browser, name, index):
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", name)).select_by_index(index)


def picture(browser):
    return browser.find_element("id", "tree-picture").get_attribute("innerHTML")


def text(browser, name):
    return browser.find_element("id", name).text


def test_the_page_needs_no_network_and_its_data_are_sound(page):
    _, path = page
    contents = path.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<]+", contents))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert contents.count("</script>") == 2
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', contents, re.DOTALL).group(1))
    assert len(data["trees"]) == 8
    assert len(data["rows"]) == 24


def test_what_a_row_shows_adds_up():
    estimator, rows = make("regression")
    data = report_data(estimator, rows.features, rows.target)
    scores = estimator.model_.raw_scores(rows.features)
    offset = np.mean([member.trees.offset for member in estimator.model_.members])
    for i in (0, 9):
        row = data["rows"][i]
        assert row["scores"][0] == pytest.approx(scores[i, 0], abs=1e-4)
        assert offset + sum(tree["adds"][0] for tree in row["trees"]) == pytest.approx(scores[i, 0], abs=1e-3)


def test_metrics_stand_beside_those_of_baselines():
    estimator, rows = make("regression")
    training, test = rows.take(np.arange(100)), rows.take(np.arange(100, 150))
    given = (training.features, training.target)
    data = report_data(estimator, test.features, test.target, training=given)
    values = {
        name: dict(zip(data["metrics"]["learners"], line, strict=True)) for name, _, line in data["metrics"]["lines"]
    }
    expected = compute_metrics(estimator, test.features, test.target)
    assert values["R²"]["softwood"] == pytest.approx(expected["r2"], abs=1e-4)
    # The target is three times a column: a linear regression finds that, and a constant cannot.
    assert values["R²"]["linear regression"] > 0.99
    mean = training.target.mean()
    assert values["mean absolute error"]["constant"] == pytest.approx(np.abs(test.target - mean).mean(), abs=1e-4)
    assert not data["is_cross_validated"]
    assert report_data(estimator, test.features, test.target)["is_cross_validated"]


def test_baselines_without_training_rows_predict_rows_that_they_have_not_seen():
    """As many columns as rows, and targets by chance: a linear model knows the targets of all rows that it has seen."""
    rng = np.random.default_rng(0)
    table, y = read_table(rng.normal(size=(200, 200))), rng.choice(["a", "b"], 200)
    found = baseline_predictions(table, y, classes=np.array(["a", "b"]))
    assert list(found) == ["logistic regression", "constant"]
    is_right = np.array(["a", "b"])[found["logistic regression"].argmax(axis=1)] == y
    assert is_right.mean() < 0.65
    np.testing.assert_allclose(found["logistic regression"].sum(axis=1), 1)


def test_a_row_at_the_threshold_is_not_above_it():
    """As `predict` decides: one half is not called the second class."""
    judged = Judgement(np.array([0, 1, 1]), np.array([[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
    counts = judged.counts_above(1)
    assert (counts["own"][500], counts["own"][499], counts["others"][500], counts["others"][499]) == (1, 2, 0, 1)


def test_baselines_know_classes_that_their_rows_lack():
    x, y = np.arange(12.0)[:, None], np.array(["a"] * 6 + ["c"] * 6)
    training = read_table(x), y
    found = baseline_predictions(read_table(x[:3]), y[:3], classes=np.array(["a", "b", "c"]), training=training)
    assert found["constant"].tolist() == [[0.5, 0, 0.5]] * 3


def test_bins_of_calibration_hold_rows_enough_and_keep_equals_together():
    rng = np.random.default_rng(0)
    probability = np.round(rng.uniform(size=500) ** 3, 2)  # a third of the rows in a tenth of the range, many equal
    truth = rng.uniform(size=500) < probability
    bins = calibration_points(truth, probability)
    assert bins[:, 4].sum() == 500
    assert bins[:, 4].min() >= 30
    assert len(bins) >= 7
    edges = np.concatenate([[0], np.cumsum(bins[:, 4])]).astype(int)
    ordered = np.sort(probability)
    assert all(ordered[i - 1] < ordered[i] for i in edges[1:-1])
    assert ((bins[:, 2] <= bins[:, 1]) & (bins[:, 1] <= bins[:, 3])).all()
    assert ((bins[:, 2] <= bins[:, 0]) & (bins[:, 0] <= bins[:, 3])).mean() > 0.7  # the predictions are true
    # Wilson's interval of 9 in 30, by hand: (0.3 + 0.0640 ± 1.96 sqrt(0.007 + 0.001067)) / 1.1281
    _, share, low, high, _ = calibration_points(np.arange(30) < 9, np.full(30, 0.5))[0]
    assert (share, round(low, 3), round(high, 3)) == (0.3, 0.167, 0.479)
    assert calibration_points(np.array([True]), np.array([0.7])).shape == (1, 5)


def test_effects_show_what_a_column_does():
    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame(
        {
            "number": rng.uniform(size=n),
            "level": rng.choice(["low", "high"], n, p=[0.8, 0.2]),
            "date": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
            "unused": rng.choice([1.0, 2.0, np.nan], n),
        }
    )
    y = 4 * frame["number"].to_numpy() + 3 * (frame["level"] == "high").to_numpy()
    model = softwood.TreeEnsembleRegressor(n_members=1, random_state=0).fit(frame, y).model_
    table = model.program.read(frame)
    number, level, date, unused = (column_effect(model, table, j, y) for j in range(4))
    assert [effect.kind for effect in (number, level, date, unused)] == ["number", "level", "date", "level"]
    rise = number.mean_prediction[-1, 0] - number.mean_prediction[0, 0]
    assert rise == pytest.approx(4, abs=0.5)
    assert number.rows.sum() == pytest.approx(0.98 * n, abs=3)  # the outermost hundredths are left out
    np.testing.assert_allclose(number.truth[:, 1], 0.6 + 4 * number.truth[:, 0], atol=0.6)
    assert level.labels == ["low", "high"]
    assert level.mean_prediction[1, 0] - level.mean_prediction[0, 0] == pytest.approx(3, abs=0.4)
    assert level.rows.tolist() == [(frame["level"] == name).sum() for name in level.labels]
    np.testing.assert_allclose(level.truth[:, 1], [y[frame["level"] == name].mean() for name in level.labels])
    assert np.ptp(unused.mean_prediction) < 0.3
    assert unused.labels == ["1", "2"]
    # Rows keep their own cells in the other columns: a column at its own value changes nothing.
    only = column_effect(model, model.program.read(frame.iloc[:1]), 1, y[:1])
    assert only.mean_prediction[0, 0] == pytest.approx(model.predict(frame.iloc[:1])[0], rel=1e-6)


def test_the_largest_errors_come_first():
    estimator, rows = make("binary")
    data = report_data(estimator, rows.features, rows.target)
    probability = estimator.predict_proba(rows.features)
    true = probability[np.arange(150), np.searchsorted(estimator.classes_, rows.target)]
    assert [line["row"] for line in data["worst"]["rows"]] == np.argsort(true, kind="stable")[:10].tolist()
    shown = {row["row"] for row in data["rows"]}
    assert shown >= {line["row"] for line in data["worst"]["rows"]}


def test_what_cannot_be_judged_is_refused():
    estimator, rows = make("binary")
    with pytest.raises(
        ValueError, match=r"y must hold classes of the model, 'no', 'yes'; got .*'maybe'.*Leave such rows"
    ):
        report_data(estimator, rows.features, np.where(rows.target == "no", "maybe", "yes"))
    with pytest.raises(ValueError, match=r"one target: y must have shape \(150,\).*got y of shape \(149,\)"):
        report_data(estimator, rows.features, rows.target[1:])
    estimator, rows = make("regression")
    with pytest.raises(ValueError, match="finite numbers; got NaN"):
        report_data(estimator, rows.features, np.full(150, np.nan))


@pytest.mark.parametrize("classes", [2, 40])
def test_a_few_rows_and_many_classes(tmp_path, classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(160, 2)), np.arange(160) % classes
    estimator = softwood.TreeEnsembleClassifier(**SMALL).fit(X, y)
    data = report_data(estimator, X, y)
    n_shown = len(data["confusion"]["labels"])
    assert n_shown == min(classes, 12)
    assert sum(map(sum, data["confusion"]["counts"])) == 160
    write_report(tmp_path / "one.html", estimator, X[:1], y[:1])  # one row has no curve, and no baseline


def matrix(browser):
    cells = browser.find_elements("css selector", "#matrix tbody td b")
    return [int(cell.text.replace(",", "")) for cell in cells]


def move(browser, t):
    script = (
        "const s = document.getElementById('threshold'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
    )
    browser.execute_script(script, t)


@needs_browser
def test_a_threshold_moves_counts_and_metrics(browser, tmp_path):
    estimator, rows = make("binary")
    write_report(tmp_path / "report.html", estimator, rows.features, rows.target)
    browser.get((tmp_path / "report.html").as_uri())
    probability, is_yes = estimator.predict_proba(rows.features)[:, 1], rows.target == "yes"

    def expected(is_called, is_true):
        return [
            (~is_true & ~is_called).sum(),
            (~is_true & is_called).sum(),
            (is_true & ~is_called).sum(),
            (is_true & is_called).sum(),
        ]

    dots = set()
    for t in (500, 0, 250, 803, 1000):
        move(browser, t)
        assert matrix(browser) == expected(probability > t / 1000, is_yes)
        assert text(browser, "threshold-value") == f"{t / 1000:.3f}"
        recall = (probability[is_yes] > t / 1000).mean()
        assert f"recall {recall:.3f}" in text(browser, "threshold-scores")
        dot = browser.find_element("id", "threshold-dot")
        dots.add((dot.get_attribute("cx"), dot.get_attribute("cy")))
    assert len(dots) > 2
    choose(browser, "called", 0)  # the other class: its lines stay where they are
    move(browser, 250)
    assert matrix(browser) == expected(1 - probability <= 0.25, is_yes)
    choose(browser, "called", 1)
    browser.find_element("xpath", "//button[.='best balanced accuracy']").click()
    tn, fp, fn, tp = matrix(browser)
    best = max(
        ((probability > t)[is_yes].mean() + (probability <= t)[~is_yes].mean()) / 2 for t in np.arange(1001) / 1000
    )
    assert (tp / (tp + fn) + tn / (tn + fp)) / 2 == pytest.approx(best)
    assert browser.get_log("browser") == []


@needs_browser
def test_a_row_of_a_large_error_is_shown_in_the_trees(browser, page):
    browser.get(page[1].as_uri())
    line = browser.find_elements("css selector", "#worst-rows tbody tr")[2]
    number = line.find_element("css selector", "th").text
    line.find_element("css selector", "button").click()
    assert text(browser, "tree-summary").startswith(f"Row {number} reaches ")
    assert browser.get_log("browser") == []


@needs_browser
def test_the_page_prints_without_what_only_a_screen_needs(browser, page):
    browser.get(page[1].as_uri())
    assert browser.find_element("css selector", "nav").is_displayed()
    assert all(link.text for link in browser.find_elements("css selector", "nav a"))
    try:
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
        assert not browser.find_element("css selector", "nav").is_displayed()
        assert (
            browser.find_element("tag name", "body").value_of_css_property("background-color")
            == "rgba(255, 255, 255, 1)"
        )
        assert browser.find_element("id", "metrics").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


@needs_browser
def test_every_control_and_picture_has_a_name(browser, page):
    browser.get(page[1].as_uri())
    script = """return [...document.querySelectorAll('svg[role=img], button, select, input, table th, a')].filter(
      (e) => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))
    ).map((e) => e.outerHTML)"""
    assert browser.execute_script(script) == []
    headings = browser.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))"
    )
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(headings))


@needs_browser
def test_choices_change_the_picture_without_errors(browser, page):
    task, path = page
    browser.get(path.as_uri())
    assert len(browser.find_elements("css selector", "#tree-picture .node")) == 15
    assert len(browser.find_elements("css selector", "#metrics tbody tr")) == (3 if task == "regression" else 4)
    seen = [picture(browser)]
    choose(browser, "tree", 1)
    seen.append(picture(browser))
    choose(browser, "row", 3)
    seen.append(picture(browser))
    assert text(browser, "tree-summary").startswith("Row 2 reaches ")
    assert "x <b> =" in text(browser, "row-columns")
    choose(browser, "row", 4)
    seen.append(picture(browser))
    if task == "multiclass":
        choose(browser, "output", 2)
        seen.append(picture(browser))
    assert len(set(seen)) == len(seen)
    assert browser.find_element("id", "output").is_displayed() == (task == "multiclass")
    assert browser.get_log("browser") == []


@needs_browser
def test_nodes_show_details_on_hover_and_by_keyboard(browser, page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.get(page[1].as_uri())
    nodes = browser.find_elements("css selector", "#tree-picture .node")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", nodes[0])
    ActionChains(browser).move_to_element(nodes[0].find_element("css selector", "circle")).perform()
    assert text(browser, "node-details").startswith("Split 0 looks at ")
    last = "output" if page[0] == "multiclass" else "row"
    browser.find_element("id", last).send_keys(Keys.TAB)
    for _ in range(4):  # the scrolling frame may or may not take the first stop
        if browser.switch_to.active_element.get_attribute("class") == "node chosen":
            break
        browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert text(browser, "node-details").startswith("Split 1 looks at ")
    for key, words in ((Keys.ARROW_DOWN, "Split 3 "), (Keys.ARROW_RIGHT, "Split 4 "), (Keys.ARROW_DOWN, "Leaf: adds ")):
        browser.switch_to.active_element.send_keys(key)
        assert text(browser, "node-details").startswith(words)
    for _ in range(5):  # the root has nothing above it
        browser.switch_to.active_element.send_keys(Keys.ARROW_UP)
    assert text(browser, "node-details").startswith("Split 0 looks at ")
    browser.find_element("id", "row").send_keys(Keys.ARROW_DOWN)
    assert text(browser, "tree-summary").startswith("Row 0 reaches ")


@needs_browser
def test_a_narrow_window_and_the_dark(browser, page):
    browser.get(page[1].as_uri())
    light = browser.find_element("tag name", "body").value_of_css_property("background-color")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert browser.find_element("tag name", "body").value_of_css_property("background-color") != light
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        # The tree is wider than the window and scrolls in its frame, to where the row goes.
        choose(browser, "row", 2)
        frame = browser.find_element("id", "tree-frame")
        leaf = max(
            browser.find_elements("css selector", "#tree-picture .node")[7:],
            key=lambda node: float(node.find_element("css selector", "circle").get_attribute("r")),
        )
        left, right = frame.rect["x"], frame.rect["x"] + frame.rect["width"]
        assert left <= leaf.find_element("css selector", "circle").rect["x"] <= right
        assert leaf.find_element("css selector", "text").rect["height"] >= 10  # pixels: readable
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
