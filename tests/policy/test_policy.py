"""Policies as people write them: text, limits, thresholds by class, and what is refused with which advice."""

import json
import warnings
from dataclasses import replace
from typing import Any

import fakes
import numpy as np
import pytest

from offramp.errors import BadPolicy, CertificateMismatch, Incompatible, OfframpError
from offramp.guarantees.certificate import check_certificate
from offramp.policy import Policy
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from offramp.rules import RULES
from offramp.rules.agreement import Agreement
from offramp.rules.confidence import Confidence, Entropy
from offramp.rules.fixed import Oracle

SURE, UNSURE = [4.0, 0.0], [0.1, 0.0]
ALL_SURE = np.array([[SURE] * 6])

WRITTEN = [
    "entropy:0.3",
    "entropy:0.3,normalized=true",
    "entropy:0.3,normalized=true,top=5",
    "entropy:0.1/0.2/0.3",
    "confidence:0.95",
    "margin:0.8",
    "min_probability:0.01",
    "patience:6",
    "patience:3,tolerance=0.1",
    "window:8,shape=side,entropy=0.1,margin=0",
    "window:8,shape=range,entropy=0.1,margin=0,range=0.05",
    "patience_confidence:2,confidence=0.9",
    "gate:0.5",
    "ensemble:0.9",
    "layer:6",
    "never",
    "never,max_layer=6",
    "confidence:0.9,min_layer=2,max_layer=10",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_text_is_written_as_it_was_read(text: str) -> None:
    assert str(Policy.parse(text)) == text


@pytest.mark.parametrize("text", WRITTEN)
def test_json_survives_a_file(text: str) -> None:
    policy = Policy.parse(text)
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_spaces_and_commas_between_thresholds_are_read_too() -> None:
    assert Policy.parse(" entropy:0.1, 0.2, normalized=true") == Policy.parse(
        "entropy:0.1/0.2,normalized=true"
    )


def test_thresholds_of_numpy_are_plain_numbers_inside() -> None:
    policy = Policy(Entropy(), np.array([0.25, 0.5]))  # type: ignore[arg-type]
    assert policy == Policy(Entropy(), (0.25, 0.5))
    assert json.dumps(policy.to_json())


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("entrpy:0.3", "did you mean entropy?"),
        ("nothing_like_it:1", "available: agreement, entropy"),
        ("", "available: agreement"),
        ("entropy:0.3,normalised=true", "did you mean normalized?"),
        ("entropy:0.3,min_layers=2", "did you mean min_layer"),
        ("entropy:0.3,normalized=yes", "normalized=true or normalized=false"),
        ("entropy:0.3,top=2,top=3", "set twice"),
        ("entropy", "write entropy:VALUE"),
        ("entropy:", "should be a number"),
        ("entropy:nan", "give a number"),
        ("entropy:low", "should be a number"),
        ("entropy:0.3,top=2.5", "should be a whole number"),
        ("patience:2.5", "whole number"),
        ("never:3", "write just never"),
        ("never,3", "key=value"),
        ("entropy:0.1,top=2,0.3", "'0.3' should be an option"),
        ("entropy:0.1,0.2,top=2,0.3", "'0.3' should be an option"),
        ("layer:3/4", "a single layer"),
        ("oracle", "for curves only"),
        ("confidence:0.5,min_layer=5,max_layer=4", "greater than max_layer"),
    ],
)
def test_a_mistake_in_the_text_gets_advice(text: str, advice: str) -> None:
    with pytest.raises(BadPolicy) as error:
        Policy.parse(text)
    assert advice in str(error.value)


@pytest.mark.parametrize(
    ("record", "advice"),
    [
        ({"rule": "entropi"}, "did you mean entropy?"),
        ({"rule": "entropy", "treshold": 0.3}, "did you mean threshold"),
        ({"rule": "entropy", "options": {"normalised": True}}, "did you mean normalized?"),
        ({}, "unknown rule ''"),
        ({"rule": "entropy", "threshold": 0.3, "newer": 1}, "no field 'newer'"),
        ({"rule": "entropy", "threshold": 0.3, "labels": ["a"]}, "no field 'labels'"),
        ("entropy:0.3", "not a saved policy"),
        ([1, 2], "not a saved policy"),
        (None, "not a saved policy"),
        ({1: 2}, "not a saved policy"),
        ({"rule": "entropy"}, "no threshold"),
        ({"rule": 3}, "not a saved policy"),
        ({"rule": ["entropy"]}, "not a saved policy"),
        ({"rule": "entropy", "options": ["top"]}, "not a saved policy"),
        ({"rule": "entropy", "options": {"top": "five"}}, "not a saved policy"),
        ({"rule": "entropy", "options": {"normalized": "yes"}}, "normalized=true"),
        ({"rule": "patience", "options": {"tolerance": "0.1"}}, "wrong type"),
        ({"rule": "entropy", "threshold": "low"}, "not a saved policy"),
        ({"rule": "entropy", "threshold": None}, "not a saved policy"),
        ({"rule": "entropy", "threshold": {}}, "not a saved policy"),
        ({"rule": "entropy", "threshold": 10**400}, "not a saved policy"),
        ({"rule": "entropy", "threshold": 0.1, "min_layer": "2"}, "wrong type"),
        ({"rule": "entropy", "threshold": 0.1, "max_layer": 2.5}, "whole number"),
        ({"rule": "entropy", "threshold": 0.1, "certificate": "proven"}, "certificate"),
        ({"rule": "entropy", "threshold": 0.1, "certificate": []}, "certificate"),
    ],
)
def test_a_mistake_in_saved_json_gets_advice(record: Any, advice: str) -> None:
    with pytest.raises(BadPolicy) as error:
        Policy.from_json(record)
    assert advice in str(error.value)


@pytest.fixture
def certified() -> Policy:
    return fakes.certified("entropy:0.3", epsilon={"spam": 0.01, "ham": 0.1})


def test_a_certificate_survives_json(certified: Policy) -> None:
    assert Policy.from_json(json.loads(json.dumps(certified.to_json()))) == certified


@pytest.mark.parametrize(
    "change", [{"examples": 0}, {"bounds": []}, {"bounds": [{}]}, {"delta": 1}, {"more": 1}]
)
def test_a_certificate_that_proves_nothing_is_refused(certified: Policy, change: dict[str, Any]) -> None:
    record = certified.to_json()
    with pytest.raises(BadPolicy, match="certificate"):
        Policy.from_json(record | {"certificate": record["certificate"] | change})


@pytest.mark.parametrize("change", [{"examples": 0}, {"epsilon": 0}, {"risk": "luck"}, {"more": 1}])
def test_a_bound_that_proves_nothing_is_refused(certified: Policy, change: dict[str, Any]) -> None:
    record = certified.to_json()
    record["certificate"]["bounds"][0] |= change
    with pytest.raises(BadPolicy, match="certificate"):
        Policy.from_json(record)


@pytest.mark.parametrize("field", ["risk", "epsilon", "delta", "bounds", "policy"])
def test_an_incomplete_certificate_is_refused(certified: Policy, field: str) -> None:
    record = certified.to_json()
    proof = record["certificate"]
    part = {"policy": proof["conditions"], "risk": proof["bounds"][0], "epsilon": proof["bounds"][0]}
    del part.get(field, proof)[field]
    with pytest.raises(BadPolicy, match=field):
        Policy.from_json(record)


@pytest.mark.parametrize(
    ("changes", "fingerprint", "precision", "message"),
    [
        ({"threshold": 0.4}, "abc", "fp32", "policy entropy:0.3 .here: entropy:0.4."),
        ({"max_layer": 3}, "abc", "fp32", "entropy:0.3,max_layer=3"),
        ({}, "xyz", "fp32", "fingerprint abc .here: xyz."),
        ({}, "abc", "int8", "precision fp32 .here: int8."),
    ],
)
def test_a_certificate_for_something_else_warns(
    certified: Policy, changes: dict[str, Any], fingerprint: str, precision: str, message: str
) -> None:
    with pytest.warns(CertificateMismatch, match=message):
        check_certificate(replace(certified, **changes), fingerprint, precision)


@pytest.mark.parametrize("text", ["confidence:1.5", "entropy:-1", "patience:0", "margin:2", "gate:1.1"])
def test_a_threshold_that_nothing_reaches_is_not_run(text: str) -> None:
    with pytest.raises(Incompatible, match="write never for full depth"):
        Policy.parse(text).check([1, 2, 3, 4], has_gate=True)


@pytest.mark.parametrize(
    "text", ["confidence:1", "entropy:0", "patience:9", "window:0", "entropy:-1/0.5/0/0", "layer:2", "never"]
)
def test_a_threshold_on_the_border_is_run(text: str) -> None:
    Policy.parse(text).check([1, 2, 3, 4])


def test_a_matching_certificate_does_not_warn(certified: Policy) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_certificate(certified, "abc", "fp32")
        loaded = Policy.from_json(json.loads(json.dumps(certified.to_json())))
        check_certificate(loaded, "abc", "fp32")
        check_certificate(Policy(Entropy(), 0.3), "abc", "fp32")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("certificate", "bounds", 0, "epsilon"), 0.0001),
        (("certificate", "delta"), 1e-9),
        (("certificate", "conditions", "fingerprint"), "other"),
        (("certificate", "seal"), "0" * 16),
        (("options", "coefficients"), [[0.5] * 7] * 2),
    ],
)
def test_a_certificate_is_left_out_if_anything_it_depends_on_was_edited(
    place: tuple[Any, ...], value: Any
) -> None:
    policy = fakes.certified(Policy(Agreement(coefficients=((0.1,) * 7,) * 2), 0.9))
    record: Any = json.loads(json.dumps(policy.to_json()))
    assert Policy.from_json(record) == policy
    inner = record
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.warns(CertificateMismatch, match=r"was changed since\. Calibrate again"):
        assert Policy.from_json(record).certificate is None


def test_a_policy_with_the_oracle_is_not_saved() -> None:
    with pytest.raises(BadPolicy, match="cannot be saved"):
        Policy(Oracle(np.array([0, 1]))).to_json()


def test_a_rule_without_a_name_is_refused_with_the_line_to_write() -> None:
    class Own(Confidence):
        pass

    with pytest.raises(BadPolicy, match=r"RULES\['my_rule'\] = Own"):
        Policy(Own(), 0.5)


def test_a_rule_of_ones_own_needs_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Confidence):
        pass

    monkeypatch.setitem(RULES, "own", Own)
    assert str(Policy.parse("own:0.5")) == "own:0.5"
    assert Policy.parse("own:0.5").exits(ALL_SURE).tolist() == [0]


def test_no_example_leaves_before_min_layer_or_stays_after_max_layer() -> None:
    assert Policy.parse("confidence:0.5,min_layer=3").exits(ALL_SURE).tolist() == [2]
    assert Policy.parse("confidence:0.999,max_layer=4").exits(ALL_SURE).tolist() == [3]


def test_runs_are_counted_also_before_min_layer() -> None:
    assert Policy.parse("patience:2,min_layer=5").exits(ALL_SURE).tolist() == [4]


def test_layers_are_those_of_the_model_and_not_the_number_of_the_exit() -> None:
    layers = (2, 4, 6, 8, 10, 12)
    assert Policy.parse("layer:6").exits(ALL_SURE, layers=layers).tolist() == [2]
    assert Policy.parse("confidence:0.5,min_layer=8").exits(ALL_SURE, layers=layers).tolist() == [3]
    assert Policy.parse("never,max_layer=10").exits(ALL_SURE, layers=layers).tolist() == [4]


@pytest.mark.parametrize("text", ["layer:5", "confidence:0.5,min_layer=3", "never,max_layer=13"])
def test_a_layer_without_exit_is_refused_and_the_exits_are_named(text: str) -> None:
    with pytest.raises(Incompatible, match="exits are at 2, 4, 6, 8, 10, 12"):
        Policy.parse(text).exits(ALL_SURE, layers=(2, 4, 6, 8, 10, 12))


def test_with_many_labels_the_least_ready_decides() -> None:
    logits = np.array([[[1.0, 4.0]] * 3])  # certain by 0.73 and by 0.98
    multi = {"problem_type": "multi_label_classification"}
    assert Policy.parse("confidence:0.9").exits(logits, **multi).tolist() == [2]
    assert Policy.parse("confidence:0.7").exits(logits, **multi).tolist() == [0]


def test_one_label_of_its_own_is_no_regression() -> None:
    logits = np.array([[[0.1], [-4.0], [1.0]]])
    exits = Policy.parse("confidence:0.9").exits(logits, problem_type="multi_label_classification")
    assert exits.tolist() == [1]


@pytest.mark.parametrize("name", ["patience:1,tolerance=0.5", "gate:0.5", "layer:2", "never"])
def test_rules_that_need_no_classes_decide_for_regression(name: str) -> None:
    exits = Policy.parse(name).exits([[[1.0], [1.1], [1.2]]], gates=[[0.1, 0.9, 0.9]])
    assert exits.tolist() == ([2] if name == "never" else [1])


@pytest.mark.parametrize("name", sorted({name for name, kind in RULES.items() if not kind.regression}))
def test_rules_for_classes_refuse_regression(name: str) -> None:
    rule = Oracle(np.zeros(1)) if name == "oracle" else RULES[name]()
    with pytest.raises(Incompatible, match="patience, gate, layer, never"):
        Policy(rule, 1 if rule.takes_threshold else 0).exits([[[1.0], [1.1]]])


def test_gates_that_are_broken_hold_their_example() -> None:
    decision = Policy.parse("gate:0.5").decide(np.zeros((2, 3, 2)), [[np.nan, 0.9, 0.9], [0.9, 0.9, 0.9]])
    assert decision.exits.tolist() == [1, 0]
    assert decision.finite.tolist() == [False, True]


def test_no_examples_give_no_exits() -> None:
    for text in WRITTEN:
        exits = 3 if "/" in text else 12
        policy = Policy.parse(text)
        assert policy.exits(np.zeros((0, exits, 3)), np.zeros((0, exits))).shape == (0,)


def test_the_last_exit_answers_even_if_its_logits_are_broken() -> None:
    decision = Policy.parse("entropy:0.3").decide([[UNSURE, [np.nan, 0.0]]])
    assert decision.exits.tolist() == [1]
    assert not decision.finite[0]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"logits": [[1.0, 2.0]]}, r"\(examples, exits, classes\)"),
        ({"logits": np.zeros((2, 0, 3))}, r"\(examples, exits, classes\)"),
        ({"logits": np.zeros((2, 3, 2)), "gates": np.zeros((2, 2))}, "do not fit"),
        ({"logits": np.zeros((2, 3, 2)), "layers": (1, 2)}, "2 layers given"),
        ({"logits": np.zeros((2, 3, 2)), "layers": (3, 2, 1)}, "must increase"),
        ({"logits": np.zeros((2, 3, 2)), "problem_type": "regression"}, "2 real-valued outputs"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments: dict[str, object], advice: str) -> None:
    with pytest.raises(Incompatible, match=advice):
        Policy.parse("patience:1").exits(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("gate:0.5", "has no gate"),
        ("entropy:0.1/0.2", "2 thresholds for 6 exits"),
        ("entropy:0.1,class.2=0.3", "entropy has no option 'class.2'"),
    ],
)
def test_a_policy_that_does_not_fit_the_model_is_refused(text: str, advice: str) -> None:
    with pytest.raises(OfframpError, match=advice):
        Policy.parse(text).exits(ALL_SURE)


@pytest.mark.parametrize(
    ("text", "model", "message"),
    [
        ("gate:0.5", {"problem": SINGLE_LABEL}, "no gate"),
        ("entropy:0.3", {"problem": REGRESSION}, "predicts a number"),
        ("layer:5", {}, "exits are at 2, 4"),
        ("entropy:0.1/0.2/0.3", {}, "3 thresholds for 2 exits"),
    ],
)
def test_check_refuses_what_would_fail_on_every_example(
    text: str, model: dict[str, Any], message: str
) -> None:
    with pytest.raises(Incompatible, match=message):
        Policy.parse(text).check([2, 4], **model)


def test_check_accepts_what_runs() -> None:
    Policy.parse("gate:0.5").check([2, 4], REGRESSION, has_gate=True)
    Policy.parse("patience:1,tolerance=0.1").check([2, 4], REGRESSION)
    Policy.parse("entropy:0.3").check([2, 4], MULTI_LABEL)
