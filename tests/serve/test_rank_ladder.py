"""The ladder and the audit for lists of documents: looser rules under load, and a check of what they lose."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from offramp import Reranker, store_rank_rule
from offramp.errors import BadPolicy, TooLarge
from offramp.guarantees import Certificate, Conditions
from offramp.inference import Classifier
from offramp.models.exit_model import ExitModel
from offramp.policy import Decision
from offramp.policy.ranking import RankRule
from offramp.runtimes import Tokens
from offramp.serve.batcher import Batcher, Limits, Request
from offramp.serve.ladder import FULL_DEPTH, Ladder, sync_broken
from offramp.serve.list_audit import ListAudit, RankedList
from offramp.serve.options import ServerOptions
from offramp.serve.server import load

QUERY = "good film"
DOCUMENTS = ["bad bad", "a good film", "b c", "good good good film", "a", "d e f", "film", "g h"]
RULE = RankRule(2, 0.01, (0.5, 0.6, 0.8, 0.9, 1), (0,) * 5, ((0, 3, -2),) * 4)
LAYERS = (0, 1, 2, 3, 4)


def certified(
    threshold: float = 0.49,
    epsilon: float = 0.05,
    mean_layer: float = 1.0,
    reference: str = "",
    **about: Any,
) -> RankRule:
    rule = replace(RULE, threshold=threshold)
    exits = {"mean_layer": mean_layer, "exits": (0.2,) * 5}
    return replace(
        rule,
        certificate=Certificate(
            risk="overlap",
            epsilon=epsilon,
            delta=0.05,
            bound="betting",
            examples=100,
            observed_risk=0.0,
            reference=reference,
            top_k=2,
            conditions=Conditions(str(rule), **exits, **about),
        ),
    )


@pytest.fixture(scope="module")
def reranker(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast) -> Reranker:
    return Reranker(Classifier(make_model(num_labels=1), tokenizer), RULE)


@pytest.fixture
def start(reranker: Reranker) -> Iterator[Callable[..., Batcher]]:
    started: list[Batcher] = []

    def start(
        rules: Sequence[RankRule], documents: int = 4096, share: float = 0.0, **options: Any
    ) -> Batcher:
        classifier, ladder = reranker.classifier, Ladder(rules)
        audit = ListAudit(rules, classifier.runtime.info.exits, share=share) if share else None
        normal, limits = Ladder([classifier.policy]), Limits(documents=documents)
        started.append(Batcher(classifier, normal, limits, rank_ladder=ladder, list_audit=audit, **options))
        return started[-1]

    yield start
    for each in started:
        each.drain(10)


def ranked(documents: Sequence[str] = DOCUMENTS, **options: Any) -> Request:
    return Request([(QUERY, document) for document in documents], **{"top_k": 2, **options})


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def shuffled(seed: int) -> list[str]:
    chance = np.random.default_rng(seed)
    return [" ".join(chance.permutation("a b c good bad film".split())[:4]) for _ in range(10)]


def test_under_load_lists_are_ranked_by_a_looser_rule(start: Callable[..., Batcher]) -> None:
    rules = [RULE, certified()]
    for documents, rung in {4096: 0, 16: 1}.items():
        reply = start(rules, documents).submit(ranked()).result(30)
        assert (reply.rung, reply.rank_rule) == (rung, rules[rung])
        assert reply.policy == str(rules[rung])


def test_a_huge_k_of_one_client_does_not_fail_the_lists_of_others(start: Callable[..., Batcher]) -> None:
    batcher = start([RULE])
    together = [batcher.submit(ranked(top_k=k)) for k in (2, 10**30, 1, 2**63) for _ in range(4)]
    assert all(len(each.result(30).predictions) == len(DOCUMENTS) for each in together)


def test_without_a_safe_rule_a_late_list_still_has_the_scores_of_its_exits(
    start: Callable[..., Batcher],
) -> None:
    batcher = start([RULE])
    assert batcher.rank_ladder is not None
    batcher.rank_ladder.forbid(0)
    late = batcher.submit(ranked(deadline_ms=0.0)).result(30)
    assert late.rung == FULL_DEPTH
    assert len({each.score for each in late.predictions}) > 1


def test_a_rung_that_is_not_certified_or_exits_later_is_refused() -> None:
    with pytest.raises(BadPolicy, match="no certificate"):
        Ladder([RULE, RULE])
    with pytest.raises(BadPolicy, match="exits later"):
        Ladder([certified(mean_layer=1), certified(mean_layer=2)])


def test_the_audit_compares_lists_with_the_top_k_of_full_depth(
    start: Callable[..., Batcher], reranker: Reranker
) -> None:
    rule = replace(RULE, threshold=0.49)
    batcher = start([rule], share=1.0)
    full, early = Reranker(reranker.classifier), Reranker(reranker.classifier, rule)
    lost = 0.0
    for seed in range(6):
        documents = shuffled(seed)
        best = [{each.index for each in model.rank(QUERY, documents, 2)} for model in (full, early)]
        lost += 1 - len(best[0] & best[1]) / 2
        batcher.submit(ranked(documents)).result(30)
    wait_for(lambda: batcher.list_audit.reports()[0].examined == 6)  # type: ignore[union-attr]
    assert batcher.list_audit is not None
    (report,) = batcher.list_audit.reports()
    assert report.disagreed == pytest.approx(lost)
    assert lost > 0
    assert report.lower <= lost / 6 <= report.upper
    assert sum(report.exits) == 6  # one document of each list


def test_a_rule_that_loses_more_than_certified_is_not_used_any_more(start: Callable[..., Batcher]) -> None:
    batcher = start([certified(epsilon=0.0001)], share=1.0)
    ladder = batcher.rank_ladder
    assert ladder is not None
    for seed in range(200):
        batcher.submit(ranked(shuffled(seed))).result(30)
        if ladder.broken:
            break
    wait_for(lambda: bool(ladder.broken))
    reply = batcher.submit(ranked()).result(30)
    assert reply.rung == FULL_DEPTH
    assert {each.layer for each in reply.predictions} == {4}


def test_other_k_and_deadlines_are_not_audited(start: Callable[..., Batcher]) -> None:
    batcher = start([RULE], share=1.0)
    for request in (ranked(top_k=3), ranked(deadline_ms=60_000)):
        batcher.submit(request).result(30)
    assert batcher.list_audit is not None
    assert batcher.list_audit.pending == 0
    assert sum(batcher.list_audit.reports()[0].exits) == 0


def test_the_audit_of_a_list_runs_one_micro_batch_at_a_time() -> None:
    audit, steps = ListAudit([RULE], LAYERS, share=1), []

    def run(tokens: Sequence[Tokens]) -> Iterator[Decision]:
        for step in range(3):
            steps.append(step)
            yield Decision(np.zeros(2, int), np.array([[2.0], [1.0]]), np.ones(2, bool))

    audit.offer(0, RankedList([(), ()], np.array([0.0, 1.0]), 1), [1, 2])  # type: ignore[list-item]
    for count in (1, 2, 3):
        assert audit.examine(run) is None
        assert (len(steps), audit.pending) == (count, 1)
    audit.examine(run)
    assert audit.pending == 0
    assert (audit.reports()[0].examined, audit.reports()[0].disagreed) == (1, 1.0)


def test_lists_are_compared_with_the_original_if_the_certificate_names_it() -> None:
    for reference, expected in {"original": 1.0, None: 0.0}.items():
        audit = ListAudit([certified(reference=reference)], LAYERS, share=1)

        def run(logits: list[float], tokens: Sequence[Tokens]) -> Iterator[Decision]:
            yield Decision(np.zeros(2, int), np.array(logits)[:, None], np.ones(2, bool))

        audit.offer(0, RankedList([(), ()], np.array([0.0, 1.0]), 1), [1, 2])  # type: ignore[list-item]
        while audit.pending:
            audit.examine(lambda tokens: run([1.0, 2.0], tokens), lambda tokens: run([2.0, 1.0], tokens))
        assert audit.reports()[0].disagreed == expected


def test_a_thousand_documents_fit_the_default_limits_and_block_nobody(
    start: Callable[..., Batcher], reranker: Reranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher, runtime = start([RULE]), reranker.classifier.runtime
    embed, embedded, go_on = runtime.embed, threading.Event(), threading.Event()

    def embed_slowly(tokens: Any) -> Any:
        embedded.set()
        go_on.wait(30)
        return embed(tokens)

    monkeypatch.setattr(reranker.classifier.engine, "batch_tokens", 256)
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
        assert finished[-1] == "long"
    finally:
        go_on.set()


def test_a_list_that_can_never_fit_is_refused(start: Callable[..., Batcher]) -> None:
    with pytest.raises(TooLarge, match="10 texts"):
        start([RULE], documents=9).submit(ranked(["a"] * 10))


def test_info_and_metrics_show_the_ladder_of_rank_rules(
    reranker: Reranker, serve: Callable[..., Any]
) -> None:
    server = serve(reranker.classifier, rank_rules=[RULE, certified()])
    response = server.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS})
    assert response.headers["x-offramp-rung"] == "0"
    ranking = server.client.get("/info").json()["ranking"]
    assert [each["rule"] for each in ranking["ladder"]] == ["rank:0.01,top_k=2", "rank:0.49,top_k=2"]
    assert (ranking["rung"], ranking["forbidden"], ranking["audit"]) == (0, [], [])
    metrics = server.client.get("/metrics").text
    assert 'rung="rank 0"' in metrics
    assert "offramp_rank_rung 0.0" in metrics


def test_workers_share_broken_rank_rules_apart_from_policies(tmp_path: Path) -> None:
    first, second, policies = (Ladder([RULE, certified()]) for _ in range(3))
    first.forbid(1)
    for ladder in (first, second):
        sync_broken(ladder, tmp_path, "broken_rank")
    sync_broken(policies, tmp_path)
    assert (second.broken, policies.broken) == ({1}, set())


@pytest.fixture
def folder(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    make_model(num_labels=1).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def about(folder: Path) -> dict[str, Any]:
    """The model that a certificate is for."""
    runtime = Classifier.from_pretrained(folder, "never").runtime
    return {"fingerprint": runtime.fingerprint(), "precision": runtime.precision}


def test_the_server_loads_a_ladder_of_rank_rules(folder: Path) -> None:
    store_rank_rule(folder, RULE)
    loose, file = certified(**about(folder)), folder.parent / "loose.json"
    file.write_text(json.dumps(loose.to_json()))
    batcher, _ = load(ServerOptions(str(folder), ladder=[file]))
    batcher.drain(10)
    assert batcher.rank_ladder is not None
    assert batcher.rank_ladder.rungs == (RULE, loose)
    assert batcher.ladder.rungs == (batcher.classifier.policy,)
    assert batcher.list_audit is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"certificate": None}, "no certificate"),
        ({"slopes": (1,), "intercepts": (0,), "coefficients": ()}, "for 1 exit"),
    ],
)
def test_a_rank_rule_that_cannot_be_a_rung_is_refused(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    store_rank_rule(folder, RULE)
    file = folder.parent / "rung.json"
    file.write_text(json.dumps(replace(certified(**about(folder)), **change).to_json()))
    with pytest.raises(Exception, match=message):
        load(ServerOptions(str(folder), ladder=[file]))


def test_a_rung_for_lists_needs_a_model_that_ranks_for_the_same_k(folder: Path) -> None:
    file = folder.parent / "rung.json"
    file.write_text(json.dumps(certified(**about(folder)).to_json()))
    with pytest.raises(BadPolicy, match="has no rank rule"):
        load(ServerOptions(str(folder), ladder=[file]))
    store_rank_rule(folder, replace(RULE, top_k=3))
    with pytest.raises(BadPolicy, match="finds the top 3"):
        load(ServerOptions(str(folder), ladder=[file]))
