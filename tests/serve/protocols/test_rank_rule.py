"""Reranking by a rank rule: the server gives what `Reranker` gives, and long lists do not block others."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from offramp import Reranker, store_rank_rule
from offramp.errors import Draining, RunFailed
from offramp.inference import Classifier
from offramp.models.exit_model import ExitModel
from offramp.policy.ranking import RankRule
from offramp.serve.batcher import Batcher, Limits, Request
from offramp.serve.ladder import Ladder
from offramp.serve.options import ServerOptions
from offramp.serve.server import load

QUERY = "good film"
DOCUMENTS = ["bad bad", "a good film", "b c", "good good good film", "a", "d e f", "film", "g h"]
RULE = RankRule(2, 0.2, (0.5, 0.6, 0.8, 0.9, 1), (0,) * 5, ((0, 3, -2),) * 4)


@pytest.fixture(scope="module")
def reranker(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast) -> Reranker:
    return Reranker(Classifier(make_model(num_labels=1), tokenizer), RULE)


@pytest.fixture
def batcher(reranker: Reranker) -> Any:
    found = Batcher(
        reranker.classifier, Ladder([reranker.classifier.policy]), Limits(), rank_ladder=Ladder([RULE])
    )
    yield found
    found.drain(10)


def pairs(documents: list[str]) -> list[tuple[str, str]]:
    return [(QUERY, document) for document in documents]


def test_the_server_ranks_as_the_library_does(reranker: Reranker, serve: Callable[..., Any]) -> None:
    server = serve(reranker.classifier, rank_rules=[RULE])
    (all_ranked,) = reranker.rank_all([(QUERY, DOCUMENTS)], top_k=2)
    response = server.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True})
    assert [each["index"] for each in response.json()] == [each.index for each in all_ranked]
    assert [each["score"] for each in response.json()] == pytest.approx(
        [each.score for each in all_ranked], abs=1e-5
    )
    assert response.headers["x-offramp-policy"] == "rank:0.2,top_k=2"
    layers = [0] * len(DOCUMENTS)
    for each in all_ranked:
        layers[each.index] = each.layer
    assert response.headers["x-offramp-layers"] == ",".join(map(str, layers))
    assert min(layers) < 4


def test_top_n_is_the_number_of_documents_to_find(reranker: Reranker, serve: Callable[..., Any]) -> None:
    server = serve(reranker.classifier, rank_rules=[RULE])
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 1, "use_activation": False}
    found = server.client.post("/v1/rerank", json=body).json()["results"]
    expected = reranker.rank(QUERY, DOCUMENTS, top_k=1)
    assert [each["index"] for each in found] == [each.index for each in expected]
    assert [each["relevance_score"] for each in found] == pytest.approx([expected[0].score], abs=1e-5)


def test_a_request_that_names_a_policy_is_not_ranked_by_the_rule(
    reranker: Reranker, serve: Callable[..., Any]
) -> None:
    server = serve(reranker.classifier, rank_rules=[RULE])
    response = server.client.post(
        "/rerank", json={"query": QUERY, "texts": DOCUMENTS}, headers={"x-offramp-policy": "never"}
    )
    assert response.headers["x-offramp-layers"] == ",".join(["4"] * len(DOCUMENTS))
    assert server.client.get("/info").json()["ranking"]["rule"] == "rank:0.2,top_k=2"


def test_lists_that_arrive_together_get_their_own_results(batcher: Batcher, reranker: Reranker) -> None:
    lists = [[*np.random.default_rng(seed).permutation(DOCUMENTS)][: 2 + seed] for seed in range(6)]
    lists = [[str(document) for document in documents] for documents in lists]
    with ThreadPoolExecutor(6) as pool:
        requests = [Request(pairs(documents), top_k=1 + index % 3) for index, documents in enumerate(lists)]
        replies = [future.result(30) for future in pool.map(batcher.submit, requests)]
    for index, (documents, reply) in enumerate(zip(lists, replies, strict=True)):
        (expected,) = reranker.rank_all([(QUERY, documents)], top_k=1 + index % 3)
        assert {each.index: each.layer for each in expected} == {
            row: prediction.layer for row, prediction in enumerate(reply.predictions)
        }
    assert batcher.waiting.items == batcher.waiting.tokens == 0


def test_a_long_list_does_not_block_others(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long one is stopped inside the model after some micro-batches; what came later is finished by then."""
    classifier = Classifier(reranker.classifier.runtime, reranker.classifier.tokenizer.rust, batch_tokens=16)
    batcher = Batcher(classifier, Ladder([classifier.policy]), Limits(), rank_ladder=Ladder([RULE]))
    run, started, go_on = classifier.runtime.run, threading.Event(), threading.Event()

    def run_slowly(exit: int, state: Any) -> Any:
        started.set()
        go_on.wait(30)
        return run(exit, state)

    monkeypatch.setattr(classifier.runtime, "run", run_slowly)
    finished: list[str] = []
    try:
        long = batcher.submit(Request(pairs([f"a b c {'d ' * (n % 4)}" for n in range(300)]), top_k=2))
        long.add_done_callback(lambda _: finished.append("long"))
        assert started.wait(30)
        others = {
            "short": batcher.submit(Request(pairs(DOCUMENTS[:3]), top_k=2)),
            "text": batcher.submit(Request(pairs(DOCUMENTS[:1]))),
        }
        for name, future in others.items():
            future.add_done_callback(lambda _, name=name: finished.append(name))  # type: ignore[misc]
        go_on.set()
        assert len(long.result(60).predictions) == 300
        assert {*finished[:2]} == {"short", "text"}
    finally:
        go_on.set()
        batcher.drain(10)


def test_a_deadline_ends_a_list_with_the_scores_so_far(batcher: Batcher) -> None:
    reply = batcher.submit(Request(pairs(DOCUMENTS), top_k=2, deadline_ms=0)).result(30)
    assert {each.layer for each in reply.predictions} == {0}


def test_a_list_fails_if_the_model_does_and_the_next_one_runs(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batcher.classifier.runtime, "run", lambda exit, state: 1 / 0)
        with pytest.raises(RunFailed):
            batcher.submit(Request(pairs(DOCUMENTS), top_k=2)).result(30)
    assert batcher.waiting.items == 0
    assert len(batcher.submit(Request(pairs(DOCUMENTS), top_k=2)).result(30).predictions) == 8


def test_a_list_that_runs_when_the_server_stops_fails_with_draining(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on, run = threading.Event(), threading.Event(), batcher.classifier.runtime.run

    def run_slowly(exit: int, state: Any) -> Any:
        started.set()
        go_on.wait(30)
        return run(exit, state)

    monkeypatch.setattr(batcher.classifier.runtime, "run", run_slowly)
    future = batcher.submit(Request(pairs(DOCUMENTS), top_k=2))
    assert started.wait(30)
    future.add_done_callback(lambda _: go_on.set())
    batcher.drain(0)
    with pytest.raises(Draining):
        future.result(30)
    assert not batcher.running


def test_the_server_loads_the_rule_of_the_model(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    make_model(num_labels=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    store_rank_rule(tmp_path, RULE)
    batcher, _ = load(ServerOptions(str(tmp_path)))
    batcher.drain(10)
    assert batcher.rank_rule == RULE
