"""Texts for `predict` are UTF-8, with or without a byte order mark; anything else is an error."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]
BOM = b"\xef\xbb\xbf"
CONTENT = {"txt": b"a good film\na bad film\n", "csv": b"text\na good film\na bad film\n"}


@pytest.mark.parametrize("ending", CONTENT)
def test_a_byte_order_mark_is_not_part_of_the_first_text(
    ending: str, trained: Path, tmp_path: Path, run: Run
) -> None:
    file = tmp_path / f"texts.{ending}"
    file.write_bytes(BOM + CONTENT[ending])
    for done in (
        run("predict", trained / "films", file, "--json"),
        run("predict", trained / "films", "--input-format", ending, "--json", stdin=BOM + CONTENT[ending]),
    ):
        assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [
            "a good film",
            "a bad film",
        ]


@pytest.mark.parametrize(("ending", "line"), [("txt", 2), ("csv", 3)])
def test_invalid_utf8_on_stdin_is_an_error_that_names_the_line(
    ending: str, line: int, trained: Path, run: Run
) -> None:
    latin = CONTENT[ending].replace(b"bad", b"b\xe4d")
    done = run("predict", trained / "films", "--input-format", ending, stdin=latin)
    assert done.exit_code == 1
    assert "stdin" in done.stderr
    assert f"line {line}: not UTF-8" in done.stderr
