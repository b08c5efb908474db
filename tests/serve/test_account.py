"""One account for all workers and restarts: false alarms stay within delta, and nothing that happens to a file stops
the audit."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from scipy.stats import binom

from offramp.serve import account as module
from offramp.serve.account import ALL, MOST_RECENT, Account, Comparison, KeptAccount

EPSILON, DELTA = 0.05, 0.1
RUNS = 150


def account() -> Account:
    return Account({ALL: EPSILON}, DELTA)


def kept(folder: Path) -> KeptAccount:
    """As a worker has it that has just started."""
    return KeptAccount(account(), folder / "account.json", {"policy": "entropy:0.2"})


def compared(key: object, loss: float, time: float = 1.0) -> Comparison:
    return Comparison(str(key), {ALL: loss}, time)


def losses(seed: int, number: int, mean: float = EPSILON) -> list[float]:
    draw = random.Random(seed)
    return [float(draw.random() < mean) for _ in range(number)]


def ever_broken(comparisons: list[Comparison]) -> bool:
    found = account()
    for each in comparisons:
        found.add(each)
        if found.broken:
            return True
    return False


def test_a_certificate_that_holds_is_called_broken_no_more_often_than_delta() -> None:
    broken = [
        ever_broken([compared(key, loss) for key, loss in enumerate(losses(seed, 1000))])
        for seed in range(RUNS)
    ]
    assert sum(broken) <= binom.ppf(0.999, RUNS, DELTA)


def test_runs_of_the_same_text_cause_no_false_alarms() -> None:
    """At a share of 1%, 500 requests are a run of 5. Counted each time, 5 break a certificate in most runs."""
    broken = [
        ever_broken([compared(key, loss) for key, loss in enumerate(losses(seed, 300)) for _ in range(5)])
        for seed in range(RUNS)
    ]
    assert sum(broken) <= binom.ppf(0.999, RUNS, DELTA)


def test_workers_that_share_an_account_and_restart_have_the_account_of_one(tmp_path: Path) -> None:
    draw, alone = random.Random(0), account()
    workers = [kept(tmp_path) for _ in range(4)]
    found = [compared(key, loss) for key, loss in enumerate(losses(1, 400, 0.02) + losses(2, 100, 0.3))]
    while found:
        turn, found = found[: (size := draw.randrange(1, 30))], found[size:]
        for each in turn:
            alone.add(each)
        which = draw.randrange(4)
        if draw.random() < 0.3:
            workers[which] = kept(tmp_path)
        workers[which].settle([*turn, *turn[:3]])  # repeats count once here too
    assert alone.broken
    for worker in workers:
        worker.settle([])
        assert worker.account.to_json() == alone.to_json()


def test_an_account_that_broke_stays_broken_after_a_restart_until_it_is_proven_or_deleted(
    tmp_path: Path,
) -> None:
    first = kept(tmp_path)
    first.settle([compared(key, 1.0) for key in range(10)])
    second = kept(tmp_path)
    second.settle([])
    assert first.account.broken == second.account.broken != ""
    second.settle([compared(f"good {key}", 0.0) for key in range(500)])
    first.settle([])
    assert first.account.broken == second.account.broken == ""
    first.settle([compared(f"bad {key}", 1.0) for key in range(10)])
    assert first.account.broken
    (tmp_path / "account.json").unlink()
    for each in (first, second):
        each.settle([])
        assert (each.account.broken, each.account.tallies[ALL].examined) == ("", 0)


def test_all_classes_must_be_proven_before_a_rung_is_used_again() -> None:
    found = Account({"no": 0.05, "yes": 0.2}, DELTA, ["no", "yes"])
    for key in range(20):
        found.add(Comparison(f"bad {key}", {ALL: 1.0, "yes": 1.0}, 1.0))
    assert found.broken == "the mean loss of the latest 5 examples (yes) is 100.0%, and 20.0% is allowed"
    for key in range(500):
        found.add(Comparison(f"good {key}", {ALL: 0.0, "yes": 0.0}, 1.0))
    assert found.broken
    for key in range(500, 800):
        found.add(Comparison(f"good {key}", {ALL: 0.0, "no": 0.0}, 1.0))
    assert not found.broken


def test_only_the_latest_texts_are_remembered() -> None:
    found = account()
    for key in range(MOST_RECENT + 10):
        found.add(compared(key, 0.0))
    assert len(found.recent) == MOST_RECENT
    found.add(compared("an hour later", 0.0, time=4000.0))
    assert [*found.recent] == ["an hour later"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"since": 0}', '{"since": 0, "broken": "", "tallies": {"": {}}, "recent": []}'],
)
def test_a_damaged_file_is_replaced_by_what_the_worker_knows(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = kept(tmp_path)
    worker.settle([compared(key, 0.0) for key in range(7)])
    (tmp_path / "account.json").write_text(content)
    worker.settle([compared("one more", 0.0)])
    assert "account.json does not hold an account of the audit" in caplog.text
    assert json.loads((tmp_path / "account.json").read_text())["tallies"][ALL]["examined"] == 8


@pytest.mark.parametrize(
    ("name", "value"), [("lost", 9.0), ("lost", float("nan")), ("stakes", [float("nan")] * 6)]
)
def test_impossible_numbers_in_a_file_are_damage(
    tmp_path: Path, name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    worker = kept(tmp_path)
    worker.settle([compared(key, 0.0) for key in range(7)])
    record = json.loads((tmp_path / "account.json").read_text())
    record["tallies"][ALL][name] = value
    (tmp_path / "account.json").write_text(json.dumps(record))
    worker.settle([compared("one more", 0.0)])
    assert "does not hold an account" in caplog.text
    assert worker.account.tallies[ALL].examined == 8


def test_without_its_file_a_worker_goes_on_alone_and_catches_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.touch()  # nothing can be written into it
    worker = kept(folder)
    for key in range(10):
        worker.settle([compared(key, 1.0)])
    assert worker.account.broken
    assert caplog.text.count("the audit goes on without") == 1
    folder.unlink()
    other = kept(folder)
    other.settle([compared("of another", 0.0)])
    worker.settle([])
    other.settle([])
    assert worker.account.to_json() == other.account.to_json()
    assert len(worker.account.recent) == 11


HOLD_LOCK = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_worker_that_was_stopped_or_killed_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.01)
    worker = kept(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "account.json.lock")], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        other.send_signal(signal.SIGSTOP)
        worker.settle([compared("a", 1.0)])
        assert "could not be acquired" in caplog.text
        assert worker.account.tallies[ALL].examined == 1
        other.kill()
        other.wait()
    worker.settle([compared("b", 1.0)])
    assert json.loads((tmp_path / "account.json").read_text())["tallies"][ALL]["examined"] == 2
    with FileLock(tmp_path / "account.json.lock", 0):
        pass
