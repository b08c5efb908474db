"""The model card shows the curve, the policy and its certificate, and no paths of the machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from offramp import Trace
from offramp.measuring import sweep
from offramp.reports.table import short


def test_training_leaves_a_card_with_the_score_of_every_exit(trained: Path) -> None:
    text = (trained / "films/model/README.md").read_text()
    scores = json.loads((trained / "films/model/scores.json").read_text())
    assert "# films\n" in text
    for layer, acc, f1 in zip(scores["layers"], scores["acc"], scores["macro_f1"], strict=True):
        assert f"| {layer} | {100 * acc:.1f} | {100 * f1:.1f} |" in text
    assert str(trained) not in text


def test_the_front_matter_is_yaml_that_the_hub_reads(trained: Path) -> None:
    _, front, _ = (trained / "films/model/README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["tags"] == ["early-exit", "text-classification", "bert"]


def test_calibrating_adds_policy_certificate_and_curve(home: Path, ask: Callable[..., Any]) -> None:
    values = ask("calibrate", home / "films", home / "dev.trace", "--rule", "entropy", "--guarantee", 0.2)
    text = (home / "films/model/README.md").read_text()
    assert f"`{short(values['policy'])}`" in text
    assert values["certificate"]["promise"] in text
    points = sweep(Trace.load(home / "dev.trace"), "entropy").curves["entropy"].points
    for point in (points[0], points[-1]):
        row = f"| {point.threshold:.4g} | {100 * point.scores['acc']:.1f} | {point.cost.mean_layer:.2f} |"
        assert row in text
    assert f"| **the policy** | {100 * values['scores']['acc']:.1f} | {values['mean_layer']:.2f} |" in text


def test_the_card_says_how_many_examples_a_rule_was_fitted_on(home: Path, ask: Callable[..., Any]) -> None:
    values = ask("calibrate", home / "films", home / "dev.trace", "--rule", "agreement", "--guarantee", 0.2)
    text = (home / "films/model/README.md").read_text()
    assert "The rule was fitted on 20 further examples." in text
    assert "Calibrated on 40 examples" in text
    assert f"| **the policy** | {100 * values['scores']['acc']:.1f} | {values['mean_layer']:.2f} |" in text
    assert values["examples"] == 40  # none of those that the rule was fitted on


def test_a_policy_by_hand_has_no_certificate_and_keeps_the_curve(home: Path, ask: Callable[..., Any]) -> None:
    ask("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.2)
    ask("calibrate", home / "films", "--policy", "patience:2")
    text = (home / "films/model/README.md").read_text()
    assert "`patience:2`" in text
    assert "no certificate" in text
    assert "## Curve" in text
    assert "the policy**" not in text
