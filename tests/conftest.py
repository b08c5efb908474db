"""Tiny random models, one for every backbone in the registry, a tokenizer of whole words, and traces of models
that never were."""

import gc
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from shutil import which
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.constants import HF_HOME
from hypothesis import HealthCheck, settings
from onnx import ModelProto
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch.export import ExportedProgram
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from offramp import Runner, Tagger
from offramp.models.exit_model import ExitModel
from offramp.onnx_export import export
from offramp.policy import Policy
from offramp.serve.logs import LOGGING
from offramp.trace import Trace

torch.set_num_threads(1)
# some virtual machines report AMX and then die of its instructions in bfloat16; oneDNN reads this on first use
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# a busy machine must not fail a property
settings.register_profile("offramp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("offramp")

# the caches of offramp are redirected below, those of others are not
os.environ.setdefault("HF_HOME", HF_HOME)

VOCABULARY = 60
PAD = 1
WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film"]

# what a family needs besides the sizes below, to have its special parts tested
SPECIAL: dict[str, dict[str, Any]] = {
    "albert": {"num_hidden_groups": 2, "embedding_size": 8},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "conv_kernel_size": 3,
        "position_biased_input": False,
    },
    "electra": {"embedding_size": 8},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2},
}


def tiny_config(model_type: str, layers: int = 4, **options: Any) -> Any:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "max_position_embeddings": 40,
        "pad_token_id": PAD,
        "initializer_range": 0.3,
    }
    names = {"hidden_size": "dim", "intermediate_size": "hidden_dim", "num_attention_heads": "n_heads"}
    if model_type == "distilbert":
        sizes = {names.get(name, name): value for name, value in sizes.items()}
        sizes["n_layers"] = sizes.pop("num_hidden_layers")
    return AutoConfig.for_model(model_type, **{**sizes, **SPECIAL.get(model_type, {}), **options})


def make(auto: Any, model_type: str, labels: Sequence[str] = (), **options: Any) -> PreTrainedModel:
    if labels:
        numbers = {label: number for number, label in enumerate(labels)}
        options |= {"id2label": dict(enumerate(labels)), "label2id": numbers}
    torch.manual_seed(0)
    model: PreTrainedModel = auto.from_config(tiny_config(model_type, **options))
    for parameter in model.parameters():  # biases and norms start alike in every layer; make each count
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def pytest_collection_finish() -> None:
    """What is imported now stays. Trainers collect garbage several times in each run, and would look through all of
    it, which takes longer than their work on a tiny model."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Folders for caches, which do not exist yet; the first is for fixtures that several tests share."""
    home: Path = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "shared"))
        yield (home / str(number) for number in count())


@pytest.fixture(autouse=True)
def cache(caches: Iterator[Path], monkeypatch: Any) -> Path:
    """No cache yet for each test, so that it does not remember the attempts of others."""
    folder = next(caches)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """A server in the process of the tests sets up logging on a stream that pytest closes after the test."""
    loggers = [logging.getLogger(name) for name in LOGGING["loggers"]]
    before = [(each.handlers[:], each.filters[:], each.level, each.propagate) for each in loggers]
    yield
    for logger, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.filters, logger.propagate = handlers, filters, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def tiny_encoder() -> Callable[..., PreTrainedModel]:
    """tiny_encoder("bert", layers=4, ...) -> a random encoder."""
    return lambda model_type, **options: make(AutoModel, model_type, **options)


@pytest.fixture(scope="session")
def tiny_classifier() -> Callable[..., PreTrainedModel]:
    """tiny_classifier("bert", labels=["no", "yes"], ...) -> a random `...ForSequenceClassification`."""
    return lambda model_type, **options: make(AutoModelForSequenceClassification, model_type, **options)


@pytest.fixture(scope="session")
def tiny_tagger() -> Callable[..., PreTrainedModel]:
    """tiny_tagger("bert", labels=["O", "B-A", "I-A"], ...) -> a random `...ForTokenClassification`."""
    return lambda model_type, **options: make(AutoModelForTokenClassification, model_type, **options)


@pytest.fixture(scope="session")
def plain_tagger(tiny_tagger: Callable[..., Any]) -> Any:
    """A random model that tags tokens as O, A or B."""
    return tiny_tagger("bert", labels=["O", "B-A", "I-A", "B-B", "I-B"])


@pytest.fixture(scope="session")
def tagger(plain_tagger: Any, tokenizer: PreTrainedTokenizerFast) -> Tagger:
    """The same with exits that disagree."""
    model = ExitModel.from_encoder(plain_tagger)
    torch.manual_seed(7)
    for head in model.heads.classifiers[:-1]:
        torch.nn.init.normal_(head.weight, std=0.5)
    return Tagger(Runner(model.eval(), tokenizer, "patience:1"))


@pytest.fixture(scope="session")
def make_model(tiny_encoder: Callable[..., Any]) -> Callable[..., ExitModel]:
    """make_model(num_labels=3, ...) -> a random model whose exits disagree."""

    def make(backbone: str = "bert", **options: Any) -> ExitModel:
        model = ExitModel.from_encoder(tiny_encoder(backbone), **options)
        torch.manual_seed(5)
        for head in model.heads.classifiers:
            torch.nn.init.normal_(head.weight, std=0.3)
        return model

    return make


@pytest.fixture(scope="session")
def padded() -> dict[str, torch.Tensor]:
    """Five rows of different lengths, padded on the right."""
    lengths = torch.tensor([7, 3, 11, 1, 5])
    torch.manual_seed(1)
    tokens = torch.randint(2, VOCABULARY, (5, 11))
    mask = (torch.arange(11) < lengths[:, None]).long()
    return {"input_ids": torch.where(mask.bool(), tokens, PAD), "attention_mask": mask}


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, and pairs."""
    rust = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rust.pre_tokenizer = Whitespace()
    rust.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture(scope="session")
def saved(
    make_model: Callable[..., ExitModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of a random model of four layers and three labels; texts exit at several layers."""
    folder = tmp_path_factory.mktemp("models") / "colours"
    model = make_model(labels=["red", "green", "blue"])
    model.config.policy = Policy.parse("confidence:0.775").to_json()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def convert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ModelProto]]:
    """Converts a program to ONNX. Where a test does not ask for this fixture, programs with equal operations are
    converted once, as for the stages of one model: it takes seconds, and the tiny models of many tests differ only in
    their weights."""
    graphs = import_module("offramp.onnx_export.graphs")
    to_onnx = graphs.to_onnx
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers

    def cache_file(program: ExportedProgram, outputs: list[str]) -> Path:
        weights, operations = graphs.separate(program)
        key = hashlib.sha256(repr((operations, [*weights], outputs)).encode()).hexdigest()
        return folder / f"{key}.onnx"

    def convert(program: ExportedProgram, outputs: list[str]) -> ModelProto:
        file, converted = cache_file(program, outputs), to_onnx(program, outputs)
        with NamedTemporaryFile(dir=folder, delete=False) as new:
            new.write(converted.SerializeToString())
        os.replace(new.name, file)
        return converted

    def convert_once(program: ExportedProgram, outputs: list[str]) -> ModelProto:
        file = cache_file(program, outputs)
        if not file.exists():
            return convert(program, outputs)
        filled: ModelProto = graphs.fill(
            ModelProto.FromString(file.read_bytes()), graphs.separate(program)[0]
        )
        return filled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "to_onnx", convert_once)
        yield convert


@pytest.fixture(scope="session")
def exported(saved: Path) -> Path:
    """The same model for ONNX Runtime."""
    return export(saved, saved.parent / "exported")


@pytest.fixture(scope="session", params=["torch", "onnx"])
def any_runtime(request: pytest.FixtureRequest) -> Path:
    """The same model for each runtime."""
    return Path(request.getfixturevalue({"torch": "saved", "onnx": "exported"}[request.param]))


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., Trace]:
    """make_trace(examples, exits=6, classes=3, seed=0, ...) -> a trace whose exits grow surer and righter."""

    def make(examples: int, exits: int = 6, classes: int = 3, seed: int = 0, **fields: Any) -> Trace:
        rng = np.random.default_rng(seed)
        labels = rng.integers(classes, size=examples)
        steps = rng.normal(0, 0.8, (examples, exits, classes))
        steps[np.arange(examples), :, labels] += 1.5 / rng.gamma(2, 1, (examples, 1))
        basics = {
            "layers": tuple(range(1, exits + 1)),
            "labels": labels,
            "lengths": rng.integers(4, 64, examples),
            "ids": np.arange(examples),
            "metrics": ("acc",),
            "data": f"made up {seed}",
            "fingerprint": "no model",
            "shape": {"hidden": 8, "intermediate": 16, "heads": 2, "layers": exits},
        }
        return Trace(steps.cumsum(1).astype(np.float32), **{**basics, **fields})

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium without a window."""
    from selenium import webdriver

    chromium, driver = which("chromium"), which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or chromedriver is missing")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()
