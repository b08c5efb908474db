"""Lines that tell a user what a command understood, and what to type next."""

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from offramp.cli import app, progress
from offramp.cli.calibrate import warn_about_loss
from offramp.cli.data import warn_about_swapped_labels
from offramp.cli.export import target_flags
from offramp.inference import Classifier
from offramp.model_info import ModelInfo
from offramp.trace import Trace

Run = Callable[..., Result]
Ask = Callable[..., Any]


def test_training_starts_with_what_it_understood(trained: Path, tmp_path: Path, run: Run) -> None:
    rows = "\n".join(
        ["sentence;stars", *(f"a film {row};{'low' if row % 3 else 'high'}" for row in range(9))]
    )
    (tmp_path / "films.csv").write_text(rows)
    done = run(
        *("train", trained / "encoder", "--train", tmp_path / "films.csv", "--label", "stars", "--lr", 1e-3),
        *("--recipe", "pabee", "--epochs", 1, "--batch-size", 4, "--exits", 2, "--device", "cpu"),
        *("--out", tmp_path / "run", "--argument", "report_to=none"),
    )
    assert done.exit_code == 0, done.output
    lines = re.findall(r"^(rows|columns|labels|recipe|exits|texts) +(.+)$", done.stderr, re.MULTILINE)
    assert dict(lines) == {
        "rows": "train 9",
        "columns": "text 'sentence', label 'stars'",
        "labels": "high 3, low 6",
        "recipe": "pabee: 3 steps of 4 rows (all)",
        "exits": "at layers 0, 2, 4",
        "texts": "up to 128 tokens",
    }


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_with_semicolons_or_tabs_is_read(trained: Path, tmp_path: Path, ask: Ask, mark: str) -> None:
    (tmp_path / "films.csv").write_text(f'text{mark}label\na good, "odd" film{mark}yes\nbad{mark}no\n')
    values = ask(
        *("trace", trained / "films", "--data", tmp_path / "films.csv", "--out", tmp_path / "x.trace"),
    )
    assert (values["examples"], values["labelled"]) == (2, True)


@pytest.mark.parametrize(
    "target", ["--guarantee 0.3 --delta 0.05", "--max-loss 7", "--budget 3.5 --cost layers"]
)
def test_the_hint_after_an_export_repeats_the_target(home: Path, ask: Ask, target: str) -> None:
    ask("calibrate", home / "films", home / "dev.trace", "--rule", "entropy", *target.split())
    assert target_flags(ModelInfo.read(home / "films/model")).startswith(target)


@pytest.mark.parametrize(
    ("line", "bar"),
    [("bench films --data dev.csv --policy entropy:0.3", "timing"), ("export films --out onnx", "exporting")],
)
def test_bench_and_export_show_progress_in_a_terminal(
    home: Path, line: str, bar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(home)
    app(line.split(), standalone_mode=False)
    assert bar in terminal.getvalue()


def test_an_output_that_cannot_be_written_is_named_before_the_work(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classifier, "from_pretrained", None)
    monkeypatch.chdir(home)
    # the tests may run as root, who may write everywhere but there
    for line in (
        "trace films --data dev.csv --out /proc/x.trace",
        "predict films dev.csv --out /proc/x.csv",
        "retrofit films --texts dev.csv --out /proc/x",
    ):
        done = run(*line.split())
        assert done.exit_code == 1
        assert "/proc is not writable; choose another place" in done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "offramp", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("offramp ")


def test_labels_in_the_wrong_order_are_noticed(
    make_trace: Callable[..., Trace], capsys: pytest.CaptureFixture[str]
) -> None:
    right = make_trace(400, classes=2, label_names=("ham", "spam"))
    predicted = right.logits[:, -1].argmax(-1)
    for labels, swapped in ((predicted, False), (1 - predicted, True), (np.arange(400) % 2, False)):
        warn_about_swapped_labels(replace(right, labels=labels))
        message = "labels look swapped: most rows are labelled spam where the model predicts ham"
        assert (message in capsys.readouterr().err) == swapped


def test_a_large_loss_of_a_metric_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    warn_about_loss({"scores": {"pearson": 0.047}, "full_depth": {"pearson": 0.227}})
    assert "pearson drops from 22.7 to 4.7" in capsys.readouterr().err
    warn_about_loss({"scores": {"pearson": 0.220}, "full_depth": {"pearson": 0.227}})
    assert capsys.readouterr().err == ""


def test_long_steps_say_in_a_log_that_they_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.01)
    shown = ""
    with progress.heartbeat("loading the model") as line:
        line("exporting in int8")
        while shown.count("still exporting") < 2:
            shown += capsys.readouterr().err
    assert "offramp: exporting in int8\n" in shown
    assert "offramp: still exporting in int8 (" in shown


def test_a_log_repeats_a_line_only_once_that_is_old(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENCE", 1.0)
    shown = ""
    with progress.heartbeat("loading the model") as line:
        time.sleep(0.7)
        line("exporting in int8")
        while "still" not in shown:
            shown += capsys.readouterr().err
            time.sleep(0.01)
    assert "still exporting in int8 (0 s)" not in shown
