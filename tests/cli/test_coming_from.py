"""docs/coming-from.md: every line of its tables runs, in order, on tiny models and a few rows."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel
from typer.testing import CliRunner

from offramp.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
WIDTH = 16


def lines() -> dict[str, list[list[str]]]:
    """The commands of each section."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        section.splitlines()[0]: [
            shlex.split(line) for line in re.findall(r"\| `(offramp .*?)` \|$", section, re.M)
        ]
        for section in sections
    }


@pytest.fixture
def desk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_encoder: Callable[..., PreTrainedModel],
    tiny_classifier: Callable[..., PreTrainedModel],
    save_encoder: Callable[..., Path],
) -> Path:
    """The folder that the page speaks of: encoders under their names, data, checkpoints that one has."""
    monkeypatch.chdir(tmp_path)
    for name, kind in {"albert-base-v2": "albert", "bert-base-uncased": "bert"}.items():
        save_encoder(tmp_path / name, kind)
    write_glue(tmp_path / "glue")
    write_mrpc(tmp_path / "elue/MRPC")
    write_deebert(
        tmp_path / "saved_models/MRPC-two_stage", tiny_classifier("bert", num_labels=2, pad_token_id=0)
    )
    write_elasticbert(tmp_path / "elasticbert-base", tiny_encoder("bert", pad_token_id=0))
    return tmp_path


PAIRS = [("a good film", "a very good film", 1), ("a bad plot", "not a bad film", 0)] * 6


def write_glue(home: Path) -> None:
    write_mrpc(home / "MRPC")
    names = ["entailment", "not_entailment"]
    rte = "index\tsentence1\tsentence2"
    labelled = [f"0\t{one}\t{two}\t{names[label]}" for one, two, label in PAIRS]
    split_tables(home / "RTE", [f"{rte}\tlabel", *labelled], [rte, *numbered("{}\t{}")])
    stsb = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    beside = "a\tb\tc\t0\td\te"
    scored = [
        f"0\t{beside}\t{one}\t{two}\t{label * 4 + row / 20}" for row, (one, two, label) in enumerate(PAIRS)
    ]
    split_tables(home / "STS-B", [f"{stsb}\tscore", *scored], [stsb, *numbered(f"{beside}\t{{}}\t{{}}")])


def write_mrpc(folder: Path) -> None:
    ids = "#1 ID\t#2 ID\t#1 String\t#2 String"
    labelled = [f"{label}\t1\t2\t{one}\t{two}" for one, two, label in PAIRS]
    split_tables(folder, [f"Quality\t{ids}", *labelled], [f"index\t{ids}", *numbered("1\t2\t{}\t{}")])


def numbered(form: str) -> list[str]:
    return [f"{row}\t{form.format(one, two)}" for row, (one, two, _) in enumerate(PAIRS)]


def split_tables(folder: Path, labelled: list[str], test: list[str]) -> None:
    folder.mkdir(parents=True)
    for name, rows in {"train": labelled, "dev": labelled, "test": test}.items():
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")


def write_deebert(folder: Path, old: PreTrainedModel) -> None:
    weights = {name: tensor.contiguous() for name, tensor in old.state_dict().items()}
    for layer in range(old.config.num_hidden_layers):
        for part, outputs in {"pooler.dense": WIDTH, "classifier": 2}.items():
            weights |= linear(f"bert.encoder.highway.{layer}.{part}", outputs)
    write_checkpoint(folder, weights, old.config.to_dict())
    shutil.copy("bert-base-uncased/vocab.txt", folder)


def write_elasticbert(folder: Path, encoder: PreTrainedModel) -> None:
    """Its pretraining: a pooler for each layer, no classifier; the tokenizer is BERT's and not in the folder."""
    weights = {
        f"elasticbert.{name}": tensor.contiguous()
        for name, tensor in encoder.state_dict().items()
        if not name.startswith("pooler.")
    }
    for layer in range(encoder.config.num_hidden_layers):
        weights |= linear(f"elasticbert.encoder.pooler.{layer}.dense", WIDTH)
    config = encoder.config.to_dict() | {"model_type": "elasticbert"}
    write_checkpoint(folder, weights, config)


def linear(name: str, outputs: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": torch.randn(outputs, WIDTH), f"{name}.bias": torch.randn(outputs)}


def write_checkpoint(folder: Path, weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


CHECKS: dict[str, Callable[[Path], bool]] = {
    "PABEE": lambda desk: (desk / "runs/pabee/model/config.json").is_file(),
    "ELBERT": lambda desk: "window:8,shape=monotone" in (desk / "runs/elbert/model/README.md").read_text(),
    "DeeBERT": lambda desk: (desk / "report/report.html").is_file(),
    "RomeBERT": lambda desk: len((desk / "submission/MRPC.tsv").read_text().splitlines()) == len(PAIRS) + 1,
    "ElasticBERT": lambda desk: (desk / "elue-submission/mrpc_exit_layer.tsv").is_file(),
}


@pytest.mark.parametrize("section", CHECKS)
def test_every_line_of_the_page_runs(desk: Path, section: str) -> None:
    for command in lines()[section]:
        done = CliRunner().invoke(app, command[1:])
        assert done.exit_code == 0, f"{shlex.join(command)}\n{done.output}"
        assert done.stdout
    assert CHECKS[section](desk)


def test_every_row_of_the_page_has_a_line_that_is_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [
        row for row in page.splitlines() if row.startswith("| ") and not row.startswith(("| there", "|---"))
    ]
    assert sum(map(len, lines().values())) == len(rows) > 30
