"""offramp export, and other commands on an exported folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offramp.policy import Policy
from offramp.store import Manifest


def test_an_exported_model_works_with_trace_calibrate_and_predict(
    home: Path, ask: Callable[..., Any], run: Callable[..., Any]
) -> None:
    held_back = ["--data", home / "dev.csv"]
    made = ask("export", home / "films", "--precision", "int8", "--out", home / "fast")
    assert made["precision"] == "int8"
    assert ask("info", home / "fast")["runtime"] == "ONNX Runtime, int8"

    refused = run("calibrate", home / "fast", home / "dev.trace", "--max-loss", 50)
    assert refused.exit_code == 1
    assert "collected in fp32, not in the int8 of" in refused.stderr

    ask("trace", home / "fast", *held_back, "--out", home / "fast.trace")
    found = ask("calibrate", home / "fast", home / "fast.trace", "--guarantee", 0.4, "--delta", 0.2)
    assert found["certificate"]["precision"] == "int8"
    assert found["certificate"]["runtime"].startswith("onnxruntime")

    answers = run("predict", home / "fast", "--json", stdin="a very good film\nnot a good film\n").stdout
    assert [json.loads(line)["label"] for line in answers.splitlines()] == ["yes", "no"]


def test_export_can_calibrate_again(home: Path, ask: Callable[..., Any]) -> None:
    ask("calibrate", home / "films", home / "dev.trace", "--rule", "margin", "--max-loss", 50)
    made = ask(
        *("export", home / "films", "--precision", "int8", "--out", home / "fast"),
        *("--data", home / "dev.csv", "--guarantee", 0.6, "--delta", 0.2),
    )
    assert made["policy"].startswith("margin")
    rows = len((home / "dev.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert made["certificate"]["examples"] == rows - -(
        -rows // 5
    )  # without those that the scales were found on
    config = json.loads((home / "fast" / "config.json").read_text(encoding="utf-8"))
    assert str(Policy.from_json(config["policy"])) == made["policy"]
    assert Manifest.load(home / "fast").precision == "int8"
    assert (home / "fast" / "README.md").is_file()


def test_int8_scales_come_from_the_data_or_with_a_warning_from_built_in_sentences(
    home: Path, run: Callable[..., Any]
) -> None:
    int8 = ["export", home / "films", "--precision", "int8", "--out"]
    built_in = run(*int8, home / "general")
    assert "built-in English sentences; pass --data with texts like your own" in built_in.stderr
    own = run(*int8, home / "own", "--data", home / "dev.csv")
    assert own.exit_code == 0, own.output
    assert "built-in" not in own.stderr
    graphs = [(home / name / "stages.onnx").read_bytes() for name in ("general", "own")]
    assert graphs[0] != graphs[1]


def test_a_certificate_in_another_precision_is_a_warning_with_the_next_step(
    home: Path, run: Callable[..., Any]
) -> None:
    done = run(
        *("calibrate", home / "films", home / "dev.trace", "--guarantee", 0.4, "--delta", 0.2),
    )
    assert done.exit_code == 0, done.output
    done = run("export", home / "films", "--precision", "int8", "--out", home / "fast")
    assert done.exit_code == 0, done.output
    assert "certificate" in done.stderr
    assert "offramp trace" in done.stdout


@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        (["--precision", "int3"], 1, "int3"),
        (["--max-loss", 1], 1, "examples and a target"),
        (["--data", "dev.csv"], 1, "examples and a target"),
        (["--data", "bad.csv", "--max-loss", 1], 1, "line 3: label 'perhaps'"),
        (["--data", "dev.csv", "--guarantee", 0.0001], 3, "0.0001"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    home: Path, run: Callable[..., Any], flags: list[Any], code: int, reason: str
) -> None:
    (home / "bad.csv").write_text("text,label\ngood film,yes\nbad film,perhaps\n", encoding="utf-8")
    flags = [home / flag if str(flag).endswith(".csv") else flag for flag in flags]
    done = run("export", home / "films", "--out", home / "fast", *flags)
    assert done.exit_code == code
    assert reason in done.stderr
    assert not [*home.glob("*fast*")]
