"""API keys: several, in a variable and in a file that may change while the server runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offramp.errors import BadOption
from offramp.serve.security import Keys


def replace(file: Path, text: str) -> None:
    """As tools that manage secrets do: another file takes its place."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def test_any_of_several_keys_is_accepted_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("three\n\nvier\n")
    monkeypatch.setenv("KEYS", "one  two")
    keys = Keys("KEYS", file)
    assert keys
    assert all(keys.accept(key) for key in (b"one", b"two", b"three", b"vier"))
    assert not any(
        keys.accept(key) for key in (b"", b"one two", b"on", b"ones", b"three\n", b"three\n\nvier")
    )


def test_without_keys_none_is_needed() -> None:
    assert not Keys(None, None)


def test_a_file_that_changed_is_read_again_by_a_server(serve: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    client = serve(api_key_file=file).client

    def status(key: str) -> int:
        return int(client.get("/info", headers={"Authorization": f"Bearer {key}"}).status_code)

    assert (status("old"), status("new")) == (200, 401)
    replace(file, "old new\n")
    assert (status("old"), status("new")) == (200, 200)
    replace(file, "new\n")
    assert (status("old"), status("new")) == (401, 200)


def test_a_file_that_is_gone_or_empty_leaves_the_keys_as_they_were_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("one")
    keys = Keys(None, file)
    file.unlink()
    assert [keys.accept(b"one") for _ in range(3)] == [True] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"the keys in {file} stay as they were: No such file or directory"
    ]
    file.write_text(" \n")
    assert [keys.accept(b"one") for _ in range(3)] == [True] * 3
    assert caplog.messages[1:] == [f"the keys in {file} stay as they were: it has no keys"]
    file.write_text("two")
    assert [keys.accept(key) for key in (b"one", b"two")] == [False, True]


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("", "it has no keys")])
def test_a_file_without_keys_is_refused_at_the_start(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadOption, match=f"api_key_file={file}: {reason}"):
        Keys(None, file)
