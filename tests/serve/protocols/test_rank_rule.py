"""Reranking by the rule `rank`: the server gives what the library gives, and long lists do not block others."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from offramp.errors import Draining, RunFailed
from offramp.inference import Classifier, Runner
from offramp.lists import Lists
from offramp.models.exit_model import ExitModel
from offramp.policy import Policy
from offramp.rules.rank import Rank, relevance
from offramp.serve.batcher import Batcher, Limits, Request
from offramp.serve.ladder import Ladder
from offramp.serve.options import ServerOptions
from offramp.serve.server import load

QUERY = "good film"
DOCUMENTS = ["bad bad", "a good film", "b c", "good good good film", "a", "d e f", "film", "g h"]
RULE = Rank(2, slopes=(0.5, 0.6, 0.8, 0.9, 1), intercepts=(0,) * 5, coefficients=((0, 3, -2),) * 4)
POLICY = Policy(RULE, 0.2)


@pytest.fixture(scope="module")
def reranker(make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast) -> Classifier:
    return Classifier(Runner(make_model(num_labels=1), tokenizer, POLICY))


@pytest.fixture
def batcher(reranker: Classifier) -> Any:
    batcher = Batcher(reranker.runner, Ladder([POLICY]), Limits())
    yield batcher
    batcher.drain(10)


def rank(reranker: Classifier, documents: list[str], top_k: int) -> tuple[list[float], list[int]]:
    """The scores and layers of the documents, by the library."""
    tokens, lists = reranker.runner.tokenizer(pairs(documents)), Lists.consecutive([len(documents)], top_k)
    decision = reranker.runner.engine.run(tokens, POLICY, lists=lists)
    return relevance(decision.logits).tolist(), [
        reranker.runner.runtime.info.exits[exit] for exit in decision.exits
    ]


def best_first(scores: list[float]) -> list[int]:
    return np.argsort(-np.array(scores), kind="stable").tolist()


def pairs(documents: list[str]) -> list[tuple[str, str]]:
    return [(QUERY, document) for document in documents]


def test_the_server_ranks_as_the_library_does(reranker: Classifier, serve: Callable[..., Any]) -> None:
    server = serve(reranker)
    scores, layers = rank(reranker, DOCUMENTS, 2)
    response = server.client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True})
    order = best_first(scores)
    assert [document["index"] for document in response.json()] == order
    assert [document["score"] for document in response.json()] == pytest.approx(
        [scores[index] for index in order], abs=1e-5
    )
    assert response.headers["x-offramp-policy"] == "rank:0.2,top_k=2"
    assert response.headers["x-offramp-layers"] == ",".join(map(str, layers))
    assert min(layers) < 4


def test_top_n_is_the_number_of_documents_to_find(reranker: Classifier, serve: Callable[..., Any]) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 1, "use_activation": False}
    [found] = serve(reranker).client.post("/v1/rerank", json=body).json()["results"]
    scores, _ = rank(reranker, DOCUMENTS, 1)
    assert found["index"] == best_first(scores)[0]
    assert found["relevance_score"] == pytest.approx(max(scores), abs=1e-5)


def test_a_request_that_names_a_policy_is_not_ranked_by_the_rule(
    reranker: Classifier, serve: Callable[..., Any]
) -> None:
    response = serve(reranker).client.post(
        "/rerank", json={"query": QUERY, "texts": DOCUMENTS}, headers={"x-offramp-policy": "never"}
    )
    assert response.headers["x-offramp-layers"] == ",".join(["4"] * len(DOCUMENTS))


def test_lists_with_a_layer_limit_run_beside_others_and_keep_to_it(
    batcher: Batcher, reranker: Classifier
) -> None:
    futures = [
        batcher.submit(Request(pairs(DOCUMENTS), is_list=True, max_layer=layer)) for layer in (None, 1, None)
    ]
    free, limited, other = (future.result(30) for future in futures)
    layers = [prediction.layer for prediction in free.predictions]
    assert layers == rank(reranker, DOCUMENTS, 2)[1] == [prediction.layer for prediction in other.predictions]
    assert [prediction.layer for prediction in limited.predictions] == [min(layer, 1) for layer in layers]


def test_texts_outside_a_list_run_to_full_depth(batcher: Batcher, reranker: Classifier) -> None:
    reply = batcher.submit(Request(pairs(DOCUMENTS))).result(30)
    assert reply.predictions == reranker.predict(pairs(DOCUMENTS), policy="never")


def test_lists_that_arrive_together_get_their_own_results(batcher: Batcher, reranker: Classifier) -> None:
    lists = [[*np.random.default_rng(seed).permutation(DOCUMENTS)][: 2 + seed] for seed in range(6)]
    lists = [[str(document) for document in documents] for documents in lists]
    with ThreadPoolExecutor(6) as pool:
        requests = [
            Request(pairs(documents), is_list=True, top_k=1 + index % 3)
            for index, documents in enumerate(lists)
        ]
        replies = [future.result(30) for future in pool.map(batcher.submit, requests)]
    for index, (documents, reply) in enumerate(zip(lists, replies, strict=True)):
        _, layers = rank(reranker, documents, 1 + index % 3)
        assert [prediction.layer for prediction in reply.predictions] == layers
    assert batcher.waiting.items == batcher.waiting.tokens == 0


def test_a_long_list_does_not_block_others(reranker: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long one is stopped inside the model after some micro-batches; what came later is finished by then."""
    classifier = Classifier(
        Runner(reranker.runner.runtime, reranker.runner.tokenizer.rust, POLICY, batch_tokens=16)
    )
    batcher = Batcher(classifier.runner, Ladder([POLICY]), Limits())
    run, started, go_on = classifier.runner.runtime.run, threading.Event(), threading.Event()

    def run_slowly(exit: int, state: Any) -> Any:
        started.set()
        go_on.wait(30)
        return run(exit, state)

    monkeypatch.setattr(classifier.runner.runtime, "run", run_slowly)
    finished: list[str] = []
    try:
        long = batcher.submit(
            Request(pairs([f"a b c {'d ' * (n % 4)}" for n in range(300)]), is_list=True, top_k=2)
        )
        long.add_done_callback(lambda _: finished.append("long"))
        assert started.wait(30)
        others = {
            "short": batcher.submit(Request(pairs(DOCUMENTS[:3]), is_list=True, top_k=2)),
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
    reply = batcher.submit(Request(pairs(DOCUMENTS), is_list=True, top_k=2, deadline_ms=0)).result(30)
    assert {each.layer for each in reply.predictions} == {0}


def test_a_list_fails_if_the_model_does_and_the_next_one_runs(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batcher.runner.runtime, "run", lambda exit, state: 1 / 0)
        with pytest.raises(RunFailed):
            batcher.submit(Request(pairs(DOCUMENTS), is_list=True, top_k=2)).result(30)
    assert batcher.waiting.items == 0
    assert len(batcher.submit(Request(pairs(DOCUMENTS), is_list=True, top_k=2)).result(30).predictions) == 8


def test_a_list_fails_if_its_predictions_cannot_be_made_and_the_next_one_runs(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("offramp.serve.batcher.predictions_of", lambda *_: 1 / 0)
        with pytest.raises(RunFailed):
            batcher.submit(Request(pairs(DOCUMENTS), is_list=True, top_k=2)).result(30)
    assert len(batcher.submit(Request(pairs(DOCUMENTS), is_list=True, top_k=2)).result(30).predictions) == 8


def test_a_list_that_runs_when_the_server_stops_fails_with_draining(
    batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on, run = threading.Event(), threading.Event(), batcher.runner.runtime.run

    def run_slowly(exit: int, state: Any) -> Any:
        started.set()
        go_on.wait(30)
        return run(exit, state)

    monkeypatch.setattr(batcher.runner.runtime, "run", run_slowly)
    future = batcher.submit(Request(pairs(DOCUMENTS), is_list=True, top_k=2))
    assert started.wait(30)
    future.add_done_callback(lambda _: go_on.set())
    batcher.drain(0)
    with pytest.raises(Draining):
        future.result(30)
    assert not batcher.running


def test_the_server_loads_the_policy_of_the_model(
    make_model: Callable[..., ExitModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = make_model(num_labels=1)
    model.config.policy = POLICY.to_json()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    batcher, allowed = load(ServerOptions(str(tmp_path)))
    batcher.drain(10)
    assert batcher.ladder.rungs == (POLICY,)
    assert [*allowed] == ["rank:0.2,top_k=2"]
