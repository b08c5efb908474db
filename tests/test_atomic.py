from pathlib import Path

import pytest

from offramp.atomic import atomic_file, atomic_folder, write_files
from offramp.errors import OutputExists

UNWRITABLE = "a lone surrogate \ud800"


def test_of_several_files_none_is_written_if_one_cannot_be(tmp_path: Path) -> None:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_files({old: "after", new: UNWRITABLE})
    assert old.read_text() == "before"
    assert [*tmp_path.iterdir()] == [old]


def test_a_file_stays_as_it_was_when_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "kept.txt"
    file.write_text("before")
    with pytest.raises(UnicodeEncodeError), atomic_file(file) as half:
        half.write_text(UNWRITABLE)
    assert file.read_text() == "before"
    assert [*tmp_path.iterdir()] == [file]


def test_a_folder_is_there_with_all_in_it_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError), atomic_folder(tmp_path / "in" / "half") as half:
        (half / "one").write_text(UNWRITABLE)
    with atomic_folder(tmp_path / "in" / "whole") as half:
        (half / "one").write_text("1")
        assert not (tmp_path / "in" / "whole").exists()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "in",
        "in/whole",
        "in/whole/one",
    ]


@pytest.mark.parametrize("holding", ["a file", "a folder"])
def test_what_is_there_is_not_written_over(tmp_path: Path, holding: str) -> None:
    there = tmp_path / "there"
    precious = there if holding == "a file" else there / "notes.txt"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("keep me")
    with (
        pytest.raises(OutputExists, match=r"there is there already.*choose another folder"),
        atomic_folder(there),
    ):
        raise AssertionError("nothing is to be written")
    assert precious.read_text() == "keep me"
    assert [*tmp_path.iterdir()] == [there]
