"""A model folder is data: code that comes with it never runs."""

import ast
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offramp.cli import app

SOURCES = Path(__file__).parents[2] / "src" / "offramp"
LOADERS = {"from_pretrained", "from_config"}
OWN = {"Classifier", "Reranker", "Runner", "Tagger", "ExitModel", "super()"}
"""Classes of this package, which never look up a class by a name in a file; `super()` is ExitModel's."""


def test_every_loader_of_transformers_is_told_not_to_run_code() -> None:
    calls = [*loader_calls()]
    assert len(calls) > 5
    for place, call in calls:
        trusted = [keyword.value for keyword in call.keywords if keyword.arg == "trust_remote_code"]
        assert [ast.unparse(value) for value in trusted] == ["False"], place


def loader_calls() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if node.func.attr in LOADERS and owner not in OWN:
                    yield f"{file.name}:{node.lineno}: {owner}", node


EVIL = """from pathlib import Path
Path({trophy!r}).touch()
class EvilConfig: pass
class EvilTokenizer: pass
"""
TOKENIZER = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}}
CONFIG = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}


@pytest.mark.parametrize(
    ("file", "values", "command"),
    [
        ("tokenizer_config.json", TOKENIZER, "predict FOLDER -"),
        ("config.json", CONFIG, "train FOLDER --train TEXTS --validation TEXTS --out OUT"),
        ("config.json", CONFIG, "retrofit FOLDER --texts TEXTS --out OUT"),
    ],
)
def test_a_yes_on_standard_input_runs_no_code_of_a_folder(
    saved: Path, tmp_path: Path, file: str, values: dict[str, Any], command: str
) -> None:
    folder, trophy = shutil.copytree(saved, tmp_path / "model"), tmp_path / "trophy"
    (folder / "evil.py").write_text(EVIL.format(trophy=str(trophy)))
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(settings | values))
    texts = tmp_path / "texts.csv"
    texts.write_text("text,label\ngood film,0\nbad film,1\n")
    places = {"FOLDER": folder, "TEXTS": texts, "OUT": tmp_path / "out"}
    words = [str(places.get(word, word)) for word in command.split()]
    done = CliRunner().invoke(app, words, input="y\n" * 9)
    assert not trophy.exists()
    assert done.exit_code == 1, done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("offramp: ")]
    assert "comes with Python code, which offramp never runs" in error
