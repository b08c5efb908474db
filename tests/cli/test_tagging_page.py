"""docs/tagging.md: the commands of the page run, in order, on a tiny tagger."""

import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from offramp import Tagger
from offramp.serve.options import ServerOptions
from offramp.serve.server import load

Run = Callable[..., Result]
PAGE = Path(__file__).parents[2] / "docs" / "tagging.md"
WORDS = [*"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film"]


def commands() -> list[list[str]]:
    """Those of the first block, without what comes after #."""
    block = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_tagger: Callable[..., Any], tokenizer: Any
) -> Path:
    """The folder that the page speaks of, with a tagger whose first layers know most of what its last does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("offramp.measuring.speed.REPEATS", 1)
    model = tiny_tagger("bert", layers=2, labels=["O", "B-PER", "I-PER"])
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.output.dense.weight.mul_(0.02)
            layer.output.dense.weight.mul_(0.02)
        model.classifier.weight.mul_(8)
        model.classifier.bias[0] += 2
    model.save_pretrained("my-ner")
    tokenizer.save_pretrained("my-ner")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(1800)]
    Path("logs.csv").write_text("\n".join(["text", *texts[:1700]]) + "\n")
    Path("new.csv").write_text("\n".join(["text", *texts[1700:]]) + "\n")
    return tmp_path


def test_the_commands_of_the_page_run_and_its_server_tags(desk: Path, run: Run) -> None:
    *work, serve = commands()
    assert [command[1] for command in work] == ["retrofit", "retrofit", "predict"]
    for command in work:
        done = run(*command[1:])
        assert done.exit_code == 0, f"{shlex.join(command)}\n{done.output}"
    claims = {
        name: Tagger.from_pretrained(f"{name}/model").runner.policy.certificate.summary  # type: ignore[union-attr]
        for name in ("fast-ner", "fast-pii")
    }
    assert "at most 2% of texts get spans that differ from my-ner's" in claims["fast-ner"]
    assert (
        "at most 1% of texts have a word that my-ner marks and that is no longer marked" in claims["fast-pii"]
    )
    rows = [json.loads(line) for line in (desk / "spans.jsonl").read_text().splitlines()]
    assert len(rows) == 100
    assert any(row["spans"] for row in rows)
    assert serve[1:2] == ["serve"]
    batcher, _ = load(ServerOptions(serve[2], audit_share=1.0))
    assert batcher.tagger is not None
    batcher.drain(60)
