"""A rule that learns, from calibrating on the command line to serving: its coefficients come along."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from starlette.testclient import TestClient
from typer.testing import CliRunner

from offramp.cli import app
from offramp.errors import BadPolicy, CannotLoad
from offramp.folder import load_model
from offramp.inference import Classifier
from offramp.inference.collect import collect
from offramp.policy import Policy, fold
from offramp.serve import server
from offramp.serve.audit import RungReport
from offramp.serve.batcher import Batcher
from offramp.serve.options import ServerOptions
from offramp.serve.protocols.base import WorkerState
from offramp.serve.queue import Request
from offramp.serve.server import load, load_reference, make_app
from offramp.trace import Trace

Until = Callable[[Callable[[], bool]], None]


@dataclass(frozen=True)
class Learned:
    model: Path
    """With a stored policy of the rule `agreement`."""
    rung: Path
    """What `offramp calibrate --dry-run --json` printed for a larger risk."""
    texts: list[str]
    trace: Trace


@pytest.fixture(scope="module")
def learned(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    home = tmp_path_factory.mktemp("learned")
    model, rung = Path(shutil.copytree(saved, home / "model")), home / "rung.json"
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice([*"abcdefghij"], draw.integers(1, 12))) for _ in range(400)]
    trace = collect(*load_data(model, texts))
    trace.save(home / "texts.trace")

    def calibrate(*flags: Any) -> str:
        arguments = ["calibrate", model, home / "texts.trace", "--rule", "agreement", *flags]
        done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert done.exit_code == 0, done.output
        return done.stdout

    calibrate("--guarantee", 0.3)
    rung.write_text(calibrate("--guarantee", 0.5, "--dry-run"), encoding="utf-8")
    return Learned(model, rung, texts, trace)


def load_data(model: Path, texts: list[str]) -> tuple[Any, Dataset, Any]:
    loaded, tokenizer = load_model(model)
    return loaded, Dataset.from_dict({"text": texts}), tokenizer


def layers(policy: Policy, learned: Learned) -> list[int]:
    exits = policy.exits(learned.trace.logits, layers=learned.trace.layers)
    return [learned.trace.layers[exit] for exit in exits[:50]]


def test_a_ladder_runs_the_policy_that_calibrate_printed(learned: Learned) -> None:
    batcher, allowed = load(ServerOptions(str(learned.model), ladder=[learned.rung]))
    batcher.drain(10)
    stored, rung = batcher.ladder.rungs
    assert rung == Policy.from_json(json.loads(learned.rung.read_text())["saved_policy"])
    assert list(allowed) == [str(stored), str(rung)]
    assert stored.rule == rung.rule  # the same trace and seed
    assert stored.threshold > rung.threshold
    served = [each.layer for each in Classifier(batcher.runner).predict(learned.texts[:50], policy=rung)]
    assert served == layers(rung, learned)


def test_a_request_names_a_threshold_and_the_stored_coefficients_decide(learned: Learned) -> None:
    stored = Classifier.from_pretrained(learned.model).runner.policy
    readiness = fold(stored.rule, learned.trace.logits, layers=learned.trace.layers).readiness
    threshold = round(float(np.median(readiness[:50, :-1].max(1))), 3)  # some texts leave early
    options = ServerOptions(str(learned.model), allow=[f"agreement:{threshold}"], allowed_host=["localhost"])
    _, app, _ = make_app(options, WorkerState())
    with TestClient(app, base_url="http://localhost") as client:
        body = {"texts": learned.texts[:50], "policy": f"agreement:{threshold}"}
        reply = client.post("/predict", json=body)
        assert reply.status_code == 200, reply.text
        assert client.post("/predict", json=body | {"policy": "agreement:0.8"}).status_code == 422
    expected = replace(stored, threshold=threshold)
    found = [each["layer"] for each in reply.json()["predictions"]]
    assert found == layers(expected, learned)
    assert len(set(found)) > 1


def test_policies_of_the_same_text_and_another_fit_are_refused(learned: Learned, tmp_path: Path) -> None:
    policy = Policy.from_json(json.loads(learned.rung.read_text())["saved_policy"])
    first, *others = policy.rule.coefficients
    other = replace(policy.rule, coefficients=((first[0] + 1, *first[1:]), *others))
    (tmp_path / "other.json").write_text(json.dumps(replace(policy, rule=other).to_json()))
    with pytest.raises(BadPolicy, match="fitted to different examples"):
        load(ServerOptions(str(learned.model), ladder=(learned.rung, tmp_path / "other.json")))


@pytest.fixture
def retrofitted(learned: Learned, tmp_path: Path) -> Path:
    """The model, and an original that often predicts something else, which its certificate names and allows."""
    model = Path(shutil.copytree(learned.model, tmp_path / "model"))
    original, tokenizer = load_model(model)
    with torch.no_grad():
        original.heads.classifiers[-1].weight.neg_()
        original.heads.classifiers[-1].bias.neg_()
    original.config.policy = None
    original.save_pretrained(model / "reference")
    tokenizer.save_pretrained(model / "reference")
    config = json.loads((model / "config.json").read_text())
    policy = Policy.from_json(config["policy"])
    allowed = tuple(replace(bound, epsilon=0.99) for bound in policy.certificate.bounds)
    named = replace(policy.certificate, reference="my-classifier", bounds=allowed)
    config["policy"] = replace(policy, certificate=named).to_json()
    (model / "config.json").write_text(json.dumps(config))
    return model


def audited(batcher: Batcher, count: int, until: Until) -> RungReport:
    """The report of the audit once it has compared this many predictions."""
    until(lambda: batcher.audit.reports()[0].examined >= count)  # type: ignore[union-attr]
    batcher.drain(10)
    [report] = batcher.audit.reports()  # type: ignore[union-attr]
    return report


def differences(model: Path, texts: list[str]) -> int:
    """The number of texts for which the model and its original predict different labels."""
    truth = Classifier.from_pretrained(model / "reference", "never").predict(texts)
    given = Classifier.from_pretrained(model).predict(texts)
    return sum(a.label != b.label for a, b in zip(given, truth, strict=True))


def distinct(learned: Learned) -> list[str]:
    """50 texts; the audit counts a repeated one once."""
    return [*dict.fromkeys(learned.texts)][:50]


@pytest.mark.parametrize("is_replacement", [False, True])
def test_the_audit_of_a_retrofitted_model_runs_the_original(
    learned: Learned, retrofitted: Path, is_replacement: bool, until: Until
) -> None:
    options = ServerOptions(str(retrofitted), audit_share=1.0)
    batcher, _ = load(options, is_replacement=is_replacement)
    for text in distinct(learned):
        batcher.submit(Request([text])).result(60)
    assert audited(batcher, 50, until).disagreed == differences(retrofitted, distinct(learned)) > 0


def test_a_replacement_serves_before_the_original_is_loaded_and_audits_after_it(
    learned: Learned, retrofitted: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    attempts, may_load = [], threading.Event()

    def load_late(*arguments: Any) -> Classifier:
        attempts.append(1)
        if len(attempts) == 1:
            raise CannotLoad("not there yet")
        assert may_load.wait(60)
        return load_reference(*arguments)

    monkeypatch.setattr(server, "load_reference", load_late)
    monkeypatch.setattr(server, "RELOAD", 0.0)
    batcher, _ = load(ServerOptions(str(retrofitted), audit_share=1.0), is_replacement=True)
    try:
        for text in distinct(learned):
            assert batcher.submit(Request([text])).result(60)
        assert batcher.audit is not None
        assert (batcher.loading, batcher.audit.pending, batcher.audit.reports()[0].examined) == (True, 50, 0)
    finally:
        may_load.set()
    assert audited(batcher, 50, until).disagreed == differences(retrofitted, distinct(learned))
    assert not batcher.loading


def test_a_server_does_not_start_with_a_damaged_original(retrofitted: Path) -> None:
    (retrofitted / "reference" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CannotLoad, match="reference"):
        load(ServerOptions(str(retrofitted), audit_share=1.0))
