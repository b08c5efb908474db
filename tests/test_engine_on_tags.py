"""The engine and traces where every token is tagged: texts exit one by one, and batching never changes a result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeRuntime, make_info
from hypothesis import given, settings
from hypothesis import strategies as st

from offramp.engine import Engine
from offramp.errors import BadData, BadOption, Incompatible
from offramp.guarantees.losses import LOSSES, OF_TAGS
from offramp.inference.tagger import find_spans
from offramp.inference.windows import Words
from offramp.lists import Lists
from offramp.measuring import Guarantee
from offramp.measuring.calibrate import calibrate
from offramp.measuring.exit_table import apply_rule, build_exit_table, fit_rule
from offramp.measuring.losses import reference_of
from offramp.numerics import entropy
from offramp.policy import Policy
from offramp.problems import TOKENS
from offramp.rules.agreement import Agreement
from offramp.runtimes import Tokens
from offramp.tags import BEGINS, CONTINUES, SPECIAL, TagScheme
from offramp.trace import Trace

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WEIGHTS = (0.4, 0.02, -0.1, -0.3, -0.1, -0.1, 0.05, -0.1, -0.1, 0.2)
FITTED = Policy(Agreement(coefficients=tuple((0.5 * exit, *WEIGHTS) for exit in range(4)), outside=0))
POLICIES = [
    "agreement:0.6",
    "agreement:0.4,min_layer=4",
    "entropy:0.9",
    "entropy:0.1/0.5/0.9/0.2",
    "confidence:0.5,min_layer=4",
    "margin:0.2,max_layer=6",
    "patience:1",
    "window:2,shape=side,entropy=0.1,margin=0",
    "patience_confidence:1,confidence=0.3",
    "ensemble:0.4",
    "gate:0.2",
    "layer:4",
    "never",
]
KINDS = np.array([SPECIAL] * 3 + [BEGINS, CONTINUES, CONTINUES] * 20)


def make_runtime(**options: Any) -> FakeRuntime:
    return FakeRuntime(make_info(labels=LABELS, problem=TOKENS), **options)


def texts_of(lengths: Sequence[int], seed: int = 0) -> list[Tokens]:
    draw = np.random.default_rng(seed)
    return [Tokens([1, *draw.integers(3, 63, length - 1).tolist()]) for length in lengths]


def make_trace(texts: int, seed: int = 0, **changes: Any) -> Trace:
    """Exits grow surer of the tags of the last one."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 9, texts)
    tokens = int(sizes.sum())
    last = draw.normal(0, 1, (tokens, 5))
    last[:, 0] += 3
    noise = draw.normal(0, 1, (tokens, 4, 5)) * np.array([2.0, 1.0, 0.5, 0])[:, None]
    logits = 3 * (last[:, None] + noise)
    basics: dict[str, Any] = {
        "layers": (1, 2, 3, 4),
        "labels": None,
        "lengths": sizes,
        "ids": np.arange(texts),
        "sizes": sizes,
        "problem": TOKENS,
        "label_names": LABELS,
    }
    return Trace(logits, **basics | changes)


@pytest.mark.parametrize("text", POLICIES)
@settings(max_examples=10)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=25),
    window=st.integers(1, 30),
    batch_tokens=st.integers(1, 100),
    seed=st.integers(0, 9),
)
def test_no_window_budget_or_neighbour_changes_a_result(
    text: str, lengths: list[int], window: int, batch_tokens: int, seed: int
) -> None:
    policy = Policy.parse(text).with_fit_of(FITTED)
    runtime, texts = make_runtime(), texts_of(lengths, seed)
    together = Engine(runtime, window, batch_tokens, KINDS).run(texts, policy)
    alone = [Engine(runtime, word_starts=KINDS).run([each], policy) for each in texts]
    assert together.exits.tolist() == [int(each.exits[0]) for each in alone]
    np.testing.assert_array_equal(together.logits, np.concatenate([each.logits for each in alone]))
    engine = Engine(runtime, window, batch_tokens, KINDS)
    logits, gates = engine.trace(texts)
    offline = policy.decide(logits, gates, runtime.info.exits, TOKENS, engine.tokens_of(texts))
    for name in ("exits", "logits", "finite"):
        np.testing.assert_array_equal(getattr(offline, name), getattr(together, name))


def test_a_text_exits_where_its_least_certain_word_is_certain() -> None:
    runtime, texts = make_runtime(), texts_of(range(2, 40))
    engine = Engine(runtime, word_starts=KINDS)
    logits, _ = engine.trace(texts)
    decision, first = engine.run(texts, Policy.parse("entropy:0.9")), 0
    for text, exit in zip(texts, decision.exits, strict=True):
        kinds = KINDS[text.ids]
        words = [at for at, kind in enumerate(kinds) if kind == BEGINS or (kind == CONTINUES and at == 1)]
        certain = [entropy(logits[first : first + len(kinds), at])[words].max() < 0.9 for at in range(4)]
        assert exit == (certain[:3].index(True) if any(certain[:3]) else 3)
        first += len(kinds)
    assert len({*decision.exits.tolist()}) > 1


def test_tokens_that_are_no_word_neither_hold_a_text_back_nor_let_it_go() -> None:
    logits = np.zeros((3, 2, 5))
    logits[1, :, 1] = 20  # the only certain token, at both exits
    for counts, exit in [([False, True, False], 0), ([True, True, False], 1), ([False, False, True], 1)]:
        lists = Lists.consecutive([3], counts=np.array(counts))
        assert Policy.parse("entropy:0.1").exits(logits, problem_type=TOKENS, lists=lists).tolist() == [exit]


def test_a_text_without_words_is_decided_by_all_its_tokens() -> None:
    engine = Engine(make_runtime(), word_starts=KINDS)
    tokens = engine.tokens_of([Tokens([1, 2]), Tokens([1, 3, 4, 2])])
    assert tokens is not None
    assert tokens.counts is not None
    assert tokens.counts.tolist() == [True, True, False, True, False, False]


@pytest.mark.parametrize("text", ["agreement:0.1", "entropy:1.5", "confidence:0.21"])
def test_no_text_exits_with_a_logit_that_is_not_finite_even_beside_a_word(text: str) -> None:
    policy, texts = Policy.parse(text).with_fit_of(FITTED), [Tokens([1, 3, 5]), Tokens([1, 3, 4])]
    decision = Engine(make_runtime(nan=5), word_starts=KINDS).run(texts, policy)
    assert decision.finite.tolist() == [False, True]
    assert decision.exits[0] == 3
    assert decision.exits[1] < 3


@pytest.mark.parametrize("name", ["agreement", "entropy", "patience", "ensemble", "layer"])
def test_a_table_of_exits_agrees_with_decisions_at_any_threshold(name: str) -> None:
    trace = make_trace(60, counts=None)
    trace = replace(trace, counts=np.random.default_rng(1).random(len(trace.logits)) < 0.6)
    trace = replace(trace, counts=trace.counts | (Lists.consecutive(trace.sizes).columns == 0))
    threshold = {"agreement": 0.5, "entropy": 0.4, "patience": 1, "ensemble": 0.9, "layer": 2}[name]
    policy = fit_rule(Policy.parse(f"{name}:{threshold}"), trace)
    output = apply_rule(trace, policy)
    table = build_exit_table(policy, output.readiness, trace.layers, [threshold])
    decision = policy.decide_trace(trace)
    assert table.exits(0).tolist() == decision.exits.tolist()
    taken = np.repeat(decision.exits, trace.sizes)
    np.testing.assert_array_equal(
        output.predictions[taken, np.arange(len(taken))], trace.decode(decision.logits)
    )


@pytest.mark.parametrize(
    "tags",
    [
        ("O", "B-A", "I-A", "B-B", "I-B"),
        ("O", "I-A", "I-B"),
        ("O", "A", "B"),
        ("LABEL_0", "LABEL_1"),
        ("O", "B-A", "I-A", "L-A", "U-A", "B-B", "I-B", "L-B", "U-B"),
    ],
)
def test_predictions_are_the_same_where_the_spans_are(tags: tuple[str, ...]) -> None:
    scheme, draw = TagScheme(tags), np.random.default_rng(0)
    for _ in range(300):
        words = int(draw.integers(1, 5))
        first, second = (np.eye(len(tags))[draw.integers(0, len(tags), words)] for _ in range(2))
        trace = Trace(
            np.stack([first, second], axis=1),
            (1, 2),
            labels=None,
            lengths=[words],
            ids=[0],
            sizes=[words],
            problem=TOKENS,
            label_names=tags,
        )
        at = np.arange(words)
        spans = [
            [
                (span.start, span.end, span.label)
                for span in find_spans("x" * 9, Words(at, at, at + 1), each, scheme)
            ]
            for each in (first, second)
        ]
        agrees = bool(trace.agrees(trace.logits[:, 0])[0])
        assert agrees == (spans[0] == spans[1])


def test_a_trace_of_tags_survives_a_file_and_indexing(tmp_path: Path) -> None:
    trace = make_trace(9, words=None, continues=[False, True, *[False] * 7])
    trace = replace(trace, words=np.arange(len(trace.logits)) % 3 > 0)
    trace.save(tmp_path / "t.trace")
    again = Trace.load(tmp_path / "t.trace")
    assert len(again) == 9
    starts = trace.sizes.cumsum() - trace.sizes
    for chosen in ([3], [7, 2], slice(1, 4), np.arange(9) > 5):
        part = again[chosen]
        rows = np.concatenate(
            [np.arange(starts[i], starts[i] + trace.sizes[i]) for i in np.arange(9)[chosen]]
        )
        np.testing.assert_array_equal(part.logits, trace.logits[rows])
        np.testing.assert_array_equal(part.words, trace.words[rows])
        np.testing.assert_array_equal(part.ids, trace.ids[chosen])
        np.testing.assert_array_equal(part.continues, trace.continues[chosen])


def test_a_trace_of_tags_needs_the_sizes_of_its_texts() -> None:
    with pytest.raises(BadData, match="needs the number of tokens of each text: sizes"):
        Trace(np.zeros((3, 2, 5)), (1, 2), None, [1, 1, 1], [0, 1, 2], problem=TOKENS)
    with pytest.raises(Incompatible, match=r"pass the number of tokens of each text: lists="):
        Policy.parse("entropy:0.5").exits(np.zeros((3, 2, 5)), problem_type=TOKENS)


def test_losses_of_a_tagger_count_spans_that_differ_and_words_that_are_missed() -> None:
    logits = np.zeros((6, 2, 5))
    reference, found = [1, 2, 0, 0, 3, 3], [1, 0, 0, 1, 3, 4]
    for exit, tags in enumerate([found, reference]):
        logits[np.arange(6), exit, tags] = 1
    trace = Trace(
        logits, (1, 2), None, [3, 1, 2], [0, 1, 2], sizes=[3, 1, 2], problem=TOKENS, label_names=LABELS
    )
    predictions = trace.decode(trace.logits[:, 0])
    losses = {
        risk: LOSSES[name].values(predictions, reference_of(trace)).tolist() for risk, name in OF_TAGS.items()
    }
    assert losses == {"changed": [1, 1, 1], "missed": [1, 0, 0], "missed_share": [0.5, 0, 0]}


@pytest.mark.parametrize("risk", ["changed", "missed", "missed_share"])
def test_calibration_proves_each_risk_of_a_tagger(risk: str) -> None:
    trace, other = make_trace(4000), make_trace(4000, seed=1)
    policy = calibrate(trace, None, Guarantee(0.2, risk=risk)).policy
    certificate = policy.certificate
    assert certificate is not None
    assert certificate.risk == OF_TAGS[risk]
    assert certificate.conditions is not None
    assert certificate.conditions.mean_layer < 4
    decision = policy.decide_trace(other)
    losses = certificate.loss.values(other.decode(decision.logits), reference_of(other))
    assert losses.mean() < 0.2
    assert "texts" in certificate.summary


def test_the_rule_is_fitted_to_the_loss_that_is_guaranteed() -> None:
    trace = make_trace(3000)
    changed, missed = (
        calibrate(trace, "agreement", Guarantee(0.1, risk=risk)).policy for risk in ("changed", "missed")
    )
    assert isinstance(changed.rule, Agreement)
    assert isinstance(missed.rule, Agreement)
    assert changed.rule.coefficients != missed.rule.coefficients
    means = [policy.decide_trace(trace).exits.mean() for policy in (missed, changed)]
    assert means[0] < means[1]


def test_the_rule_of_a_tagger_is_fitted_to_all_losses_that_are_guaranteed_in_any_order() -> None:
    trace = make_trace(300)
    bounds = {"missed_words": 0.1, "changed_spans": 0.1}
    targets = [Guarantee(bounds), Guarantee(dict(reversed(bounds.items())))]
    both = [fit_rule(Policy.parse("agreement:0.9"), trace, target).rule for target in targets]
    assert both == [Agreement.fit(trace)] * 2  # a text that misses a word has changed


def test_a_text_that_is_read_in_windows_counts_once_and_loses_what_its_worst_window_does() -> None:
    trace = make_trace(3000, continues=np.arange(3000) % 3 == 1)
    certificate = calibrate(trace, "entropy", Guarantee(0.3)).policy.certificate
    assert certificate is not None
    assert certificate.examples == 2000
    policy = Policy.parse(str(certificate.conditions and certificate.conditions.policy))
    changed = ~trace.agrees(policy.decide_trace(trace).logits)
    by_text = np.array([changed[0::3] | changed[1::3], changed[2::3]])
    assert certificate.observed_risk == pytest.approx(by_text.mean())


def test_risks_of_other_problems_are_refused() -> None:
    with pytest.raises(BadOption, match=r"is not for taggers; choose one of changed, missed, missed_share"):
        calibrate(make_trace(100), None, Guarantee(0.1, risk="accuracy"))
    with pytest.raises(BadOption, match=r"one bound for a tagger"):
        calibrate(make_trace(100), None, Guarantee({"O": 0.1}))
