"""The queue without HTTP: whatever is accepted is answered once, as the classifier answers, or fails by itself."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from offramp.classifier import Classifier
from offramp.errors import (
    BadData,
    BadOption,
    BadPolicy,
    Draining,
    Incompatible,
    OfframpError,
    Overloaded,
    RunFailed,
    TooLarge,
)
from offramp.policy import Policy
from offramp.serve import batcher as module
from offramp.serve.audit import Audit
from offramp.serve.batcher import Batcher, Limits, Reply, Request
from offramp.serve.ladder import Ladder
from offramp.stages import Tokens

WAIT = 20
"""Seconds that nothing here takes."""
PROOF = {"of": "disagreement", "epsilon": 0.1, "tolerance": None}
NORMAL, LAXER, LAXEST = (Policy.parse(text) for text in ("confidence:0.9", "confidence:0.7", "layer:2"))


@dataclass
class WordStages:
    """Answers that depend on an example's own tokens. Whatever is run waits at a door first."""

    layers: tuple[int, ...] = (2, 4, 6, 8)
    labels: tuple[str, ...] = ("a", "b", "c")
    problem_type: str = "single_label_classification"
    precision: str = "fp32"
    policy: Policy | None = None
    max_length: int = 300
    budget: int = 64
    overhead: int = 16
    door: threading.Event = field(default_factory=threading.Event)
    knocked: threading.Event = field(default_factory=threading.Event)
    """Somebody is at the door."""
    poison: int | None = None
    """A token with which a run fails."""
    nan: int | None = None
    """A token with which all exits answer NaN."""
    runs: list[tuple[int, int]] = field(default_factory=list)
    """(exit, examples) of each."""
    before: Callable[[], None] = lambda: None

    def embed(self, tokens: Sequence[Tokens]) -> list[tuple[int, ...]]:
        self.knocked.set()
        assert self.door.wait(WAIT)
        self.before()
        return [tuple(example.ids) for example in tokens]

    def run(self, exit: int, state: list[tuple[int, ...]]) -> tuple[Any, np.ndarray, None]:
        if any(self.poison in ids for ids in state):
            raise ZeroDivisionError("poison")
        self.runs.append((exit, len(state)))
        return state, np.stack([self.answer(ids, exit) for ids in state]), None

    def answer(self, ids: tuple[int, ...], exit: int) -> np.ndarray:
        if self.nan in ids:
            return np.full(3, np.nan, np.float32)
        return np.random.default_rng([*ids, exit]).normal(size=3).astype(np.float32) * (exit + 1)

    def keep(self, state: list[tuple[int, ...]], rows: np.ndarray) -> list[tuple[int, ...]]:
        return [state[row] for row in rows]

    def merge(self, states: Sequence[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
        return [ids for state in states for ids in state]

    def is_finite(self) -> bool:
        return True

    def about(self) -> dict[str, Any]:
        return {"fingerprint": "words"}


@dataclass
class Bench:
    """A batcher and what is behind it."""

    stages: WordStages
    classifier: Classifier
    batcher: Batcher

    def submit(self, texts: Any, **options: Any) -> Future[Reply]:
        return self.batcher.submit(Request([texts] if isinstance(texts, str) else texts, **options))

    def shut(self, text: str = "z") -> Future[Reply]:
        """The worker is at the door with this text, and whatever comes now waits behind it."""
        self.stages.door.clear()
        self.stages.knocked.clear()
        first = self.submit(text)
        assert self.stages.knocked.wait(WAIT)
        return first

    def open(self) -> None:
        self.stages.door.set()


Make = Callable[..., Bench]


@pytest.fixture
def make(tokenizer: PreTrainedTokenizerFast) -> Iterator[Make]:
    made: list[Bench] = []

    def start(*laxer: Policy, audit: float = 0.0, **limits: int) -> Bench:
        stages = WordStages()
        stages.door.set()
        classifier = Classifier(stages, tokenizer, NORMAL)
        ladder = Ladder([NORMAL, *laxer], high=0.5, fall=0.0)
        audited = Audit(ladder.rungs, stages.layers, share=audit) if audit else None
        bench = Bench(stages, classifier, Batcher(classifier, ladder, Limits(**limits), audited))
        made.append(bench)
        return bench

    yield start
    for bench in made:
        bench.open()
        assert bench.batcher.drain(WAIT)


def said(future: Future[Reply]) -> list[Any]:
    return future.result(WAIT).predictions


def requests(seed: int) -> list[tuple[list[Any], dict[str, Any]]]:
    """Of all shapes, with all options that do not depend on time."""
    draw = random.Random(seed)
    made = []
    for _ in range(12):
        words = [
            " ".join(draw.choices("abcdefghij", k=draw.randint(0, 9))) for _ in range(draw.randint(1, 9))
        ]
        texts = [(word, "film") for word in words] if draw.random() < 0.3 else words
        options: dict[str, Any] = {}
        if draw.random() < 0.5:
            options["policy"] = Policy.parse(
                draw.choice(["entropy:0.4", "never", "patience:1", "ensemble:0.8"])
            )
        if draw.random() < 0.3:
            options["max_layer"] = draw.choice([2, 4, 6])
        if draw.random() < 0.3:
            options["trace"] = True
        made.append((texts, options))
    return made


def test_every_request_of_every_thread_is_answered_once_as_the_classifier_answers(make: Make) -> None:
    bench, found = make(items=10_000, tokens=10**6, window=7), []

    def client(seed: int) -> None:
        for texts, options in requests(seed):
            future = bench.submit(texts, **options)
            answers: list[Reply] = []
            future.add_done_callback(lambda done, answers=answers: answers.append(done.result()))
            found.append((texts, options, future, answers))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 * 12
    for texts, options, future, answers in found:
        assert said(future) == bench.classifier.predict(texts, **options)
        assert len(answers) == 1
        assert future.result().rung == (None if "policy" in options else 0)
    counted = bench.batcher.counters
    assert counted.accepted == counted.answered == 8 * 12
    assert counted.items == sum(counted.layers.values()) == sum(len(texts) for texts, *_ in found)
    assert (bench.batcher.waiting.items, bench.batcher.waiting.tokens) == (0, 0)


def test_a_reply_tells_what_decided(make: Make) -> None:
    bench = make()
    assert bench.submit("a").result(WAIT).policy == "confidence:0.9"
    reply = bench.submit("a", policy=Policy.parse("entropy:0.3"), max_layer=4).result(WAIT)
    assert (reply.policy, reply.rung) == ("entropy:0.3,max_layer=4", None)


def test_who_comes_to_an_idle_worker_runs_alone_and_at_once(make: Make) -> None:
    bench = make()
    for turn in range(1, 6):
        assert len(said(bench.submit("a b"))) == 1
        assert bench.batcher.counters.windows == turn


def test_who_comes_while_the_worker_is_busy_runs_together(make: Make) -> None:
    bench = make()
    first = bench.shut()
    others = [bench.submit(["a b", "c d"]), bench.submit("e f"), bench.submit("g h", deadline_ms=10**6)]
    bench.stages.runs.clear()
    bench.open()
    for future in [first, *others]:
        said(future)
    together = [examples for exit, examples in bench.stages.runs if exit == 0]
    assert together == [1, 3, 1]  # deadlines by themselves, as with them all exits speak
    assert bench.batcher.counters.windows == 2


def test_deadlines_of_different_requests_run_together(make: Make) -> None:
    bench = make()
    first = bench.shut()
    others = [bench.submit("a b", deadline_ms=10**6 + wait) for wait in range(5)]
    bench.stages.runs.clear()
    bench.open()
    for future in [first, *others]:
        said(future)
    assert [examples for exit, examples in bench.stages.runs if exit == 0] == [1, 5]


def test_a_window_ends_at_its_texts_and_at_its_tokens(make: Make) -> None:
    bench = make(window=4)
    first = bench.shut()
    short, long = bench.submit(["a"] * 6), bench.submit(["a " * 254] * 2)  # of 3 tokens and of 4 x 64
    bench.open()
    for future in (first, short, long):
        said(future)
    # short | long | short | long | short short short short: by turns, and a long one alone
    assert bench.batcher.counters.windows == 1 + 5


def test_a_small_request_does_not_wait_for_a_large_one_nor_the_reverse(make: Make) -> None:
    bench = make(window=4)
    first, finished = bench.shut(), []
    large = bench.submit(["a b c"] * 40)
    small = [bench.submit(["a", "b"]) for _ in range(3)]
    for name, future in [("large", large), *(("small", each) for each in small)]:
        future.add_done_callback(lambda _, name=name: finished.append((name, bench.batcher.counters.windows)))
    bench.open()
    for future in [first, large, *small]:
        said(future)
    assert [name for name, _ in finished] == ["small", "small", "small", "large"]
    assert finished[2][1] <= 2
    assert finished[3][1] == 1 + 46 // 4  # no window was thinner for it


def test_over_the_limit_it_is_refused_at_once_and_nothing_accepted_is_lost(make: Make) -> None:
    bench = make(items=10, tokens=100)
    first = bench.shut()
    waiting = [bench.submit(["a", "b c"]) for _ in range(5)]
    assert (bench.batcher.waiting.items, bench.batcher.waiting.tokens) == (10, 40)
    for shape in ("a", ["a", "b"], [("a", "b")]):
        with pytest.raises(Overloaded) as refusal:
            bench.submit(shape)
        assert refusal.value.retry_after == 1  # nothing is known yet
    bench.open()
    for future in [first, *waiting]:
        assert said(future)
    assert said(bench.submit("a"))
    counted = bench.batcher.counters
    assert (counted.accepted, counted.answered, counted.overloaded) == (7, 7, 3)


def test_tokens_count_with_their_padding(make: Make) -> None:
    bench = make(items=100, tokens=60)
    bench.shut()
    bench.submit(["a", "b", "a b c d e f g h"])  # [CLS] and [SEP] make it 10
    assert bench.batcher.waiting.tokens == 30
    with pytest.raises(Overloaded):
        bench.submit(["a", "b", "c", "a b c d e f"])
    bench.submit(["a", "b", "c", "a b c d e"])
    assert bench.batcher.waiting.tokens == 58


def test_what_can_never_fit_is_refused_otherwise(make: Make) -> None:
    bench = make(items=10, tokens=60)
    with pytest.raises(TooLarge, match="11 texts"):
        bench.submit(["a"] * 11)
    with pytest.raises(TooLarge, match="70 tokens"):
        bench.submit(["a"] * 6 + ["a b c d e f g h"])
    assert bench.batcher.counters.overloaded == 0


def test_when_to_come_back_is_what_the_queue_takes_at_the_pace_measured(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, now = make(items=10, tokens=100, window=2), [0.0]
    # the module's and not everybody's: the server that tests share runs by the clock in a thread beside
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes_two_seconds() -> None:
        now[0] += 2

    bench.stages.before = takes_two_seconds
    for _ in range(3):
        said(bench.submit(["a", "b"]))
    bench.shut()
    bench.submit(["c"] * 10)
    with pytest.raises(Overloaded) as refusal:
        bench.submit("a")
    assert refusal.value.retry_after == pytest.approx(10)


def test_a_deadline_counts_from_submit_and_who_is_late_has_the_first_exits_answer(make: Make) -> None:
    bench = make()
    first = bench.shut()
    never = Policy.parse("never")
    late = bench.submit(["a b", "c"], policy=never, deadline_ms=0)
    early = bench.submit(["a b", "c"], policy=never, deadline_ms=10**6)
    bench.open()
    said(first)
    assert [each.layer for each in said(late)] == [2, 2]
    assert said(late) == bench.classifier.predict(["a b", "c"], policy="layer:2")
    assert said(early) == bench.classifier.predict(["a b", "c"], policy=never)


def test_cancelling_frees_the_place_and_nothing_of_it_runs(make: Make) -> None:
    bench = make(items=4)
    first = bench.shut()
    gone, stays = bench.submit(["a", "b"]), bench.submit(["c", "d"])
    assert gone.cancel()
    assert (bench.batcher.waiting.items, bench.batcher.waiting.tokens) == (2, 6)
    takes_the_place = bench.submit(["e", "f"])
    bench.open()
    for future in (first, stays, takes_the_place):
        assert said(future)
    with pytest.raises(CancelledError):
        gone.result(0)
    counted = bench.batcher.counters
    assert (counted.accepted, counted.answered, counted.cancelled, counted.items) == (4, 3, 1, 5)


def test_cancelling_a_request_half_way_spares_the_rest_of_it(make: Make) -> None:
    bench = make(window=2)
    first = bench.shut()
    large = bench.submit(["a"] * 20)
    begun = threading.Event()
    windows = iter(range(3))

    def third_window_begins() -> None:
        if next(windows, None) == 2:
            bench.stages.door.clear()
            begun.set()
            assert bench.stages.door.wait(WAIT)

    bench.stages.before = third_window_begins
    bench.open()
    said(first)
    assert begun.wait(WAIT)
    assert large.cancel()
    assert bench.batcher.waiting.items == 0
    bench.open()
    assert said(bench.submit("b"))
    assert bench.batcher.counters.items == 1 + 4 + 1


def test_a_failing_run_fails_its_own_requests_and_the_next_works(make: Make) -> None:
    bench = make(window=4)
    bench.stages.poison = bench.classifier.tokenizer(["bad"])[0].ids[1]
    first = bench.shut()
    poisoned = bench.submit(["a", "bad", *"cdefghij"])
    beside = bench.submit("k")
    other = bench.submit("k", policy=Policy.parse("never"))
    bench.open()
    said(first)
    for future in (poisoned, beside):
        with pytest.raises(RunFailed, match="send it again") as failure:
            future.result(WAIT)
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert said(other) == bench.classifier.predict(["k"], policy="never")
    assert said(bench.submit("k")) == bench.classifier.predict(["k"])
    assert bench.batcher.waiting.items == 0  # the rest of a request that failed is not run
    assert bench.batcher.healthy
    counted = bench.batcher.counters
    assert (counted.accepted, counted.answered, counted.failed) == (5, 3, 2)


def test_an_answer_that_is_not_finite_is_flagged_and_a_sound_model_stays_ready(make: Make) -> None:
    bench = make()
    bench.stages.nan = bench.classifier.tokenizer(["bad"])[0].ids[1]
    fine, broken = said(bench.submit(["a", "bad"]))
    assert fine.finite
    assert (broken.finite, broken.label) == (False, None)
    said(bench.submit("a"))
    assert bench.batcher.counters.not_finite == 1
    assert bench.batcher.healthy


def test_a_model_whose_weights_are_nan_is_not_healthy_until_they_are_mended(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETEST", 0.001)
    stages = WordStages(nan=2)  # [CLS]
    stages.door.set()
    classifier = Classifier(stages, tokenizer, NORMAL)
    batcher = Batcher(classifier, Ladder([NORMAL]), Limits())
    assert not batcher.healthy
    mended = threading.Event()

    def mend() -> None:
        stages.nan = None
        mended.set()

    stages.before = mend  # by the time of the next test
    assert mended.wait(WAIT)
    batcher.submit(Request(["a"])).result(WAIT)  # after which that test is over
    assert batcher.healthy
    assert batcher.drain(WAIT)


def test_an_error_after_which_the_model_fails_its_test_is_not_healthy(make: Make) -> None:
    bench = make()
    assert bench.batcher.healthy
    bench.stages.poison = 2  # [CLS]
    for text in "ab":  # when the second is run, the test after the first is over
        with pytest.raises(RunFailed):
            bench.submit(text).result(WAIT)
    assert not bench.batcher.healthy


def test_draining_refuses_what_comes_and_answers_what_was_accepted(make: Make) -> None:
    bench = make(window=2)
    accepted = [bench.shut(), bench.submit(["a"] * 7), bench.submit("b")]
    refusing, join = threading.Event(), bench.batcher._worker.join
    bench.batcher._worker.join = lambda seconds: (refusing.set(), join(seconds))  # type: ignore[method-assign]
    done: list[bool] = []
    drainer = threading.Thread(target=lambda: done.append(bench.batcher.drain(WAIT)))
    drainer.start()
    assert refusing.wait(WAIT)
    with pytest.raises(Draining):
        bench.submit("c")
    bench.open()
    drainer.join()
    assert done == [True]
    assert [len(future.result(0).predictions) for future in accepted] == [1, 7, 1]


def test_what_has_not_begun_when_the_time_to_drain_is_over_fails(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WINDOW", 0.001)
    bench = make()
    running, waiting = bench.shut(), bench.submit("a")
    assert not bench.batcher.drain(0)
    with pytest.raises(Draining):
        waiting.result(0)
    bench.open()
    assert said(running)
    counted = bench.batcher.counters
    assert (counted.accepted, counted.answered, counted.failed) == (2, 1, 1)


def test_draining_waits_for_what_runs_as_the_process_may_end_then(make: Make) -> None:
    bench = make()
    running = bench.shut()
    opening = threading.Timer(0.2, bench.open)
    opening.start()
    assert not bench.batcher.drain(0)
    assert not bench.batcher._worker.is_alive()
    assert said(running)


def test_without_its_worker_it_refuses_rather_than_let_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    monkeypatch.setattr(bench.batcher._worker, "is_alive", lambda: False)
    assert not bench.batcher.healthy
    with pytest.raises(RunFailed, match="restart"):
        bench.submit("a")


def test_load_steps_down_the_ladder_and_every_reply_tells_its_rung(make: Make) -> None:
    rungs = [replace(policy, certificate=PROOF) for policy in (LAXER, LAXEST)]
    bench = make(*rungs, items=20, tokens=1000, window=4)
    first = bench.shut()
    futures = [bench.submit(["a b", "c"]) for _ in range(10)]
    bench.open()
    said(first)
    replies = [future.result(WAIT) for future in futures]
    rungs_taken = [reply.rung for reply in replies]
    assert rungs_taken == sorted(rungs_taken)
    assert rungs_taken[-1] == 2
    for reply in replies:
        policy = bench.batcher.ladder.policy(reply.rung)
        assert reply.policy == str(policy)
        assert reply.predictions == bench.classifier.predict(["a b", "c"], policy=policy)
    counted = bench.batcher.counters.rungs
    assert counted[0] == 1
    assert sum(counted.values()) == 21


def test_a_rung_whose_certificate_the_audit_breaks_is_no_longer_used(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(replace(LAXEST, certificate=PROOF), audit=1.0, items=60, tokens=6000)
    assert bench.batcher.audit is not None
    forbidden = threading.Event()
    forbid = bench.batcher.ladder.forbid

    def and_tell(rung: int) -> None:
        forbid(rung)
        forbidden.set()

    bench.batcher.ladder.forbid = and_tell  # type: ignore[method-assign]
    texts = [f"{one} {two}" for one in "abcdef" for two in "abcdefghij"]
    assert bench.submit(texts).result(WAIT).rung == 1
    assert forbidden.wait(WAIT)
    assert bench.submit(texts).result(WAIT).rung == 0
    assert "rung 1" in caplog.text
    _, account = bench.batcher.audit.accounts()
    assert account.verdict == "broken"


def test_when_no_rung_is_left_everybody_goes_to_full_depth(make: Make) -> None:
    bench = make(audit=1.0)
    bench.batcher.ladder.forbid(0)
    reply = bench.submit(["a b", "c"]).result(WAIT)
    assert (reply.rung, reply.policy) == (-1, "never")
    assert reply.predictions == bench.classifier.predict(["a b", "c"], policy="never")
    assert bench.batcher.counters.rungs == {-1: 2}
    assert bench.submit("a", max_layer=4).result(WAIT).policy == "never,max_layer=4"


def test_texts_are_audited_only_while_nobody_waits(make: Make) -> None:
    bench, waiting, audited = make(audit=1.0, window=3), [], threading.Event()
    first = bench.shut()
    futures = [bench.submit(["a b", "c d e", "f"]) for _ in range(5)]
    examine = bench.batcher._examine

    def examine_and_note() -> None:
        waiting.append(bench.batcher.waiting.items)
        examine()
        assert bench.batcher.audit is not None
        if bench.batcher.audit.accounts()[0].examined == 16:
            audited.set()

    bench.batcher._examine = examine_and_note  # type: ignore[method-assign]
    bench.open()
    for future in [first, *futures]:
        said(future)
    assert audited.wait(WAIT)
    assert waiting == [0] * 16


def test_answers_under_limits_of_their_own_are_not_held_against_a_rung(make: Make) -> None:
    bench = make(audit=1.0)
    assert bench.batcher.audit is not None
    said(bench.submit("a b", max_layer=2))
    said(bench.submit("a b", deadline_ms=0))
    said(bench.submit("a b", policy=LAXEST))
    assert bench.batcher.audit.accounts()[0].exits == (0, 0, 0, 0)
    [answer] = said(bench.submit("a b"))
    assert sum(bench.batcher.audit.accounts()[0].exits) == 1
    assert bench.batcher.audit.accounts()[0].exits[bench.stages.layers.index(answer.layer)] == 1


@pytest.mark.parametrize(
    ("error", "texts", "options"),
    [
        (BadData, ["a", None], {}),
        (BadData, ["a", ("b", "c")], {}),
        (BadOption, [], {}),
        (BadOption, ["a"], {"trace": True, "deadline_ms": 5}),
        (Incompatible, ["a"], {"max_layer": 3}),
        (Incompatible, ["a"], {"policy": Policy.parse("layer:5")}),
        (BadPolicy, ["a"], {"policy": Policy.parse("entropy:0.3,min_layer=4"), "max_layer": 2}),
        (BadData, ["a", "b " * 299], {"truncate": False}),
    ],
)
def test_mistakes_are_told_at_once(
    make: Make, error: type[OfframpError], texts: list[Any], options: dict[str, Any]
) -> None:
    bench = make()
    with pytest.raises(error):
        bench.submit(texts, **options)
    assert bench.batcher.counters.accepted == 0
    assert said(bench.submit("b " * 299))


def test_a_text_for_a_list_of_them_is_a_mistake(make: Make) -> None:
    with pytest.raises(BadData, match="a list of texts"):
        make().batcher.submit(Request("abc"))


def test_limits_that_let_nothing_through_are_refused() -> None:
    with pytest.raises(BadOption, match="window=0"):
        Limits(window=0)
