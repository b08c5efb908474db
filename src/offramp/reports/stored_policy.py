"""Storing a policy in a model folder, with the model card that describes it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from offramp.files import read_json, write_files
from offramp.folder import is_exported
from offramp.folder.manifest import Manifest
from offramp.guarantees.operating_point import OperatingPoint
from offramp.measuring import sweep
from offramp.measuring.scores import measure
from offramp.model_info import CONFIG, ModelInfo
from offramp.policy import Policy
from offramp.policy.text import rule_name
from offramp.reports.card import CARD, CURVE, card, read_optional
from offramp.trace import Trace

POINTS = 9
"""The number of points of a curve in the card."""


def store_policy(
    folder: str | PathLike[str],
    policy: Policy | str,
    trace: Trace | None = None,
    target: Mapping[str, Any] | None = None,
    decide: OperatingPoint | None = None,
) -> Policy:
    """Store a policy in a model folder, saved or exported: `Classifier.from_pretrained` then uses it by default.

    The model card is updated too; with the trace that the policy was calibrated on, it shows the rule's curve.
    `target`, such as {"max_loss": 0.5}, is what it was calibrated for, kept for hints to calibrate it again.
    `decide` replaces the model's operating point. Either all files are updated or none. Returns the policy as stored:
    in an exported folder, a certificate that was issued for another model or precision is left out.
    """
    folder = Path(folder)
    info = ModelInfo.read(folder, replaces_policy=True)
    info = replace(info, decide=info.decide if decide is None else decide)
    policy = info.check_policy(policy)
    if is_exported(folder):
        policy = Manifest.load(folder).bind(policy)
    config = read_json(folder / CONFIG) | {"policy": policy.to_json(), "policy_target": target}
    config["decide"] = str(info.decide)
    if trace is None or trace.has_lists or (trace.labels is None and not trace.problem.has_classes):
        curve = read_optional(folder / CURVE) | {"policy": None}  # measured for an earlier policy
    else:
        curve = curve_for_card(trace, policy)
    files = {
        folder / CONFIG: json.dumps(config, indent=2),
        folder / CARD: card(folder, replace(info, policy=policy), curve),
    }
    if "points" in curve:
        files[folder / CURVE] = json.dumps(curve, indent=1)
    write_files(files)
    return policy


def curve_for_card(trace: Trace, policy: Policy) -> dict[str, Any]:
    """A few points of the rule's curve, from the cheapest to full depth, and the policy itself."""
    measured = sweep(trace, policy)
    (curve,) = measured.curves.values()
    points = curve.points
    chosen = sorted({round(index * (len(points) - 1) / (POINTS - 1)) for index in range(POINTS)})
    return {
        "data": trace.data,
        "examples": trace.whole_examples,
        "layers": trace.layers[-1],
        "rule": rule_name(policy.rule),
        "headline": measured.headline,
        "points": [
            {
                "threshold": points[index].threshold,
                "score": measured.score(points[index]),
                "mean_layer": points[index].cost.mean_layer,
            }
            for index in chosen
        ],
        "policy": measure(policy, trace),
    }
