"""The Python code of README and docs runs as it stands, page by page, top to bottom."""

import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import BertTokenizer, PreTrainedModel

from offramp import BACKBONES, RECIPES, RULES, ExitModel

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTPUT = re.compile(r"^print\(.*\)  # (\[.*)$", re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def code(page: Path) -> list[str]:
    return [textwrap.dedent(found[2]) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page adds to a registry is gone after its test."""
    before = [(registry, dict(registry)) for registry in (BACKBONES, RULES, RECIPES)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.fixture
def demo_model(
    tiny_encoder: Callable[..., PreTrainedModel],
    tiny_classifier: Callable[..., PreTrainedModel],
    tiny_tagger: Callable[..., PreTrainedModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiny models where the demo, a training run and a user have theirs."""
    model = ExitModel.from_encoder(tiny_encoder("bert"), labels=["negative", "positive"])
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nmovie\nmessage\n1\n2\n3\n4\n5\n", encoding="utf-8"
    )
    for folder in ("fast/model", "runs/mine/model"):
        model.save_pretrained(tmp_path / folder)
        BertTokenizer(vocab=str(vocabulary)).save_pretrained(tmp_path / folder)
    reranker = tmp_path / "fast-reranker/model"
    ExitModel.from_encoder(tiny_encoder("bert"), num_labels=1).save_pretrained(reranker)
    BertTokenizer(vocab=str(vocabulary)).save_pretrained(reranker)
    named = tiny_tagger("bert", labels=["O", "B-PER", "I-PER"])
    ExitModel.from_encoder(named).save_pretrained(tmp_path / "fast-ner/model")
    BertTokenizer(vocab=str(vocabulary)).save_pretrained(tmp_path / "fast-ner/model")
    tiny_classifier("bert").save_pretrained(tmp_path / "my-classifier")
    BertTokenizer(vocab=str(vocabulary)).save_pretrained(tmp_path / "my-classifier")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("registries", "demo_model")
@pytest.mark.parametrize("page", [page for page in PAGES if code(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_and_prints_what_its_comments_show(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(code(page), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in OUTPUT.findall(block) if line not in printed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.split("#")[0] for target in LINK.findall(prose) if "://" not in target]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_of_the_package_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    places = (ROOT / "src/offramp", ROOT)
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_architecture_lists_every_module_of_the_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    inside = [path for path in (ROOT / "src/offramp").iterdir() if "__" not in path.name]
    names = [f"{path.name}/" if path.is_dir() else path.name for path in inside if path.suffix in ("", ".py")]
    assert [name for name in names if f"`{name}`" not in page] == []
