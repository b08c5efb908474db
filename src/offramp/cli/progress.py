"""How far a command has come, on stderr, so that stdout holds the answer alone."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


def counted(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a bar where a person looks on."""
    from rich.progress import track

    yield from track(items, what, total=total, console=console(), disable=not watched(), transient=True)


def console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def watched() -> bool:
    return sys.stderr.isatty()


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
        Progress(*columns, console=console(), disable=not watched(), transient=True) as bars,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield [callback(bars)]


def callback(bars: Any) -> Any:
    """A bar for each phase; where nobody looks on, a line now and then."""
    from transformers import TrainerCallback

    class Shown(TrainerCallback):
        bar: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.bar = bars.add_task("training", total=state.max_steps, last="")

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            bars.update(self.bar, completed=state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            said = ", ".join(f"{name} {logs[name]:.3f}" for name in ("loss", *scores(logs)) if name in logs)
            if not said:
                return
            bars.update(self.bar, last=said)
            if not watched():
                print(f"step {state.global_step} of {state.max_steps}: {said}", file=sys.stderr, flush=True)

    return Shown()


def scores(logs: Any) -> list[str]:
    """The headline of the layers, from the logs of an evaluation."""
    return [name for name in logs if name.startswith("eval_") and "_layer_" in name]
