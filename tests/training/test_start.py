"""What `train` makes of a model, a data set and arguments, before the first step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import BertTokenizer, PreTrainedModel

from offramp import RECIPES, ExitModel, Task, train
from offramp.errors import BadOption
from offramp.training import Trained
from offramp.training.start import training_arguments

ROWS = {"text": ["a good film", "a bad film"] * 8, "label": ["yes", "no"] * 8}
PUBLISHED = ["deebert", "pabee", "elbert", "romebert", "elasticbert", "berxit", "fastbert"]
Start = Callable[..., Trained]


@pytest.fixture
def start(tokenizer: BertTokenizer, quick_options: dict[str, Any], tmp_path: Path) -> Start:
    """start(model, "pabee", data, exits=2) -> trains for one step; `args` are changes to the arguments."""

    def start(model: Any, recipe: Any = None, data: Any = None, **options: Any) -> Trained:
        args = {**quick_options, "max_steps": 1, "output_dir": tmp_path / "run", **options.pop("args", {})}
        for name in options.pop("without", ()):
            del args[name]
        rows = Dataset.from_dict(ROWS) if data is None else data
        return train(model, rows, recipe, args, **{"tokenizer": tokenizer, **options})

    return start


HEADS_ONLY = {"without": ["num_train_epochs", "learning_rate", "per_device_train_batch_size"]}


@pytest.mark.parametrize("recipe", RECIPES)
def test_published_recipes_have_no_exit_before_the_first_layer(recipe: str) -> None:
    assert RECIPES[recipe]().exit_at_embeddings == (recipe not in PUBLISHED)


@pytest.mark.parametrize(
    ("recipe", "exits", "expected"),
    [
        ("pabee", None, [1, 2, 3]),
        (None, None, [0, 1, 2, 3]),
        ("pabee", 1, [0, 1, 2, 3]),
        ("pabee", [2], [2, 3]),
    ],
)
def test_exits_are_where_the_authors_have_them_unless_named(
    recipe: str | None, exits: Any, expected: list[int], start: Start, tiny_encoder: Callable[..., Any]
) -> None:
    trained = start(tiny_encoder("bert", layers=3, pad_token_id=0), recipe, exits=exits)
    assert trained.model.config.exits == expected
    assert trained.model.config.label_names == ["no", "yes"]


def test_a_folder_is_trained_with_its_own_tokenizer(
    start: Start, tiny_encoder: Callable[..., Any], tokenizer: BertTokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "encoder"
    tiny_encoder("bert", layers=3, pad_token_id=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    trained = start(str(folder), "pabee", tokenizer=None, layers=2)
    assert trained.model.config.exits == [1, 2]
    again = start(trained.folder, "pabee", tokenizer=None, args={"output_dir": tmp_path / "more"})
    assert again.model.config.exits == [1, 2]


def test_both_splits_of_a_data_set_are_used(start: Start, tiny_encoder: Callable[..., Any]) -> None:
    data = DatasetDict(train=Dataset.from_dict(ROWS), validation=Dataset.from_dict(ROWS))
    assert len(start(tiny_encoder("bert", pad_token_id=0), "pabee", data).scores["acc"]) > 1


def test_a_classifier_keeps_its_outputs_and_needs_no_labels(
    start: Start, tiny_classifier: Callable[..., PreTrainedModel]
) -> None:
    classifier = tiny_classifier("bert", pad_token_id=0, labels=["yes", "no"])
    weight = classifier.get_submodule("classifier").weight.clone()  # type: ignore[operator]
    texts = Dataset.from_dict({"text": ROWS["text"]})
    lines: list[str] = []
    trained = start(classifier, None, texts, log=lines.append, **HEADS_ONLY)
    assert "frozen: " in lines[0]
    assert "the backbone stays as it is" in lines[0]
    assert trained.model.config.label_names == ["yes", "no"]
    assert torch.equal(trained.model.heads.classifiers[-1].weight, weight)  # type: ignore[arg-type]


def test_frozen_needs_a_trained_last_exit(start: Start, tiny_model: Callable[..., ExitModel]) -> None:
    with pytest.raises(
        BadOption, match="no trained classifier that could stay as it is; pass recipe='joint'"
    ):
        start(tiny_model(), "frozen", **HEADS_ONLY)


def test_arguments_that_the_recipe_sets_itself_are_refused(
    start: Start, tiny_classifier: Callable[..., PreTrainedModel]
) -> None:
    with pytest.raises(
        BadOption, match=r"num_train_epochs=2 has no effect: frozen sets its own.*'frozen:epochs="
    ):
        start(tiny_classifier("bert", pad_token_id=0), "frozen")


def test_a_model_with_exits_refuses_more(start: Start, tiny_model: Callable[..., ExitModel]) -> None:
    with pytest.raises(BadOption, match="already has exits; leave out exits="):
        start(tiny_model(), "pabee", exits=2)


def test_arguments_change_the_defaults(tmp_path: Path) -> None:
    args = training_arguments({"output_dir": tmp_path, "seed": 7, "save_total_limit": None})
    assert (args.seed, args.save_total_limit, args.learning_rate) == (7, None, 5e-5)
    assert training_arguments(args) is args


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_bf16_trains_on_a_cpu(start: Start, tiny_encoder: Callable[..., Any]) -> None:
    start(tiny_encoder("bert", pad_token_id=0), "pabee", args={"bf16": True}, without=["use_cpu"])


def test_options_of_a_recipe_can_be_part_of_its_name(start: Start, tiny_encoder: Callable[..., Any]) -> None:
    trained = start(tiny_encoder("bert", pad_token_id=0), "elbert:weights=equal")
    assert not trained.model.config.learned_weights


def test_the_rows_are_read_once(
    start: Start, tiny_encoder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, load = [], Task.load
    monkeypatch.setattr(Task, "load", lambda task, *splits: (loads.append(splits), load(task, *splits))[1])
    start(tiny_encoder("bert", pad_token_id=0), "pabee", log=lambda line: None)
    assert loads == [("train",)]
