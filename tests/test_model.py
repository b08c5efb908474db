"""ExitModel among transformers: loading, saving, retrofitting, cutting, exporting."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedModel,
    pipeline,
)

from offramp import ExitConfig, ExitModel, HeadConfig
from offramp.backbones import BACKBONES
from offramp.errors import BadConfig, BadHead, CannotLoad
from offramp.model import task_loss

Make = Callable[..., PreTrainedModel]
Inputs = dict[str, Tensor]
every_backbone = pytest.mark.parametrize("name", BACKBONES)


@torch.no_grad()
def answers(model: Any, inputs: Inputs) -> Tensor:
    logits: Tensor = model.eval()(**inputs).exit_logits
    return logits


@every_backbone
def test_exits_see_what_each_layer_gives(name: str, tiny_encoder: Make, padded: Inputs) -> None:
    encoder = tiny_encoder(name)
    model = ExitModel.from_encoder(encoder, num_labels=3, exits=[2, 4], head={"pooling": "first"})
    logits = answers(model, padded)
    assert logits.shape == (5, 2, 3)
    with torch.no_grad():
        last = encoder(**padded).last_hidden_state
        torch.testing.assert_close(model.heads(1, last, padded["attention_mask"])[0], logits[:, 1])
    assert torch.equal(model(**padded).logits, logits[:, -1])


@every_backbone
def test_a_fine_tuned_model_keeps_its_answers_as_the_last_exit(
    name: str, tiny_classifier: Make, padded: Inputs
) -> None:
    plain = tiny_classifier(name, num_labels=3)
    model = ExitModel.from_encoder(plain, exits=2)
    with torch.no_grad():
        assert torch.equal(model(**padded).logits, plain(**padded).logits)


def test_modernbert_keeps_the_pooling_of_its_classifier(tiny_classifier: Make, padded: Inputs) -> None:
    plain = tiny_classifier("modernbert", classifier_pooling="mean", classifier_bias=True)
    model = ExitModel.from_encoder(plain, head={"pooling": "first"})
    with torch.no_grad():
        assert torch.equal(model(**padded).logits, plain(**padded).logits)


def test_a_retrofit_keeps_names_and_kind_of_labels(tiny_classifier: Make, tmp_path: Path) -> None:
    plain = tiny_classifier("bert", id2label={0: "ham", 1: "spam", 2: "bulk"}, label2id={}, num_labels=3)
    plain.config.problem_type = "multi_label_classification"
    plain.save_pretrained(tmp_path)
    model = ExitModel.from_encoder(tmp_path)
    assert list(model.config.id2label.values()) == ["ham", "spam", "bulk"]
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.head_config.final_pooling == "first"


def test_another_number_of_labels_takes_the_encoder_and_fresh_heads(
    tiny_classifier: Make, padded: Inputs
) -> None:
    model = ExitModel.from_encoder(tiny_classifier("bert", num_labels=3), labels=["no", "yes"])
    assert answers(model, padded).shape == (5, 4, 2)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert model.config.head_config.final_pooling is None


def test_a_retrofit_refuses_a_head_that_cannot_hold_the_classifier(tiny_classifier: Make) -> None:
    with pytest.raises(BadHead, match="last exit"):
        ExitModel.from_encoder(tiny_classifier("bert"), head={"pooler": "none"})


def test_own_poolers_start_as_copies_of_the_pretrained_one(tiny_encoder: Make, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.save_pretrained(tmp_path)
    model = ExitModel.from_encoder(tmp_path)
    assert len(model.heads.poolers) == 4
    for pooler in model.heads.poolers:
        assert torch.equal(pooler.dense.weight, encoder.pooler.dense.weight)


def test_a_pooler_that_is_not_in_the_checkpoint_is_not_taken_for_pretrained(
    tiny_encoder: Make, tmp_path: Path
) -> None:
    encoder = tiny_encoder("bert")
    encoder.pooler = None
    encoder.save_pretrained(tmp_path)
    first, second, *_ = ExitModel.from_encoder(tmp_path).heads.poolers
    assert not torch.equal(first.dense.weight, second.dense.weight)


def test_elbert_adds_no_parameters_to_a_plain_albert_classifier(tiny_classifier: Make) -> None:
    plain = tiny_classifier("albert", num_labels=2)
    model = ExitModel.from_encoder(plain, head={"pooler": "shared", "classifier": "shared"})
    assert model.num_parameters() == plain.num_parameters()


def test_pooling_defaults_to_what_its_family_documents(tiny_encoder: Make) -> None:
    poolings = {name: ExitModel.from_encoder(tiny_encoder(name)).config.head["pooling"] for name in BACKBONES}
    assert poolings.pop("albert") == "first"
    assert set(poolings.values()) == {"mean"}


@pytest.mark.parametrize(
    ("asked", "placed"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), ([3, 1], [1, 3, 5]), ([5], [5])]
)
def test_exits_are_placed_where_asked_and_at_the_end(
    asked: Any, placed: list[int], tiny_encoder: Make
) -> None:
    assert ExitModel.from_encoder(tiny_encoder("bert", layers=5), exits=asked).config.exits == placed


@pytest.mark.parametrize("exits", [[0], [6], [-1, 3]])
def test_an_exit_where_there_is_no_layer_is_refused(exits: list[int], tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match="of 5 layers"):
        ExitModel.from_encoder(tiny_encoder("bert", layers=5), exits=exits)


def test_saved_and_loaded_it_is_the_same_model(tiny_encoder: Make, padded: Inputs, tmp_path: Path) -> None:
    model = ExitModel.from_encoder(
        tiny_encoder("modernbert"),
        labels=["a", "b", "c"],
        exits=2,
        head={"classifier": "shared", "gate": True},
    )
    model.config.policy = {"criterion": "entropy", "threshold": 0.3}
    model.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    for loaded in (
        ExitModel.from_pretrained(tmp_path),
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
    ):
        assert isinstance(loaded, ExitModel)
        assert torch.equal(answers(loaded, padded), answers(model, padded))
        assert loaded.config.policy == model.config.policy
        assert loaded.fingerprint() == model.fingerprint()


def test_the_fingerprint_changes_with_a_single_weight(tiny_encoder: Make) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"))
    before = model.fingerprint()
    with torch.no_grad():
        model.heads.classifiers[0].bias[0] += 1e-6
    assert model.fingerprint() != before


def test_learned_weights_are_parameters_and_are_saved(tiny_encoder: Make, tmp_path: Path) -> None:
    config = ExitModel.from_encoder(tiny_encoder("bert")).config
    model = ExitModel(ExitConfig(**{**config.to_dict(), "learned_weights": True}))
    assert model.exit_weights.tolist() == [4.0, 4.0, 4.0]
    with torch.no_grad():
        model.exit_weights[1] = 2.5
    model.save_pretrained(tmp_path)
    assert ExitModel.from_pretrained(tmp_path).exit_weights.tolist() == [4.0, 2.5, 4.0]


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    return tmp_path


def test_the_text_classification_pipeline_answers_with_the_last_exit(
    tiny_encoder: Make, tokenizer_folder: Path
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), labels=["no", "yes"])
    model.save_pretrained(tokenizer_folder)
    classify = pipeline("text-classification", model=str(tokenizer_folder))
    [answer] = classify("good film")
    tokens = AutoTokenizer.from_pretrained(tokenizer_folder)("good film", return_tensors="pt")
    probabilities = answers(model, tokens)[0, -1].softmax(-1)
    assert answer["label"] == ["no", "yes"][int(probabilities.argmax())]
    assert answer["score"] == pytest.approx(float(probabilities.max()), abs=1e-6)


@every_backbone
def test_truncated_it_answers_as_that_exit_did(
    name: str, tiny_encoder: Make, padded: Inputs, tmp_path: Path
) -> None:
    encoder = tiny_encoder(name, **({"num_hidden_groups": 1} if name == "albert" else {}))
    model = ExitModel.from_encoder(encoder, num_labels=3)
    shorter = model.truncate(layers=3)
    assert torch.equal(answers(shorter, padded), answers(model, padded)[:, :3])
    shorter.save_pretrained(tmp_path)
    again = ExitModel.from_pretrained(tmp_path)
    assert torch.equal(answers(again, padded), answers(shorter, padded))
    assert shorter.config.num_layers == 3
    if name != "albert":  # its layers share their weights
        weights = (tmp_path / "model.safetensors").stat().st_size
        assert shorter.num_parameters() < model.num_parameters() > weights / 4


@pytest.mark.parametrize(
    "head", [{"pooler": "shared", "classifier": 2}, {"pooler": "none", "classifier": "shared"}]
)
def test_truncation_keeps_what_the_kept_exits_share(
    head: dict[str, Any], tiny_encoder: Make, padded: Inputs
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=6), head=head)
    assert torch.equal(answers(model.truncate(3), padded), answers(model, padded)[:, :3])


def test_truncating_a_retrofit_keeps_the_pooling_of_that_exit(tiny_classifier: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_classifier("bert"))
    model.config.policy = {"criterion": "never"}
    shorter = model.truncate(2)
    assert torch.equal(answers(shorter, padded), answers(model, padded)[:, :2])
    assert shorter.config.policy is None


def test_truncation_needs_an_exit_to_end_with(tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match=r"no exit at layer 3.*\[2, 4\]"):
        ExitModel.from_encoder(tiny_encoder("bert"), exits=2).truncate(3)


@pytest.mark.parametrize(
    ("problem", "labels", "expected"),
    [
        ("single_label_classification", torch.tensor([1, 0]), torch.nn.CrossEntropyLoss()),
        ("multi_label_classification", torch.tensor([[1, 0], [1, 1]]), torch.nn.BCEWithLogitsLoss()),
        ("regression", torch.tensor([[1.0, 0.5], [2.0, -1.0]]), torch.nn.MSELoss()),
    ],
)
def test_the_loss_of_each_exit_is_torchs_own(problem: str, labels: Tensor, expected: Any) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 2)
    target = labels if problem == "single_label_classification" else labels.float()
    by_exit = torch.stack([expected(logits[:, exit], target) for exit in range(3)])
    torch.testing.assert_close(task_loss(logits, labels, problem), by_exit)


def test_regression_is_one_label(tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=1)
    assert model.config.problem_type == "regression"
    output = model(**padded, labels=torch.arange(5.0))
    expected = ((output.exit_logits.squeeze(-1) - torch.arange(5.0)[:, None]) ** 2).mean()
    torch.testing.assert_close(output.loss, expected)


def test_it_exports_with_any_number_of_rows(tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert")).eval()
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(
        model,
        (),
        kwargs=dict(padded),
        dynamic_shapes={name: {0: rows} for name in padded},
        strict=False,
    )
    fewer = {name: tensor[:3] for name, tensor in padded.items()}
    torch.testing.assert_close(program.module()(**fewer).exit_logits, answers(model, fewer))


def test_gradient_checkpointing_gives_the_same_gradients(tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), head=HeadConfig(dropout=0.0))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    labels = torch.tensor([0, 1, 0, 1, 1])

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model.train()(**padded, labels=labels).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    model.gradient_checkpointing_enable()
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, plain[name])


def test_attention_can_be_switched(tiny_encoder: Make, padded: Inputs, tmp_path: Path) -> None:
    ExitModel.from_encoder(tiny_encoder("bert")).save_pretrained(tmp_path)
    eager = ExitModel.from_pretrained(tmp_path, attn_implementation="eager")
    sdpa = ExitModel.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert eager.backbone.config._attn_implementation == "eager"
    assert sdpa.backbone.config._attn_implementation == "sdpa"
    torch.testing.assert_close(answers(eager, padded), answers(sdpa, padded))
    eager.set_attn_implementation("sdpa")
    assert torch.equal(answers(eager, padded), answers(sdpa, padded))


def test_two_threads_can_use_one_model(tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"))
    rows = [{name: tensor[i : i + 1] for name, tensor in padded.items()} for i in range(5)]
    alone = [answers(model, row) for row in rows]
    wrong: list[int] = []

    def work(order: range) -> None:
        for _ in range(10):
            wrong.extend(i for i in order if not torch.equal(answers(model, rows[i]), alone[i]))

    threads = [threading.Thread(target=work, args=(order,)) for order in (range(5), range(4, -1, -1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def config_file(folder: Path, **changes: Any) -> Path:
    config = ExitConfig(encoder_config=AutoConfig.for_model("bert", num_hidden_layers=2))
    config.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_newer_config_asks_for_an_upgrade(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"newer offramp.*Upgrade"):
        ExitConfig.from_pretrained(config_file(tmp_path, format=99))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"exits": [1, 7]}, "exits"),
        ({"exits": "all"}, "exits"),
        ({"head": {"pooling": "max"}}, "pooling"),
        ({"problem_type": "clustering"}, "problem_type"),
        ({"encoder_config": {"model_type": "gpt2"}}, "gpt2"),
    ],
)
def test_a_damaged_config_names_what_is_wrong(changes: dict[str, Any], cause: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=cause):
        ExitConfig.from_pretrained(config_file(tmp_path, **changes))


def test_a_wrong_path_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="nowhere"):
        ExitModel.from_encoder(tmp_path / "nowhere")


def test_pickled_weights_are_not_loaded(tiny_encoder: Make, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.config.save_pretrained(tmp_path)
    torch.save(encoder.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CannotLoad, match="safetensors"):
        ExitModel.from_encoder(tmp_path)


def test_a_model_with_exits_is_not_taken_for_an_encoder(tiny_encoder: Make, tmp_path: Path) -> None:
    ExitModel.from_encoder(tiny_encoder("bert")).save_pretrained(tmp_path)
    with pytest.raises(BadConfig, match="from_pretrained"):
        ExitModel.from_encoder(tmp_path)
