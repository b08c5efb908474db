"""examples/browser in Chromium: a model in the visitor's browser predicts as `Classifier` does."""

import json
import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from offramp.inference import Classifier
from offramp.policy import Policy

EXAMPLE = Path(__file__).parents[2] / "examples/browser"
TEXTS = ["good film", "a b c d e f", "bad", "film bad a b", "<b>i</b> j k", "a b c " * 40]


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def url(packages: Path, portable: Path, tmp_path: Path) -> Iterator[str]:
    """The page, as its README says."""
    for file in EXAMPLE.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "node_modules").symlink_to(packages)
    (tmp_path / "model").symlink_to(portable)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def wait(browser: webdriver.Chrome) -> WebDriverWait[webdriver.Chrome]:
    return WebDriverWait(browser, 60)


def test_the_page_shows_where_each_text_exits_and_what_full_depth_says(
    url: str, browser: webdriver.Chrome, wait: Any, classifier: Classifier
) -> None:
    browser.get_log("browser")
    browser.get(url)
    wait.until(lambda _: browser.find_element(By.ID, "run").is_enabled())
    field = browser.find_element(By.ID, "texts")
    field.clear()
    field.send_keys("\n".join([*TEXTS, "  "]))
    browser.find_element(By.ID, "run").click()
    wait.until(lambda _: "".join(browser.find_element(By.ID, name).text for name in ("summary", "problem")))
    assert browser.find_element(By.ID, "problem").text == ""

    expected = classifier.predict(TEXTS)
    deep = classifier.predict(TEXTS, policy=Policy.parse("never"))
    rows = browser.find_elements(By.CSS_SELECTOR, "#rows tr")
    cells = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in rows]
    assert cells == [
        [
            text.strip(),
            f"exit at layer {here.layer} of 4",
            f"{here.label} {here.score:.2f}",
            f"{full.label} {full.score:.2f}",
        ]
        for text, here, full in zip(TEXTS, expected, deep, strict=True)
    ]
    assert [len(row.find_elements(By.CLASS_NAME, "run")) for row in rows] == [each.layer for each in expected]
    assert len({each.layer for each in expected}) > 1
    differ = [here.label != full.label for here, full in zip(expected, deep, strict=True)]
    assert [bool(row.find_elements(By.CLASS_NAME, "other")) for row in rows] == differ
    mean = sum(each.layer for each in expected) / len(TEXTS)
    summary = f"{mean:.2f} of 4 layers on average, {differ.count(False)} of {len(TEXTS)} predictions as at full depth"
    assert browser.find_element(By.ID, "summary").text.startswith(summary)

    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert loaded
    assert all(each.startswith((url, "data:", "blob:")) for each in loaded)
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def test_a_folder_that_is_missing_is_named(url: str, browser: webdriver.Chrome, wait: Any) -> None:
    browser.get(f"{url}?model=elsewhere")
    wait.until(lambda _: browser.find_element(By.ID, "problem").text)
    problem = browser.find_element(By.ID, "problem").text
    assert re.match(rf"{url}elsewhere/\w+\.json: 404", problem)  # the first answer
    assert not browser.find_element(By.ID, "run").is_enabled()
    browser.get_log("browser")


def test_the_example_needs_the_versions_that_were_tested(packages: Path) -> None:
    needed = json.loads((EXAMPLE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    installed = {
        name: json.loads((packages / name / "package.json").read_text(encoding="utf-8"))["version"]
        for name in needed
    }
    assert needed == installed
