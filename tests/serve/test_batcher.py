"""The queue without HTTP: every accepted request gets the classifier's predictions once, or fails alone."""

import gc
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from bench import LOOSER, LOOSEST, NORMAL, WAIT, Make, WordRuntime, predictions
from fakes import certified
from transformers import PreTrainedTokenizerFast

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
from offramp.inference import Classifier, Runner
from offramp.policy import Policy
from offramp.runtimes import Tokens
from offramp.serve import batcher as module
from offramp.serve.batcher import Batcher, Limits, Reply, Request
from offramp.serve.ladder import Ladder
from offramp.serve.queue import Ticket

Until = Callable[[Callable[[], bool]], None]


def requests(seed: int) -> list[tuple[list[Any], dict[str, Any]]]:
    """Requests of all shapes, with all options that do not depend on time."""
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


def test_every_request_of_every_thread_gets_the_classifiers_predictions_once(make: Make) -> None:
    bench, found = make(items=10_000, tokens=10**6, window=7), []

    def client(seed: int) -> None:
        for texts, options in requests(seed):
            future = bench.submit(texts, **options)
            replies: list[Reply] = []
            future.add_done_callback(lambda done, replies=replies: replies.append(done.result()))
            found.append((texts, options, future, replies))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 * 12
    for texts, options, future, replies in found:
        every_exit = options.pop("trace", False)
        assert predictions(future) == bench.classifier.predict(texts, every_exit=every_exit, **options)
        assert len(replies) == 1
        assert future.result().rung == (None if "policy" in options else 0)
    assert (bench.batcher.waiting.items, bench.batcher.waiting.tokens) == (0, 0)


def test_a_reply_names_its_policy_and_rung(make: Make) -> None:
    bench = make()
    assert bench.submit("a").result(WAIT).policy == "confidence:0.9"
    reply = bench.submit("a", policy=Policy.parse("entropy:0.3"), max_layer=4).result(WAIT)
    assert (reply.policy, reply.rung) == ("entropy:0.3,max_layer=4", None)


def test_a_request_to_an_idle_worker_runs_at_once_and_alone(make: Make) -> None:
    bench = make()
    bench.runtime.batches.clear()
    for turn in range(1, 6):
        assert len(predictions(bench.submit("a b"))) == 1
        assert bench.windows == [1] * turn


def test_requests_to_a_busy_worker_run_together(make: Make) -> None:
    bench = make()
    first = bench.shut()
    others = [bench.submit(["a b", "c d"]), bench.submit("e f"), bench.submit("g h", deadline_ms=10**6)]
    bench.open()
    for future in [first, *others]:
        predictions(future)
    assert bench.windows == [1, 1, 3]  # texts with deadlines run first, and separately: they need every exit


def test_deadlines_of_different_requests_run_together(make: Make) -> None:
    bench = make()
    first = bench.shut()
    others = [bench.submit("a b", deadline_ms=10**6 + wait) for wait in range(5)]
    bench.open()
    for future in [first, *others]:
        predictions(future)
    assert bench.windows == [1, 5]


def test_a_window_is_limited_in_texts_and_in_tokens(make: Make) -> None:
    bench = make(window=4)
    first = bench.shut()
    short, long = bench.submit(["a"] * 6), bench.submit(["a " * 254] * 2)  # of 3 tokens and of 4 x 64
    bench.open()
    for future in (first, short, long):
        predictions(future)
    # short | long | short | long | short short short short: round robin, and a long text alone
    assert bench.windows == [1, 1, 1, 1, 1, 4]


def test_small_and_large_requests_do_not_block_each_other(make: Make) -> None:
    bench = make(window=4)
    first, finished = bench.shut(), []
    large = bench.submit(["a b c"] * 40)
    small = [bench.submit(["a", "b"]) for _ in range(3)]
    for name, future in [("large", large), *(("small", each) for each in small)]:
        future.add_done_callback(lambda _, name=name: finished.append((name, len(bench.windows))))
    bench.open()
    for future in [first, large, *small]:
        predictions(future)
    bench.batcher.drain(WAIT)  # a future has its result before its callbacks run
    assert [name for name, _ in finished] == ["small", "small", "small", "large"]
    assert finished[2][1] <= 1 + 3
    assert bench.windows == [1, *[4] * 11, 2]  # every window is full


def test_a_full_queue_refuses_at_once_and_loses_nothing_accepted(make: Make) -> None:
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
        assert predictions(future)
    assert predictions(bench.submit("a"))


def test_padding_counts_as_tokens(make: Make) -> None:
    bench = make(items=100, tokens=60)
    bench.shut()
    bench.submit(["a", "b", "a b c d e f g h"])  # [CLS] and [SEP] make it 10
    assert bench.batcher.waiting.tokens == 30
    with pytest.raises(Overloaded):
        bench.submit(["a", "b", "c", "a b c d e f"])
    bench.submit(["a", "b", "c", "a b c d e"])
    assert bench.batcher.waiting.tokens == 58


def test_a_request_that_can_never_fit_is_too_large(make: Make) -> None:
    bench = make(items=10, tokens=60)
    with pytest.raises(TooLarge, match="11 texts"):
        bench.submit(["a"] * 11)
    with pytest.raises(TooLarge, match="70 tokens"):
        bench.submit(["a"] * 6 + ["a b c d e f g h"])


def test_retry_after_is_the_time_to_empty_the_queue_at_the_measured_pace(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, now = make(items=10, tokens=100, window=2), [0.0]
    # only in this module: the server that tests share uses the real clock in another thread
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes_two_seconds() -> None:
        now[0] += 2

    bench.runtime.before = takes_two_seconds
    for _ in range(3):
        predictions(bench.submit(["a", "b"]))
    bench.shut()
    bench.submit(["c"] * 10)
    with pytest.raises(Overloaded, match=r"retry in 10\.0 s") as refusal:
        bench.submit("a")
    assert refusal.value.retry_after == pytest.approx(10)


def test_a_deadline_counts_from_the_arrival(make: Make) -> None:
    bench = make()
    for ago, layer in [(10**4, 2), (0, 8)]:
        request = Request(["a b"], Policy.parse("never"), deadline_ms=10**6, arrived=time.monotonic() - ago)
        assert predictions(bench.batcher.submit(request))[0].layer == layer


def test_a_request_past_its_deadline_goes_before_others_but_for_the_first(make: Make) -> None:
    bench = make(window=2)
    order: list[str] = []
    first = bench.shut()
    waiting = {name: bench.submit("a b", policy=Policy.parse("never")) for name in ("one", "two", "three")}
    waiting["late"] = bench.submit("a b", policy=Policy.parse("never"), deadline_ms=0)
    for name, future in waiting.items():
        future.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
    bench.open()
    for future in (first, *waiting.values()):
        predictions(future)
    bench.batcher.drain(WAIT)
    assert order == ["late", "one", "two", "three"]


def test_a_deadline_counts_from_submit_and_late_texts_get_the_first_exits_prediction(make: Make) -> None:
    bench = make()
    first = bench.shut()
    never = Policy.parse("never")
    late = bench.submit(["a b", "c"], policy=never, deadline_ms=0)
    early = bench.submit(["a b", "c"], policy=never, deadline_ms=10**6)
    bench.open()
    predictions(first)
    assert [each.layer for each in predictions(late)] == [2, 2]
    assert predictions(late) == bench.classifier.predict(["a b", "c"], policy="layer:2")
    assert predictions(early) == bench.classifier.predict(["a b", "c"], policy=never)


def test_an_answered_request_is_freed_at_once(make: Make) -> None:
    """Without waiting for the garbage collector, which would stop the server to search for it."""

    def tickets() -> int:
        return sum(type(each) is Ticket for each in gc.get_objects())

    bench = make()
    gc.collect()
    before = tickets()  # of other tests
    gc.disable()
    try:
        assert len(predictions(bench.submit("a b"))) == 1
        bench.batcher.drain(WAIT)  # the worker forgets its last window
        assert tickets() <= before
    finally:
        gc.enable()


def test_a_cancelled_request_leaves_the_queue_and_does_not_run(make: Make) -> None:
    bench = make(items=4)
    first = bench.shut()
    gone, stays = bench.submit(["a", "b"]), bench.submit(["c", "d"])
    assert gone.cancel()
    assert (bench.batcher.waiting.items, bench.batcher.waiting.tokens) == (2, 6)
    takes_the_place = bench.submit(["e", "f"])
    bench.open()
    for future in (first, stays, takes_the_place):
        assert predictions(future)
    with pytest.raises(CancelledError):
        gone.result(0)
    assert sum(bench.windows) == 5


def test_the_rest_of_a_request_cancelled_half_way_does_not_run(make: Make) -> None:
    bench = make(window=2)
    first = bench.shut()
    large = bench.submit(["a"] * 20)
    begun = threading.Event()
    windows = iter(range(3))

    def third_window_begins() -> None:
        if next(windows, None) == 2:
            bench.runtime.door.clear()
            begun.set()
            assert bench.runtime.door.wait(WAIT)

    bench.runtime.before = third_window_begins
    bench.open()
    predictions(first)
    assert begun.wait(WAIT)
    assert large.cancel()
    assert bench.batcher.waiting.items == 0
    bench.open()
    assert predictions(bench.submit("b"))
    assert sum(bench.windows) == 1 + 4 + 1


def test_a_failing_run_fails_its_own_requests_and_the_next_works(make: Make) -> None:
    bench = make(window=4)
    bench.runtime.poison = bench.classifier.runner.tokenizer(["bad"])[0].ids[1]
    first = bench.shut()
    poisoned = bench.submit(["a", "bad", *"cdefghij"])
    beside = bench.submit("k")
    other = bench.submit("k", policy=Policy.parse("never"))
    bench.open()
    predictions(first)
    for future in (poisoned, beside):
        with pytest.raises(RunFailed, match="send it again") as failure:
            future.result(WAIT)
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert predictions(other) == bench.classifier.predict(["k"], policy="never")
    assert predictions(bench.submit("k")) == bench.classifier.predict(["k"])
    assert bench.batcher.waiting.items == 0  # the rest of a failed request does not run
    assert bench.batcher.healthy


def test_a_request_is_answered_though_it_cannot_be_offered_to_the_audit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(audit=1.0)
    assert bench.batcher.audit is not None
    monkeypatch.setattr(bench.batcher.audit, "offer", lambda *_: 1 / 0)
    assert bench.submit("a b").result(60).predictions == bench.classifier.predict(["a b"])


def test_a_prediction_that_is_not_finite_is_flagged_and_a_sound_model_stays_healthy(make: Make) -> None:
    bench = make()
    bench.runtime.nan = bench.classifier.runner.tokenizer(["bad"])[0].ids[1]
    fine, broken = predictions(bench.submit(["a", "bad"]))
    assert fine.finite
    assert (broken.finite, broken.label) == (False, None)
    predictions(bench.submit("a"))
    assert bench.batcher.healthy


def test_a_model_that_gives_nan_is_unhealthy_until_it_recovers(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETEST", 0.001)
    runtime = WordRuntime(nan=2)  # [CLS]
    runtime.door.set()
    classifier = Classifier(Runner(runtime, tokenizer, NORMAL))
    batcher = Batcher(classifier.runner, Ladder([NORMAL]), Limits())
    assert not batcher.healthy
    recovered = threading.Event()

    def recover() -> None:
        runtime.nan = None
        recovered.set()

    runtime.before = recover  # by the time of the next test
    assert recovered.wait(WAIT)
    batcher.submit(Request(["a"])).result(WAIT)  # after which that test is over
    assert batcher.healthy
    batcher.drain(WAIT)


def test_a_model_that_fails_its_test_after_an_error_is_unhealthy(make: Make) -> None:
    bench = make()
    assert bench.batcher.healthy
    bench.runtime.poison = 2  # [CLS]
    for text in "ab":  # when the second is run, the test after the first is over
        with pytest.raises(RunFailed):
            bench.submit(text).result(WAIT)
    assert not bench.batcher.healthy


def test_draining_refuses_new_requests_and_answers_accepted_ones(make: Make, until: Until) -> None:
    bench = make(window=2)
    accepted = [bench.shut(), bench.submit(["a"] * 7), bench.submit("b")]
    drainer = threading.Thread(target=bench.batcher.drain, args=(WAIT,))
    drainer.start()
    until(lambda: refuses(bench.batcher))
    with pytest.raises(Draining):
        bench.submit("c")
    bench.open()
    drainer.join()
    assert [len(future.result(0).predictions) for future in accepted] == [1, 7, 1]


def refuses(batcher: Batcher) -> bool:
    try:
        batcher.check_room(1)
    except Draining:
        return True
    return False


def test_requests_that_have_not_begun_when_the_time_to_drain_is_over_fail(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_WINDOW", 0.001)
    bench = make()
    running, waiting = bench.shut(), bench.submit("a")
    bench.batcher.drain(0)
    with pytest.raises(Draining):
        waiting.result(0)
    bench.open()
    assert predictions(running)


def test_draining_waits_for_the_running_window(make: Make) -> None:
    bench = make()
    running = bench.shut()
    opening = threading.Timer(0.2, bench.open)
    opening.start()
    bench.batcher.drain(0)
    assert not bench.batcher.running
    assert predictions(running)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_its_worker_thread_the_batcher_refuses_requests(make: Make, until: Until) -> None:
    bench = make()

    def end_the_thread() -> None:
        raise SystemExit

    bench.runtime.before = end_the_thread
    bench.submit("a")
    until(lambda: not bench.batcher.running)
    assert not bench.batcher.healthy
    with pytest.raises(RunFailed, match="restart"):
        bench.submit("a")


def test_load_steps_down_the_ladder_and_every_reply_names_its_rung(make: Make) -> None:
    bench = make(certified(LOOSER), certified(LOOSEST), items=20, tokens=1000, window=4)
    first = bench.shut()
    futures = [bench.submit(["a b", "c"]) for _ in range(10)]
    bench.open()
    predictions(first)
    replies = [future.result(WAIT) for future in futures]
    rungs_taken = [reply.rung for reply in replies]
    assert rungs_taken == sorted(rungs_taken)
    assert rungs_taken[-1] == 2
    for reply in replies:
        policy = bench.batcher.ladder.rungs[reply.rung]
        assert reply.policy == str(policy)
        assert reply.predictions == bench.classifier.predict(["a b", "c"], policy=policy)


def test_when_no_rung_is_left_every_text_runs_to_full_depth(make: Make) -> None:
    bench = make(audit=1.0)
    bench.batcher.ladder.forbid(0)
    reply = bench.submit(["a b", "c"]).result(WAIT)
    assert (reply.rung, reply.policy) == (-1, "never")
    assert reply.predictions == bench.classifier.predict(["a b", "c"], policy="never")
    assert bench.submit("a", max_layer=4).result(WAIT).policy == "never,max_layer=4"


def test_texts_being_tokenized_take_room_in_the_queue(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, begun, go_on = make(items=4), threading.Event(), threading.Event()
    tokenize = bench.classifier.runner.tokenizer.__call__

    def slow(*arguments: Any, **options: Any) -> list[Tokens]:
        begun.set()
        assert go_on.wait(WAIT)
        return tokenize(*arguments, **options)

    monkeypatch.setattr(bench.classifier.runner, "tokenizer", FakeTokenizer(slow, 300))
    with ThreadPoolExecutor() as clients:
        large = clients.submit(bench.submit, ["a"] * 4)
        assert begun.wait(WAIT)
        with pytest.raises(Overloaded):
            bench.submit("a")
        with pytest.raises(Overloaded):
            bench.batcher.check_room(1)
        go_on.set()
        assert len(predictions(large.result(WAIT))) == 4
    assert bench.batcher.waiting.items == 0


def test_very_long_texts_are_refused_before_they_are_tokenized(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(tokens=1000)
    bench.shut()
    bench.submit(["b " * 400] * 3)  # truncated to 300 tokens each
    monkeypatch.setattr(bench.classifier.runner, "tokenizer", FakeTokenizer(None, 300))
    with pytest.raises(Overloaded):
        bench.submit("b " * 10**6)


def test_a_text_that_fails_to_tokenize_returns_its_room(make: Make) -> None:
    bench = make()
    with pytest.raises(BadData):
        bench.submit("b " * 299, truncate=False)
    assert (bench.batcher.waiting.items, bench.batcher.waiting.tokens) == (0, 0)


@dataclass
class FakeTokenizer:
    """A tokenizer that calls a function."""

    function: Any
    max_length: int

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.function(*arguments, **options)


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
def test_usage_errors_are_raised_at_once(
    make: Make, error: type[OfframpError], texts: list[Any], options: dict[str, Any]
) -> None:
    bench = make()
    with pytest.raises(error):
        bench.submit(texts, **options)
    assert bench.batcher.waiting.items == 0
    assert predictions(bench.submit("b " * 299))


def test_a_bare_string_is_refused(make: Make) -> None:
    with pytest.raises(BadData, match="put it into a list"):
        make().batcher.submit(Request("abc"))


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(BadOption, match="window=0"):
        Limits(window=0)
