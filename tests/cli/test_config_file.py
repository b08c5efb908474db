"""Flags from a YAML file: same names as on the command line, which overrides it; unknown ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]


def test_a_file_gives_flags_and_arguments(trained: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "curve.yaml"
    file.write_text(
        f"traces: [{trained / 'dev.trace'}]\nrule:\n  - patience\nthresholds: [1, 2]\nbootstrap: 0\njson: true\n"
    )
    done = run("curve", "--config", file)
    assert done.exit_code == 0, done.output
    (section,) = json.loads(done.stdout)["sections"]
    assert [point["threshold"] for point in section["sweep"]["curves"]["patience"]["points"]] == [1, 2]


def test_the_command_line_overrides_the_file(trained: Path, tmp_path: Path, ask: Callable[..., Any]) -> None:
    file = tmp_path / "calibrate.yaml"
    file.write_text("rule: patience\nmax-loss: 1\ndry_run: true\n")
    asked = ["calibrate", trained / "films", trained / "dev.trace", "--config", file]
    assert ask(*asked)["policy"].startswith("patience")
    assert ask(*asked, "--rule", "margin")["policy"].startswith("margin")


def test_a_mapping_in_the_file_becomes_key_and_value(home: Path, ask: Callable[..., Any]) -> None:
    (home / "run.yaml").write_text(
        f"train: {home / 'train.csv'}\nepochs: 1\nlearning_rate: 1e-3\nrecipe: elbert:weights=equal\n"
        "head:\n  pooler: none\nargument:\n  report_to: none\n  weight_decay: 0.5\n"
    )
    ask("train", home / "encoder", "--config", home / "run.yaml", "--out", home / "from-file")
    kept = json.loads((home / "from-file/run.json").read_text())
    assert (kept["recipe"], kept["learning_rate"], kept["weight_decay"]) == ("elbert", 1e-3, 0.5)
    assert json.loads((home / "from-file/model/config.json").read_text())["head"]["pooler"] == "none"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("treshold: 1", "did you mean thresholds"),
        ("- just\n- a list", "lines such as"),
        ("rule: [", "cannot read"),
        ("bootstrap: many", "'--bootstrap'"),
    ],
)
def test_a_bad_file_is_a_usage_error(tmp_path: Path, run: Run, content: str, complaint: str) -> None:
    (tmp_path / "wrong.yaml").write_text(content)
    result = run("curve", "x.trace", "--config", tmp_path / "wrong.yaml")
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
