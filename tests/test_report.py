"""The report in a real browser: it loads without errors, and choices change the picture.

The browser is Chromium (or Chrome) with its driver, from the PATH; without one the tests of this module that need it
are skipped, and `make test` says so.
"""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

import softwood
from softwood.cli.task import learning_task
from softwood.explain.report import report_data, write_report

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
    write_report(path, estimator, rows)
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
    data = report_data(estimator, rows)
    scores = estimator.model_.raw_scores(rows.features)
    offset = np.mean([member.trees.offset for member in estimator.model_.members])
    for i in (0, 9):
        row = data["rows"][i]
        assert row["scores"][0] == pytest.approx(scores[i, 0], abs=1e-4)
        assert offset + sum(tree["adds"][0] for tree in row["trees"]) == pytest.approx(scores[i, 0], abs=1e-3)


@needs_browser
def test_choices_change_the_picture_without_errors(browser, page):
    task, path = page
    browser.get(path.as_uri())
    assert len(browser.find_elements("css selector", "#tree-picture .node")) == 15
    assert len(browser.find_elements("css selector", "#metrics tr")) == (3 if task == "regression" else 4)
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
        frame = browser.find_element("css selector", ".scroll")
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
