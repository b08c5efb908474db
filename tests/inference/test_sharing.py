"""Saving and uploading a loaded model: always its whole folder."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offramp import Classifier, ExitModel, Runner
from offramp.errors import BadOption, OutputExists

TEXTS = ["good film", "bad bad bad", "a b c d e f g"]


def test_a_saved_copy_has_all_files_and_predicts_the_same(any_runtime: Path, tmp_path: Path) -> None:
    classifier = Classifier.from_pretrained(any_runtime)
    classifier.save_pretrained(tmp_path / "copy")
    assert files(tmp_path / "copy") == files(any_runtime)
    assert Classifier.from_pretrained(tmp_path / "copy").predict(TEXTS) == classifier.predict(TEXTS)
    with pytest.raises(OutputExists, match="copy already exists"):
        classifier.save_pretrained(tmp_path / "copy")


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_push_uploads_the_folder(any_runtime: Path, hub: list[dict[str, Any]]) -> None:
    address = Classifier.from_pretrained(any_runtime).push_to_hub("me/mine", commit_message="better")
    assert address == "https://huggingface.co/me/mine/commit/1"
    assert hub == [
        {"repo_id": "me/mine", "private": None, "exist_ok": True},
        {"repo_id": "me/mine", "folder_path": any_runtime, "commit_message": "better"},
    ]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls that a hub receives."""
    calls: list[dict[str, Any]] = []

    def create_repo(_: Any, repo_id: str, **options: Any) -> Any:
        calls.append({"repo_id": repo_id, **options})
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(_: Any, **options: Any) -> Any:
        calls.append(options)
        return SimpleNamespace(commit_url="https://huggingface.co/me/mine/commit/1")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", create_repo)
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload_folder)
    return calls


def test_a_failed_push_says_how_to_log_in(any_runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("401\nmany more lines")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(
        BadOption, match=r"me/mine could not be uploaded \(401\); log in with `hf auth login`"
    ):
        Classifier.from_pretrained(any_runtime).push_to_hub("me/mine")


def test_a_model_without_a_folder_says_how_to_save_it(
    make_model: Callable[..., ExitModel], tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(BadOption, match="was not loaded from a folder"):
        Classifier(Runner(make_model(num_labels=2), tokenizer)).save_pretrained(tmp_path / "copy")
