"""The page in a real browser, Debian's Chromium without a window."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes import certified
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from offramp import Tagger
from offramp.inference import Classifier, Runner
from offramp.policy import Policy

Serve = Callable[..., Any]


@pytest.fixture
def wait(browser: webdriver.Chrome) -> WebDriverWait[webdriver.Chrome]:
    return WebDriverWait(browser, 60)


def text(browser: webdriver.Chrome, name: str) -> str:
    return browser.find_element(By.ID, name).text


def test_the_page_shows_the_prediction_its_layer_and_every_exit(
    serve: Serve, classifier: Classifier, browser: webdriver.Chrome, wait: Any
) -> None:
    browser.get(serve().url)
    wait.until(lambda _: text(browser, "name") == "colours")
    browser.find_element(By.ID, "text").send_keys("good film")
    browser.find_element(By.ID, "send").click()
    wait.until(lambda _: text(browser, "label"))
    expected = classifier.predict("good film", every_exit=True)
    assert text(browser, "label").startswith(f"{expected.label}, ")
    assert text(browser, "depth") == f"exit at layer {expected.layer} of 4"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#steps .run")) == expected.layer - 1
    rows = [row.text.split("\n") for row in browser.find_elements(By.CSS_SELECTOR, "#exits tr")]
    assert [row[0] for row in rows] == [f"layer {exit.layer} {exit.label}" for exit in expected.exits]
    bars = browser.find_elements(By.CSS_SELECTOR, "#exits tr:first-child .track i")
    assert len(bars) == 3
    shown = [float(bar.get_attribute("style").split(":")[1].strip(" %;")) for bar in bars]
    chances = sorted(expected.probabilities, key=lambda name: -expected.probabilities[name])
    assert shown == pytest.approx([100 * expected.exits[0].probabilities[name] for name in chances], abs=1)


def test_traffic_on_the_page_follows_the_server(serve: Serve, browser: webdriver.Chrome, wait: Any) -> None:
    server = serve()
    browser.get(server.url)
    wait.until(lambda _: text(browser, "total") == "0")
    answers = server.ask(["good film", "bad", "a b c"] * 5, policy="never").json()["predictions"]
    wait.until(lambda _: text(browser, "total") == str(len(answers)))
    assert text(browser, "mean") == "4.0"
    columns = [each.text.split("\n") for each in browser.find_elements(By.CSS_SELECTOR, "#histogram div")]
    assert columns == [["0%", "0"], ["0%", "1"], ["0%", "2"], ["0%", "3"], ["100%", "4"]]
    wait.until(lambda _: text(browser, "rate") == "0.0")


def test_only_a_model_for_pairs_is_offered_a_second_text_and_errors_are_shown(
    serve: Serve, pairs_classifier: Classifier, browser: webdriver.Chrome, wait: Any
) -> None:
    browser.get(serve().url)
    wait.until(lambda _: text(browser, "name") == "colours")
    assert not browser.find_element(By.ID, "second").is_displayed()
    server = serve(pairs_classifier)
    browser.get(server.url)
    wait.until(lambda _: browser.find_element(By.ID, "second").is_displayed())
    browser.find_element(By.ID, "text").send_keys("good")
    browser.find_element(By.ID, "second").send_keys("<b>bad</b> film")
    browser.find_element(By.ID, "send").click()
    wait.until(lambda _: text(browser, "label"))
    server.batcher.drain(10)
    browser.find_element(By.ID, "send").click()
    wait.until(lambda _: text(browser, "problem").endswith("."))


@pytest.fixture
def pairs_classifier(make_model: Callable[..., Any], tokenizer: Any) -> Classifier:
    runner = Runner(make_model(num_labels=2), tokenizer)
    runner.runtime.info = replace(runner.runtime.info, trained_on_pairs=True)
    return Classifier(runner)


def test_the_page_shows_each_rungs_certificate_and_audit_and_the_layers_saved(
    serve: Serve,
    browser: webdriver.Chrome,
    wait: Any,
    until: Any,
) -> None:
    normal = Policy.parse("never")
    loose = certified("layer:1")
    server = serve(rungs=(normal, loose), audit_share=1.0)
    server.ask("good", policy="never")
    server.ask("bad")
    until(lambda: server.batcher.audit.reports()[0].examined == 1)
    server.batcher.ladder.forbid(1)
    browser.get(server.url)
    wait.until(lambda _: text(browser, "saved") == "0.0%")
    first, second = (box.text.split("\n") for box in browser.find_elements(By.CSS_SELECTOR, ".rung"))
    assert first[:2] == ["Rung 0: never, in use", "No certificate: nothing is proven about its predictions."]
    assert first[2].startswith("Audit: 1 compared, 0 differ; in all, between 0.0% and ")
    assert second == [
        "Rung 1: layer:1, no longer used",
        loose.certificate.summary,
        "Audit: nothing compared yet.",
    ]


def test_the_page_of_a_tagger_marks_spans(
    serve: Serve, tagger: Tagger, browser: webdriver.Chrome, wait: Any
) -> None:
    browser.get(serve(tagger).url)
    wait.until(lambda _: text(browser, "name") == "colours")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": True},
    )
    typed = "x y <b>z</b> a bad film \u00e9 a b " + "endless" * 30
    browser.find_element(By.ID, "text").send_keys(typed)
    browser.find_element(By.ID, "send").click()
    wait.until(lambda _: text(browser, "depth"))
    expected = tagger.tag(typed)
    marks = browser.find_elements(By.CSS_SELECTOR, "#spans mark")
    assert [mark.get_property("textContent") for mark in marks] == [
        span.text + span.label for span in expected
    ]
    assert text(browser, "depth") == f"exit at layer {expected.layer} of 4"
    assert not browser.find_element(By.ID, "trace").is_displayed()
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 500
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_server_with_a_key_asks_for_it(serve: Serve, browser: webdriver.Chrome, wait: Any) -> None:
    browser.get(serve(api_key="sesame").url)
    wait.until(lambda _: browser.find_element(By.ID, "lock").is_displayed())
    browser.find_element(By.ID, "key").send_keys("sesame")
    browser.find_element(By.CSS_SELECTOR, "#lock button").click()
    wait.until(lambda _: text(browser, "name") == "colours")
    assert not browser.find_element(By.ID, "lock").is_displayed()


def test_the_page_contacts_no_other_host_and_fits_a_phone(
    serve: Serve, browser: webdriver.Chrome, wait: Any
) -> None:
    server = serve()
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    browser.get_log("browser")
    browser.get(server.url)
    browser.find_element(By.ID, "text").send_keys("good film")
    browser.find_element(By.ID, "send").click()
    wait.until(lambda _: text(browser, "label"))
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= 360
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert loaded
    assert all(each.startswith((server.url, "data:")) for each in loaded)
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
