"""Reranker on tiny models: live equals offline, whatever runs beside it."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.engine import Engine
from offramp.errors import BadData, BadOption, Incompatible, NotFinite
from offramp.inference import Classifier, Runner
from offramp.inference.reranker import Ranked, Reranker, best_first
from offramp.lists import Lists
from offramp.onnx_export import export
from offramp.policy import Policy
from offramp.rules.rank import Rank, relevance
from offramp.trace import Trace

WORDS = ["good", "bad", "film", *"abcdefgh"]


def draw_queries(number: int, documents: int = 12, seed: int = 0) -> list[tuple[str, list[str]]]:
    draw = random.Random(seed)

    def text(longest: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))

    return [(text(4), [text(9) for _ in range(draw.randint(1, documents))]) for _ in range(number)]


@pytest.fixture(scope="session")
def reranker_folder(
    make_model: Callable[..., Any], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A cross-encoder with one output, without a policy."""
    folder = tmp_path_factory.mktemp("rerankers") / "torch"
    make_model(num_labels=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["torch", "fp32", "int8"])
def reranker(request: pytest.FixtureRequest, reranker_folder: Path) -> Reranker:
    """With a fitted rule whose threshold drops some documents and keeps others."""
    folder = reranker_folder
    if request.param != "torch":
        pairs = [(query, text) for query, documents in draw_queries(30, seed=8) for text in documents]
        folder = export(reranker_folder, folder.with_name(request.param), request.param, texts=pairs)
    return with_rule(Runner.from_pretrained(folder, "never"))


@pytest.fixture(scope="session")
def two_classes(make_model: Callable[..., Any], tokenizer: Any) -> Reranker:
    return with_rule(Runner(make_model(labels=["irrelevant", "relevant"]), tokenizer))


def with_rule(runner: Runner, threshold: float = 0.2, top_k: int = 3) -> Reranker:
    queries = draw_queries(30, seed=7)
    pairs = [(query, document) for query, documents in queries for document in documents]
    logits, _ = runner.engine.trace(runner.tokenizer(pairs))
    numbers = np.arange(len(pairs))
    trace = Trace(
        logits,
        runner.runtime.info.exits,
        None,
        numbers,
        numbers,
        problem=runner.runtime.info.problem,
    )
    sizes = np.array([len(documents) for _, documents in queries])
    return with_policy(runner, Policy(Rank.fit(replace(trace, sizes=sizes), top_k), threshold))


def with_policy(runner: Runner, policy: Policy | str) -> Reranker:
    return Reranker(Runner(runner.runtime, runner.tokenizer.rust, policy))


QUERIES = [
    ("good film", ["a b", "bad", "good good film", "c d e f g", "film", "b", "a good bad film", "h", "e e"]),
    ("a", ["bad film"]),
    ("bad b c", ["a", "b", "good", "film film film film"]),
    (
        "film",
        ["c c", "d good", "a b c d e f", "g", "h h", "bad bad bad", "film good", "b", "e", "f f", "g a", "c"],
    ),
    ("h", ["good", "bad", "good a"]),
]
QUERY, DOCUMENTS = QUERIES[3]


def with_threshold(reranker: Reranker, threshold: float, top_k: int = 3) -> Reranker:
    policy = reranker.runner.policy
    rule = replace(policy.rule, top_k=top_k)  # type: ignore[call-arg,type-var]
    return with_policy(reranker.runner, replace(policy, rule=rule, threshold=threshold))


def at_full_depth(reranker: Reranker) -> Reranker:
    return with_policy(reranker.runner, "never")


def offline(reranker: Reranker, query: str, documents: list[str], top_k: int, exact: bool) -> list[Ranked]:
    runner = reranker.runner
    logits, _ = runner.engine.trace(runner.tokenizer([(query, text) for text in documents]))
    policy = runner.policy.with_exact_top() if exact else runner.policy
    info, lists = runner.runtime.info, Lists.consecutive([len(documents)], top_k)
    decision = policy.decide(logits, None, info.exits, info.problem, lists)
    layers = np.asarray(info.exits)[decision.exits]
    return best_first(relevance(decision.logits), layers, documents)[:top_k]


def assert_same(found: list[Ranked], expected: list[Ranked]) -> None:
    assert [each.index for each in found] == [each.index for each in expected]
    assert [each.layer for each in found] == [each.layer for each in expected]
    assert [each.document for each in found] == [each.document for each in expected]
    assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-4)


@settings(max_examples=25)
@given(threshold=st.floats(0, 0.49), top_k=st.integers(1, 14), exact=st.booleans())
def test_live_equals_offline_for_any_threshold(
    reranker: Reranker, threshold: float, top_k: int, exact: bool
) -> None:
    changed = with_threshold(reranker, threshold)
    for found, (query, documents) in zip(
        changed.rank_many(QUERIES, top_k, exact_top=exact), QUERIES, strict=True
    ):
        assert_same(found, offline(changed, query, documents, top_k, exact))


def test_the_rule_saves_layers_and_exact_top_runs_survivors_to_full_depth(reranker: Reranker) -> None:
    found = reranker.rank(QUERY, DOCUMENTS)
    assert len(found) == 3
    everything = [each.layer for query in QUERIES for each in offline(reranker, *query, top_k=3, exact=False)]
    assert min(everything) < 4
    exact = reranker.rank(QUERY, DOCUMENTS, top_k=1, exact_top=True)
    assert exact[0].layer == 4


@pytest.mark.parametrize("top_k", [1, 3, 50])
def test_without_a_rule_the_order_is_that_of_full_depth(reranker: Reranker, top_k: int) -> None:
    plain = at_full_depth(reranker)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    scores = relevance(reranker.runner.decide(pairs, "never").logits)
    found = plain.rank(QUERY, DOCUMENTS, top_k)
    assert [each.index for each in found] == np.argsort(-scores, kind="stable")[:top_k].tolist()
    assert {each.layer for each in found} == {4}


def test_a_k_beyond_the_list_gives_all_documents_in_the_order_of_full_depth(reranker: Reranker) -> None:
    found = reranker.rank(QUERY, DOCUMENTS, top_k=99)
    assert_same(found, at_full_depth(reranker).rank(QUERY, DOCUMENTS, top_k=99))
    assert_same(found, reranker.rank(QUERY, DOCUMENTS, top_k=10**30))
    assert len(found) == len(DOCUMENTS)


@pytest.mark.parametrize(("window", "batch_tokens"), [(1, 8), (5, 40), (1024, None)])
def test_neighbours_and_batches_never_change_a_ranking(
    reranker: Reranker, window: int, batch_tokens: int | None
) -> None:
    small = with_policy(reranker.runner, reranker.runner.policy)
    small.runner.engine = Engine(reranker.runner.runtime, window, batch_tokens)
    alone = [reranker.rank(*query) for query in QUERIES]
    for found, expected in zip(small.rank_many(QUERIES), alone, strict=True):
        assert_same(found, expected)


def test_a_list_is_never_divided_between_windows(reranker: Reranker) -> None:
    runner = reranker.runner
    engine = Engine(runner.runtime, window=5)
    tokens = runner.tokenizer(["a"] * 14)
    assert [*engine.windows(tokens, [2, 2, 7, 1, 2])] == [range(4), range(4, 11), range(11, 14)]


def test_two_classes_rank_by_the_second_against_the_first(two_classes: Reranker) -> None:
    pairs = [(QUERY, document) for document in DOCUMENTS]
    chances = [
        each.probabilities["relevant"]
        for each in Classifier(two_classes.runner).predict(pairs, policy="never")
    ]
    found = at_full_depth(two_classes).rank(QUERY, DOCUMENTS, top_k=99)
    assert [each.index for each in found] == np.argsort(-np.array(chances), kind="stable").tolist()
    best = found[0]
    assert 1 / (1 + np.exp(-best.score)) == pytest.approx(chances[best.index], abs=1e-5)


def test_past_its_deadline_a_document_keeps_the_score_of_its_last_exit(reranker: Reranker) -> None:
    found = reranker.rank(QUERY, DOCUMENTS, top_k=99, deadline_ms=0)
    assert {each.layer for each in found} == {0}
    assert len(found) == len(DOCUMENTS)


def test_past_its_deadline_a_list_without_a_rule_has_the_order_of_the_last_exit(reranker: Reranker) -> None:
    runner = reranker.runner
    logits, _ = runner.engine.trace(runner.tokenizer([(QUERY, document) for document in DOCUMENTS]))
    found = at_full_depth(reranker).rank(QUERY, DOCUMENTS, top_k=99, deadline_ms=0)
    assert_same(found, best_first(relevance(logits[:, 0]), np.zeros(len(logits), int), DOCUMENTS))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ((" ", ["a"]), "query 1: the query is empty"),
        (("a", ["b", 7]), "query 1: document 1 is int 7"),
        ("a", "query 1: it is str 'a', not a query with its documents"),
    ],
)
def test_an_error_names_the_query_among_several(reranker: Reranker, second: Any, reason: str) -> None:
    with pytest.raises(BadData, match=reason):
        reranker.rank_many([QUERIES[0], second])


@pytest.mark.parametrize(
    ("query", "documents", "reason"),
    [
        ("  ", ["a"], "the query is empty"),
        (None, ["a"], "the query is NoneType"),
        ("a", [], "no documents"),
        ("a", "b", "the documents are str 'b'"),
        ("a", 5, "the documents are int 5"),
        ("a", ["b", 7], "document 1 is int 7"),
        ("a", ["b", ("c", "d")], "document 1 is tuple"),
    ],
)
def test_what_is_not_a_query_with_documents_is_refused(
    two_classes: Reranker, query: Any, documents: Any, reason: str
) -> None:
    with pytest.raises(BadData, match=reason):
        two_classes.rank(query, documents)


def test_k_must_be_positive_and_no_queries_give_nothing(two_classes: Reranker) -> None:
    with pytest.raises(BadOption, match="top_k=0"):
        two_classes.rank("a", ["b"], top_k=0)
    assert two_classes.rank_many([]) == []


def test_a_score_that_is_not_a_number_is_an_error_that_names_the_document(
    make_model: Callable[..., Any], tokenizer: Any
) -> None:
    model = make_model(num_labels=1)
    with torch.no_grad():  # only texts with the word "bad" meet it
        model.backbone.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids("bad")] = float(
            "nan"
        )
    reranker = Reranker(Runner(model, tokenizer))
    with pytest.raises(NotFinite, match="document 1"):
        reranker.rank("film", ["good", "bad"])
    assert len(reranker.rank("film", ["good", "a"])) == 2


def test_a_model_with_three_labels_cannot_rank(make_model: Callable[..., Any], tokenizer: Any) -> None:
    with pytest.raises(Incompatible, match="3 labels"):
        Reranker(Runner(make_model(num_labels=3), tokenizer))
