"""The ladder and the audit with policies for lists of documents: looser ones under load, and what they lose."""

import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from offramp.errors import BadPolicy, TooLarge
from offramp.inference import Classifier, Prediction, Runner
from offramp.lists import Lists
from offramp.models.exit_model import ExitModel
from offramp.policy import Policy
from offramp.rules.rank import Rank, relevance
from offramp.runtimes import Tokens
from offramp.serve.audit import Audit, Sample
from offramp.serve.batcher import Batcher, Limits, Request
from offramp.serve.ladder import FULL_DEPTH, Ladder
from offramp.serve.options import ServerOptions
from offramp.serve.queue import Example
from offramp.serve.server import load

Until = Callable[[Callable[[], bool]], None]
QUERY = "good film"
DOCUMENTS = ["bad bad", "a good film", "b c", "good good good film", "a", "d e f", "film", "g h"]
RULE = Rank(2, slopes=(0.5, 0.6, 0.8, 0.9, 1), intercepts=(0,) * 5, coefficients=((0, 3, -2),) * 4)
POLICY = Policy(RULE, 0.01)
LAYERS = (0, 1, 2, 3, 4)


def certified(threshold: float = 0.49, **changes: Any) -> Policy:
    proof = {"risk": "overlap", "examples": 100, "observed_risk": 0.0, "bound": "betting", "top_k": 2}
    return fakes.certified(Policy(RULE, threshold), exits=(0.2,) * 5, **proof | changes)


@pytest.fixture(scope="module")
def reranker(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast) -> Classifier:
    return Classifier(Runner(make_model(num_labels=1), tokenizer, POLICY))


@pytest.fixture
def start(reranker: Classifier) -> Iterator[Callable[..., Batcher]]:
    started: list[Batcher] = []

    def start(policies: Sequence[Policy], documents: int = 4096, share: float = 0.0) -> Batcher:
        audit = Audit(policies, reranker.runner.runtime.info.exits, share=share) if share else None
        started.append(Batcher(reranker.runner, Ladder(policies), Limits(documents=documents), audit))
        return started[-1]

    yield start
    for batcher in started:
        batcher.drain(10)


def ranked(documents: Sequence[str] = DOCUMENTS, **options: Any) -> Request:
    return Request([(QUERY, document) for document in documents], is_list=True, **options)


def shuffled(seed: int) -> list[str]:
    chance = np.random.default_rng(seed)
    return [" ".join(chance.permutation("a b c good bad film".split())[:4]) for _ in range(10)]


def test_under_load_lists_are_ranked_by_a_looser_rule(start: Callable[..., Batcher]) -> None:
    policies = [POLICY, certified()]
    for documents, rung in {4096: 0, 16: 1}.items():
        reply = start(policies, documents).submit(ranked()).result(30)
        assert (reply.rung, reply.policy) == (rung, str(policies[rung]))


def test_a_huge_k_of_one_client_does_not_fail_the_lists_of_others(start: Callable[..., Batcher]) -> None:
    batcher = start([POLICY])
    together = [batcher.submit(ranked(top_k=k)) for k in (2, 10**30, 1, 2**63) for _ in range(4)]
    assert all(len(each.result(30).predictions) == len(DOCUMENTS) for each in together)


def test_without_a_safe_rule_a_late_list_still_has_the_scores_of_its_exits(
    start: Callable[..., Batcher],
) -> None:
    batcher = start([POLICY])
    batcher.ladder.forbid(0)
    late = batcher.submit(ranked(deadline_ms=0.0)).result(30)
    assert late.rung == FULL_DEPTH
    assert len({each.score for each in late.predictions}) > 1


def test_a_rung_that_is_not_certified_or_exits_later_is_refused() -> None:
    with pytest.raises(BadPolicy, match="no certificate"):
        Ladder([POLICY, POLICY])
    with pytest.raises(BadPolicy, match="exits later"):
        Ladder([certified(mean_layer=1), certified(mean_layer=2)])


def test_the_audit_compares_lists_with_the_top_k_of_full_depth(
    start: Callable[..., Batcher], reranker: Classifier, until: Until
) -> None:
    policy = Policy(RULE, 0.49)
    batcher, lost = start([policy], share=1.0), 0.0
    for seed in range(6):
        documents = shuffled(seed)
        best = [top_two(reranker, documents, each) for each in (policy, Policy.parse("never"))]
        lost += 1 - len(best[0] & best[1]) / 2
        batcher.submit(ranked(documents)).result(30)
    assert batcher.audit is not None
    audit = batcher.audit
    until(lambda: audit.reports()[0].examined == 6)
    (report,) = audit.reports()
    assert report.disagreed == pytest.approx(lost)
    assert lost > 0
    assert report.lower <= lost / 6 <= report.upper
    assert sum(report.exits) == 6  # one document of each list


def top_two(reranker: Classifier, documents: Sequence[str], policy: Policy) -> set[int]:
    tokens = reranker.runner.tokenizer([(QUERY, document) for document in documents])
    decision = reranker.runner.engine.run(tokens, policy, lists=Lists.consecutive([len(documents)], 2))
    return {*np.argsort(-relevance(decision.logits), kind="stable")[:2].tolist()}


def test_a_rule_that_loses_more_than_certified_is_not_used_any_more(
    start: Callable[..., Batcher], until: Until
) -> None:
    batcher = start([certified(epsilon=0.0001)], share=1.0)
    ladder = batcher.ladder
    for seed in range(200):
        batcher.submit(ranked(shuffled(seed))).result(30)
        if ladder.broken:
            break
    until(lambda: bool(ladder.broken))
    reply = batcher.submit(ranked()).result(30)
    assert reply.rung == FULL_DEPTH
    assert {each.layer for each in reply.predictions} == {4}


def test_other_k_and_deadlines_are_not_audited(start: Callable[..., Batcher]) -> None:
    batcher = start([POLICY], share=1.0)
    for request in (ranked(top_k=3), ranked(deadline_ms=60_000)):
        batcher.submit(request).result(30)
    batcher.submit(Request([(QUERY, DOCUMENTS[0])])).result(30)  # no list
    assert batcher.audit is not None
    assert batcher.audit.pending == 0
    assert sum(batcher.audit.reports()[0].exits) == 0


def predictions(*scores: float) -> list[Prediction]:
    return [Prediction(None, score, {}, 1, LAYERS[-1], logits=(score,)) for score in scores]


DOCUMENTS_OF_TWO = [Tokens([1]), Tokens([2])]


def test_the_audit_of_a_list_runs_one_micro_batch_at_a_time() -> None:
    audit, steps = Audit([Policy(replace(RULE, top_k=1), 0.01)], LAYERS, share=1), list[int]()

    def run(tokens: Sequence[Tokens], policy: Policy) -> Generator[None, None, list[Prediction]]:
        for step in range(3):
            steps.append(step)
            yield
        return predictions(2.0, 1.0)

    audit.offer(0, [Sample(Example(DOCUMENTS_OF_TWO), predictions(0.0, 1.0))])
    for count in (1, 2, 3):
        audit.examine(run)
        assert (len(steps), audit.pending) == (count, 1)
    audit.examine(run)
    assert audit.pending == 0
    assert (audit.reports()[0].examined, audit.reports()[0].disagreed) == (1, 1.0)


def test_lists_are_compared_with_the_original_if_the_certificate_names_it() -> None:
    def run(scores: list[float]) -> Generator[None, None, list[Prediction]]:
        yield
        return predictions(*scores)

    for reference, expected in {"original": 0.5, "": 0.0}.items():
        audit = Audit([certified(reference=reference)], LAYERS, share=1)
        audit.offer(0, [Sample(Example([Tokens([row]) for row in range(3)]), predictions(0.0, 1.0, 2.0))])
        while audit.pending:
            audit.examine(lambda *_: run([0.0, 1.0, 2.0]), lambda *_: run([2.0, 1.0, 0.0]))
        assert audit.reports()[0].disagreed == expected


def test_a_thousand_documents_fit_the_default_limits_and_block_nobody(
    start: Callable[..., Batcher], reranker: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher, runtime = start([POLICY]), reranker.runner.runtime
    embed, embedded, go_on = runtime.embed, threading.Event(), threading.Event()

    def embed_slowly(tokens: Any) -> Any:
        embedded.set()
        go_on.wait(30)
        return embed(tokens)

    monkeypatch.setattr(reranker.runner.engine, "batch_tokens", 256)
    monkeypatch.setattr(runtime, "embed", embed_slowly)
    finished: list[str] = []
    try:
        requests = {
            "long": ranked([f"a b c {'d ' * (n % 50)}" for n in range(1000)]),
            "short": ranked(DOCUMENTS[:3]),
            "text": Request([(QUERY, DOCUMENTS[0])]),
        }
        futures = {}
        for name, request in requests.items():
            futures[name] = batcher.submit(request)
            futures[name].add_done_callback(lambda _, name=name: finished.append(name))  # type: ignore[misc]
            assert embedded.wait(30)
        go_on.set()
        assert len(futures["long"].result(60).predictions) == 1000
        batcher.drain(60)  # a future has its result before its callbacks run
        assert finished[-1] == "long"
    finally:
        go_on.set()


def test_a_list_that_can_never_fit_is_refused(start: Callable[..., Batcher]) -> None:
    with pytest.raises(TooLarge, match="10 documents"):
        start([POLICY], documents=9).submit(ranked(["a"] * 10))


def test_info_and_metrics_show_the_ladder(reranker: Classifier, serve: Callable[..., Any]) -> None:
    server = serve(reranker, rungs=(POLICY, certified()))
    response = server.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS})
    assert response.headers["x-offramp-rung"] == "0"
    ladder = server.client.get("/info").json()["ladder"]
    assert [rung["policy"] for rung in ladder] == ["rank:0.01,top_k=2", "rank:0.49,top_k=2"]
    assert 'offramp_texts_total{layer="4",rung="0"}' in server.client.get("/metrics").text


@pytest.fixture
def make_folder(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> Callable[[Policy], Path]:
    """make_folder(policy) -> a reranker that has it."""

    def make(policy: Policy) -> Path:
        model = make_model(num_labels=1)
        model.config.policy = policy.to_json()
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return make


def about(folder: Path) -> dict[str, Any]:
    """The model that a certificate is for."""
    runtime = Classifier.from_pretrained(folder, "never").runner.runtime
    return {"fingerprint": runtime.fingerprint(), "precision": runtime.precision}


def test_the_server_loads_a_ladder_for_lists(make_folder: Callable[[Policy], Path]) -> None:
    folder = make_folder(POLICY)
    loose, file = certified(**about(folder)), folder.parent / "loose.json"
    file.write_text(json.dumps(loose.to_json()))
    batcher, _ = load(ServerOptions(str(folder), ladder=[file]))
    batcher.drain(10)
    assert batcher.ladder.rungs == (POLICY, loose)
    assert batcher.audit is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"certificate": None}, "no certificate"),
        ({"rule": replace(RULE, slopes=(1,), intercepts=(0,), coefficients=())}, "fitted for 1 exit"),
    ],
)
def test_a_policy_for_lists_that_cannot_be_a_rung_is_refused(
    make_folder: Callable[[Policy], Path], change: dict[str, Any], message: str
) -> None:
    folder = make_folder(POLICY)
    file = folder.parent / "rung.json"
    file.write_text(json.dumps(replace(certified(**about(folder)), **change).to_json()))
    with pytest.raises(Exception, match=message):
        load(ServerOptions(str(folder), ladder=[file]))


@pytest.mark.parametrize("normal", [Policy.parse("never"), Policy(replace(RULE, top_k=3), 0.01)])
def test_all_rungs_are_for_texts_or_for_lists_of_the_same_k(
    make_folder: Callable[[Policy], Path], normal: Policy
) -> None:
    folder = make_folder(normal)
    file = folder.parent / "rung.json"
    file.write_text(json.dumps(certified(**about(folder)).to_json()))
    with pytest.raises(BadPolicy, match="the same top k"):
        load(ServerOptions(str(folder), ladder=[file]))
