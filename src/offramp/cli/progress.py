"""Progress bars on stderr; stdout holds the result alone."""

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from offramp.cli.command import log

SILENCE = 30.0
"""Seconds after which a log says what is still being done."""
Item = TypeVar("Item")


def with_progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a progress bar in a terminal."""
    from rich.progress import track

    yield from track(items, what, total=total, console=console(), disable=not in_terminal(), transient=True)


def console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def in_terminal() -> bool:
    return sys.stderr.isatty()


@contextlib.contextmanager
def heartbeat(doing: str) -> Iterator[Callable[[str], None]]:
    """A `log` whose last line is repeated every `SILENCE` seconds from then on, unless a terminal shows progress."""
    if in_terminal():
        yield log
        return
    last, begin, done = doing, time.monotonic(), threading.Event()

    def remember(line: str) -> None:
        nonlocal last, begin
        last, begin = line, time.monotonic()
        log(line)

    def beat() -> None:
        while not done.wait(SILENCE - (time.monotonic() - begin) % SILENCE):
            if (seconds := time.monotonic() - begin) >= SILENCE:
                log(f"still {last} ({seconds:.0f} s)")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield remember
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def training_progress() -> Iterator[list[Any]]:
    """Callbacks that show training, in place of transformers' lines on stdout."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with (
        Progress(*columns, console=console(), disable=not in_terminal(), transient=True) as bars,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield [progress_callback(bars)]


def progress_callback(bars: Any) -> Any:
    """A bar for each phase and a line for each evaluation; outside a terminal, lines for losses too."""
    from transformers import TrainerCallback

    class ShowProgress(TrainerCallback):
        bar: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.bar = bars.add_task("training", total=state.max_steps, last="")

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            bars.update(self.bar, completed=state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            bars.update(self.bar, visible=False)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            loss = f"loss {logs['loss']:.3f}" if "loss" in logs else ""
            scores = layer_scores(logs)
            if loss:
                bars.update(self.bar, last=loss)
            if scores or (loss and not in_terminal()):
                line = f"step {state.global_step} of {state.max_steps}: {scores or loss}"
                bars.console.print(line, highlight=False, soft_wrap=True)

    return ShowProgress()


def layer_scores(logs: Any) -> str:
    """The headline of every layer in per cent, from the logs of an evaluation; empty for other logs.

    >>> layer_scores({"eval_acc": 0.9, "eval_acc_layer_1": 0.812, "eval_acc_layer_2": 0.9})
    'acc by layer 81.2 90.0'
    """
    scores = {name: value for name, value in logs.items() if name.startswith("eval_") and "_layer_" in name}
    if not scores:
        return ""
    metric = next(iter(scores)).removeprefix("eval_").partition("_layer_")[0]
    return f"{metric} by layer {' '.join(f'{100 * value:.1f}' for value in scores.values())}"
