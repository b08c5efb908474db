"""The sentences about taggers and rankings are checked against the population, by a second implementation of what the
words say, as test_sentences.py does it for single texts."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from offramp.errors import NoSafeThreshold
from offramp.guarantees import LOSSES, Guarantee
from offramp.measuring import calibrate
from offramp.policy import Policy
from offramp.problems import TOKENS
from offramp.trace import Trace

DRAWS, DELTA = 60, 0.2
CHANCE = binom.ppf(0.999, DRAWS, DELTA)
"""More false claims than this are no bad luck."""
TEXTS, EXITS = 1200, 4
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
QUERIES, DOCUMENTS, TOP = 400, 8, 3

Rng = np.random.Generator
Span = tuple[int, int, str]


@cache
def tagged() -> Trace:
    """Texts of one to eight words, whose tags come closer to those of the last exit."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, 9, TEXTS)
    last = rng.normal([3, 0, 0, 0, 0], 1, (sizes.sum(), 1, len(TAGS)))
    noise = rng.normal(0, 1, (sizes.sum(), EXITS, len(TAGS))) * np.array([1.5, 0.8, 0.4, 0])[:, None]
    return Trace(
        3 * (last + noise),
        tuple(range(1, EXITS + 1)),
        labels=None,
        lengths=sizes,
        ids=np.arange(TEXTS),
        texts=np.arange(TEXTS, dtype=np.uint64),
        sizes=sizes,
        problem=TOKENS,
        label_names=TAGS,
    )


def spans_of(tags: Sequence[str]) -> list[Span]:
    """First word, the one after the last, and the name."""
    spans: list[Span] = []
    for word, tag in enumerate(tags):
        kind, _, name = tag.partition("-")
        if kind == "I" and spans and spans[-1][1:] == (word, name):
            spans[-1] = (spans[-1][0], word + 1, name)
        elif kind != "O":
            spans.append((word, word + 1, name))
    return spans


def marked(spans: list[Span]) -> set[int]:
    return {word for start, stop, _ in spans for word in range(start, stop)}


def missed(before: list[Span], after: list[Span]) -> set[int]:
    return marked(before) - marked(after)


TAGGER_SAYS: dict[str, Callable[[list[Span], list[Span]], float]] = {
    # of texts get spans that differ
    "changed_spans": lambda before, after: before != after,
    # of texts have a word that is marked and no longer marked
    "missed_words": lambda before, after: bool(missed(before, after)),
    # of the words that are marked are no longer marked, on average over texts
    "missed_share": lambda before, after: len(missed(before, after)) / max(len(marked(before)), 1),
}


@cache
def tagger_losses(risk: str) -> np.ndarray:
    """(exits, texts) what each text loses if it takes an exit."""
    trace = tagged()
    ends = np.cumsum(trace.sizes)[:-1]
    by_exit = [
        [spans_of([TAGS[tag] for tag in text]) for text in np.split(trace.logits[:, exit].argmax(-1), ends)]
        for exit in range(EXITS)
    ]
    says = TAGGER_SAYS[risk]
    return np.array([[*map(says, by_exit[-1], spans)] for spans in by_exit], float)


def all_new(rng: Rng) -> np.ndarray:
    return rng.choice(TEXTS, 300, replace=False)


def in_bursts(rng: Rng) -> np.ndarray:
    """A tenth of the texts come about ten times, in this log only."""
    return np.repeat(rng.choice(TEXTS, 250, replace=False), np.where(np.arange(250) < 25, 10, 1))


TAGGER_CASES = {
    "changed": Guarantee(0.15, DELTA),
    "missed": Guarantee(0.08, DELTA, "missed"),
    "missed_share": Guarantee(0.06, DELTA, "missed_share"),
    "changed and missed": Guarantee({"changed": 0.18, "missed": 0.08}, DELTA),
}


@pytest.mark.parametrize("log", [all_new, in_bursts])
@pytest.mark.parametrize("case", TAGGER_CASES)
def test_what_a_certificate_says_of_a_tagger_is_false_in_at_most_delta_of_all_draws(
    case: str, log: Callable[[Rng], np.ndarray]
) -> None:
    trace, rng, made, false = tagged(), np.random.default_rng(1), 0, 0
    for _ in range(DRAWS):
        try:
            policy = calibrate(trace[log(rng)], "confidence", TAGGER_CASES[case]).policy
        except NoSafeThreshold:
            continue
        assert policy.certificate is not None
        exits, made = policy.decide_trace(trace).exits, made + 1
        false += any(
            tagger_losses(bound.risk)[exits, np.arange(TEXTS)].mean() > bound.epsilon
            for bound in policy.certificate.bounds
        )
    assert made > DRAWS / 4  # one who always refuses is never wrong
    assert false <= CHANCE


@cache
def ranked() -> Trace:
    """Queries with documents whose scores come closer to those of the last exit."""
    rng = np.random.default_rng(6)
    rows = QUERIES * DOCUMENTS
    scores = rng.normal(0, 2, (rows, 1)) + rng.normal(0, 1, (rows, EXITS)) * [1.5, 0.6, 0.3, 0]
    trace = Trace(
        scores[..., None],
        tuple(range(1, EXITS + 1)),
        labels=None,
        lengths=np.ones(rows),
        ids=np.arange(rows),
        problem="regression",
    )
    return trace.grouped(np.repeat(np.arange(QUERIES), DOCUMENTS).tolist())


def best(scores: np.ndarray) -> np.ndarray:
    """(queries, TOP) the documents, the best first."""
    return np.argsort(-scores.reshape(QUERIES, DOCUMENTS), axis=1)[:, :TOP]


def missing_share(before: np.ndarray, after: np.ndarray) -> float:
    return float(np.mean([len({*one} - {*other}) / TOP for one, other in zip(before, after, strict=True)]))


def ndcg_drop(before: np.ndarray, after: np.ndarray) -> float:
    """With gains from TOP for the reference's best document to 1."""
    discount = 1 / np.log2(np.arange(TOP) + 2)
    gains = np.arange(TOP, 0, -1)
    drops = []
    for one, other in zip(before.tolist(), after.tolist(), strict=True):
        gain = dict(zip(one, gains, strict=True))
        drops.append(
            1 - sum(discount * [gain.get(document, 0) for document in other]) / sum(discount * gains)
        )
    return float(np.mean(drops))


RANKING_SAYS = {
    # of the top k are missed on average
    "overlap": missing_share,
    # nDCG@k against this order drops by at most ... on average
    "ndcg": ndcg_drop,
}


def true_drop(policy: Policy, risk: str) -> float:
    """The larger one of both ways to rank."""
    trace = ranked()
    before = best(trace.logits[:, -1])
    ways = policy, policy.with_exact_top()
    return max(RANKING_SAYS[risk](before, best(way.decide_trace(trace, TOP).logits)) for way in ways)


@pytest.mark.parametrize("risk", RANKING_SAYS)
def test_what_a_certificate_says_of_a_ranking_is_false_in_at_most_delta_of_all_draws(risk: str) -> None:
    trace, rng, made, false = ranked(), np.random.default_rng(1), 0, 0
    for _ in range(DRAWS):
        log = trace[rng.choice(QUERIES, 120, replace=False)]
        try:
            policy = calibrate(log, "rank", Guarantee(0.08, DELTA, risk, top_k=TOP)).policy
        except NoSafeThreshold:
            continue
        made += 1
        false += true_drop(policy, risk) > 0.08
    assert made > DRAWS / 4
    assert false <= CHANCE


def test_every_sentence_of_a_tagger_or_ranking_has_a_case() -> None:
    about_parts = {name for name, loss in LOSSES.items() if loss.unit != "example"}
    assert TAGGER_SAYS.keys() | RANKING_SAYS.keys() == about_parts
