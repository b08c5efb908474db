"""ExitModel: creating, loading, saving, truncating, exporting."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertTokenizer,
    PreTrainedModel,
    pipeline,
)

from offramp import ExitConfig, ExitModel, HeadConfig
from offramp.errors import BadConfig, BadOption, CannotLoad, OfframpError
from offramp.models.backbones import BACKBONES
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem

Make = Callable[..., PreTrainedModel]
Inputs = dict[str, Tensor]
every_backbone = pytest.mark.parametrize("name", BACKBONES)


@torch.no_grad()
def exit_logits(model: Any, inputs: Inputs) -> Tensor:
    logits: Tensor = model.eval()(**inputs).exit_logits
    return logits


@every_backbone
def test_exits_read_the_output_of_their_layer(name: str, tiny_encoder: Make, padded: Inputs) -> None:
    encoder = tiny_encoder(name)
    model = ExitModel.from_encoder(encoder, num_labels=3, exits=[2, 4], head={"pooling": "first"})
    logits = exit_logits(model, padded)
    assert logits.shape == (5, 2, 3)
    with torch.no_grad():
        last = encoder(**padded).last_hidden_state
        torch.testing.assert_close(model.heads(1, last, padded["attention_mask"])[0], logits[:, 1])
    assert torch.equal(model(**padded).logits, logits[:, -1])


@every_backbone
def test_a_fine_tuned_classifier_keeps_its_logits_as_the_last_exit(
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


def test_a_fine_tuned_classifier_keeps_label_names_and_problem_type(
    tiny_classifier: Make, tmp_path: Path
) -> None:
    plain = tiny_classifier("bert", labels=["ham", "spam", "bulk"])
    plain.config.problem_type = "multi_label_classification"
    plain.save_pretrained(tmp_path)
    model = ExitModel.from_encoder(tmp_path)
    assert list(model.config.id2label.values()) == ["ham", "spam", "bulk"]
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.head_config.final_pooling == "first"


def test_another_number_of_labels_uses_only_the_encoder(tiny_classifier: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_classifier("bert", num_labels=3), labels=["no", "yes"])
    assert exit_logits(model, padded).shape == (5, 5, 2)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert model.config.head_config.final_pooling is None


@pytest.mark.parametrize(
    "head",
    [
        {"pooler": "none"},
        {"hidden": 8},
        {"activation": "relu"},
        {"final_pooling": "mean"},
        {"norm": True},
    ],
)
def test_head_options_that_contradict_the_classifier_are_refused(
    head: dict[str, Any], tiny_classifier: Make
) -> None:
    with pytest.raises(BadOption, match=f"last exit.*{next(iter(head))}"):
        ExitModel.from_encoder(tiny_classifier("bert"), head=head)


def test_head_options_that_agree_with_the_classifier_are_accepted(
    tiny_classifier: Make, padded: Inputs
) -> None:
    plain = tiny_classifier("electra")
    head = {"activation": "gelu", "final_pooling": "first", "pooler": "shared"}
    with torch.no_grad():
        assert torch.equal(ExitModel.from_encoder(plain, head=head)(**padded).logits, plain(**padded).logits)


class MyBert(BertForSequenceClassification):
    """A classifier whose name does not say so."""


def test_a_subclass_of_a_classifier_is_a_classifier(tiny_classifier: Make, padded: Inputs) -> None:
    plain = tiny_classifier("bert")
    own = MyBert(plain.config).eval()
    own.load_state_dict(plain.state_dict())
    with torch.no_grad():
        assert torch.equal(ExitModel.from_encoder(own)(**padded).logits, plain(**padded).logits)


@pytest.mark.parametrize("lost", ["classifier.weight", "bert.pooler.dense.bias"])
def test_missing_weights_of_a_classifier_are_named(lost: str, tiny_classifier: Make, tmp_path: Path) -> None:
    tiny_classifier("bert").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CannotLoad, match=lost):
        ExitModel.from_encoder(tmp_path)


def test_missing_weights_of_an_encoder_are_named(tiny_encoder: Make, tmp_path: Path) -> None:
    tiny_encoder("bert").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.3.output.dense.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CannotLoad, match=r"encoder\.layer\.3\.output\.dense\.bias"):
        ExitModel.from_encoder(tmp_path)


def test_loading_options_are_refused_with_a_loaded_model(tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match=r"already loaded.*attn_implementation"):
        ExitModel.from_encoder(tiny_encoder("bert"), attn_implementation="eager")


def test_own_poolers_start_as_copies_of_the_pretrained_one(tiny_encoder: Make, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.save_pretrained(tmp_path)
    model = ExitModel.from_encoder(tmp_path)
    assert len(model.heads.poolers) == 5
    for pooler in model.heads.poolers:
        assert torch.equal(pooler.dense.weight, encoder.pooler.dense.weight)


def test_a_pooler_that_is_not_in_the_checkpoint_is_not_copied(tiny_encoder: Make, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.pooler = None
    encoder.save_pretrained(tmp_path)
    first, second, *_ = ExitModel.from_encoder(tmp_path).heads.poolers
    assert not torch.equal(first.dense.weight, second.dense.weight)


def test_elbert_adds_no_parameters_to_a_plain_albert_classifier(tiny_classifier: Make) -> None:
    plain = tiny_classifier("albert", num_labels=2)
    model = ExitModel.from_encoder(plain, head={"pooler": "shared", "classifier": "shared"})
    assert model.num_parameters() == plain.num_parameters()


def test_pooling_defaults_are_those_in_the_docs(tiny_encoder: Make) -> None:
    poolings = {name: ExitModel.from_encoder(tiny_encoder(name)).config.head["pooling"] for name in BACKBONES}
    assert poolings.pop("albert") == "first"
    assert set(poolings.values()) == {"mean"}


def test_head_options_as_config_and_as_dict_are_equivalent(tiny_encoder: Make) -> None:
    encoder = tiny_encoder("albert")
    as_config, as_dict = (
        ExitModel.from_encoder(encoder, head=head).config.head
        for head in (HeadConfig(dropout=0.2), {"dropout": 0.2})
    )
    assert as_config == as_dict
    plain = ExitConfig(encoder_config=encoder.config, head={"dropout": 0.2}).head
    assert {**plain, "embedding_pooling": "mean"} == as_dict  # older models have none
    assert (as_dict["pooling"], as_dict["activation"]) == ("first", "tanh")


@pytest.mark.parametrize(
    ("exits", "layers"),
    [
        (1, [0, 1, 2, 3, 4, 5]),
        (2, [0, 2, 4, 5]),
        (5, [0, 5]),
        ([0, 2], [0, 2, 5]),
        ([3, 1], [1, 3, 5]),
        ((5,), [5]),
        (range(2, 4), [2, 3, 5]),
        ([], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_exits_are_at_the_chosen_layers_and_the_last(
    exits: Any, layers: list[int], tiny_encoder: Make
) -> None:
    assert ExitModel.from_encoder(tiny_encoder("bert", layers=5), exits=exits).config.exits == layers


@pytest.mark.parametrize("exits", [[6], [-1, 3], [2.0], ["2"], "25", 0, -1, -2, 7, 2.0, None, True])
def test_an_exit_at_a_layer_that_does_not_exist_is_refused(exits: Any, tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match="of 5 layers"):
        ExitModel.from_encoder(tiny_encoder("bert", layers=5), exits=exits)


@pytest.mark.parametrize("count", [0, -1, 2.0, "2"])
def test_an_invalid_number_of_labels_is_refused(count: Any, tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match="num_labels"):
        ExitModel.from_encoder(tiny_encoder("bert"), num_labels=count)


@pytest.mark.parametrize("count", [0, -1])
def test_a_config_without_labels_is_refused(count: int, tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match="num_labels"):
        ExitConfig(encoder_config=tiny_encoder("bert").config, num_labels=count)


def test_a_saved_model_loads_as_the_same_model(tiny_encoder: Make, padded: Inputs, tmp_path: Path) -> None:
    model = ExitModel.from_encoder(
        tiny_encoder("modernbert"),
        labels=["a", "b", "c"],
        exits=2,
        head={"classifier": "shared", "gate": True},
    )
    model.config.policy = {"rule": "entropy", "threshold": 0.3}
    model.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    for loaded in (
        ExitModel.from_pretrained(tmp_path),
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
    ):
        assert isinstance(loaded, ExitModel)
        assert torch.equal(exit_logits(loaded, padded), exit_logits(model, padded))
        assert loaded.config.policy == model.config.policy
        assert loaded.config.id2label == {0: "a", 1: "b", 2: "c"}
        assert loaded.config.label2id == {"a": 0, "b": 1, "c": 2}
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
    assert model.exit_weights.tolist() == [4.0, 4.0, 4.0, 4.0]
    with torch.no_grad():
        model.exit_weights[1] = 2.5
    model.save_pretrained(tmp_path)
    assert ExitModel.from_pretrained(tmp_path).exit_weights.tolist() == [4.0, 2.5, 4.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_learned_weights_stay_in_float32_in_a_half_precision_model(
    dtype: torch.dtype, tiny_encoder: Make, tmp_path: Path
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert").to(dtype))
    model.add_exit_weights()
    with torch.no_grad():
        model.exit_weights += 1e-6
    model.save_pretrained(tmp_path)
    for each in (model, ExitModel.from_pretrained(tmp_path, dtype=dtype), model.truncate(2)):
        assert (each.dtype, each.exit_weights.dtype) == (dtype, torch.float32)
        assert each.exit_weights[0] == model.exit_weights[0] != 4
        assert {weight.dtype for weight in each.heads.parameters()} == {dtype}


def test_models_do_not_share_a_config(tiny_encoder: Make, padded: Inputs) -> None:
    config = ExitConfig(encoder_config=tiny_encoder("bert").config)
    before = config.to_dict()
    changed, plain = ExitModel(config), ExitModel(config)
    changed.add_gate()
    changed.add_exit_weights()
    assert config.to_dict() == plain.config.to_dict() == before
    assert plain(**padded).exit_gates is None
    assert changed.config.head_config.gate
    assert changed(**padded).exit_gates.shape == (5, 5)


@every_backbone
def test_a_resized_vocabulary_is_saved_and_loaded(
    name: str, tiny_encoder: Make, padded: Inputs, tmp_path: Path
) -> None:
    model = ExitModel.from_encoder(tiny_encoder(name))
    model.resize_token_embeddings(70, mean_resizing=False)
    model.save_pretrained(tmp_path)
    loaded = ExitModel.from_pretrained(tmp_path)
    assert loaded.config.encoder_config.vocab_size == 70
    new = {**padded, "input_ids": padded["input_ids"].where(padded["input_ids"] != 9, 69)}
    assert torch.equal(exit_logits(loaded, new), exit_logits(model, new))


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    return tmp_path


def test_the_text_classification_pipeline_uses_the_last_exit(
    tiny_encoder: Make, tokenizer_folder: Path
) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), labels=["no", "yes"])
    model.save_pretrained(tokenizer_folder)
    classify = pipeline("text-classification", model=str(tokenizer_folder))
    [prediction] = classify("good film")
    tokens = AutoTokenizer.from_pretrained(tokenizer_folder)("good film", return_tensors="pt")
    probabilities = exit_logits(model, tokens)[0, -1].softmax(-1)
    assert prediction["label"] == ["no", "yes"][int(probabilities.argmax())]
    assert prediction["score"] == pytest.approx(float(probabilities.max()), abs=1e-6)


def test_an_exit_that_was_only_added_is_not_fine_tuned_when_it_becomes_the_last(
    tiny_classifier: Make,
) -> None:
    model = ExitModel.from_encoder(tiny_classifier("bert"))
    assert model.config.fine_tuned
    assert not model.truncate(2).config.fine_tuned
    model.config.inner_exits_trained = True
    assert model.truncate(2).config.fine_tuned


@every_backbone
def test_a_truncated_model_has_the_logits_of_that_exit(
    name: str, tiny_encoder: Make, padded: Inputs, tmp_path: Path
) -> None:
    encoder = tiny_encoder(name, **({"num_hidden_groups": 1} if name == "albert" else {}))
    model = ExitModel.from_encoder(encoder, num_labels=3)
    shorter = model.truncate(layers=3)
    assert torch.equal(exit_logits(shorter, padded), exit_logits(model, padded)[:, :4])
    shorter.save_pretrained(tmp_path)
    again = ExitModel.from_pretrained(tmp_path)
    assert torch.equal(exit_logits(again, padded), exit_logits(shorter, padded))
    assert shorter.config.num_layers == 3
    weights = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert weights == shorter.num_parameters()
    assert shorter.num_parameters() < model.num_parameters()


@pytest.mark.parametrize(
    "head", [{"pooler": "shared", "classifier": 2}, {"pooler": "none", "classifier": "shared"}]
)
def test_truncation_keeps_shared_modules(head: dict[str, Any], tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert", layers=6), head=head)
    assert torch.equal(exit_logits(model.truncate(3), padded), exit_logits(model, padded)[:, :4])


def test_truncation_keeps_the_pooling_of_that_exit_and_no_policy(
    tiny_classifier: Make, padded: Inputs
) -> None:
    model = ExitModel.from_encoder(tiny_classifier("bert"))
    model.config.policy = {"rule": "never"}
    shorter = model.truncate(2)
    assert torch.equal(exit_logits(shorter, padded), exit_logits(model, padded)[:, :3])
    assert shorter.config.policy is None


def test_truncation_needs_an_exit_at_that_layer(tiny_encoder: Make) -> None:
    with pytest.raises(BadConfig, match=r"layer 3 has no exit.*\[0, 2, 4\]"):
        ExitModel.from_encoder(tiny_encoder("bert"), exits=2).truncate(3)


@pytest.mark.parametrize(
    ("problem", "labels", "expected"),
    [
        (SINGLE_LABEL, torch.tensor([1, 0]), torch.nn.CrossEntropyLoss()),
        (MULTI_LABEL, torch.tensor([[1, 0], [1, 1]]), torch.nn.BCEWithLogitsLoss()),
        (REGRESSION, torch.tensor([[1.0, 0.5], [2.0, -1.0]]), torch.nn.MSELoss()),
    ],
)
def test_the_loss_of_each_exit_equals_torchs(problem: Problem, labels: Tensor, expected: Any) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 2)
    target = labels if problem == SINGLE_LABEL else labels.float()
    by_exit = torch.stack([expected(logits[:, exit], target) for exit in range(3)])
    torch.testing.assert_close(problem.loss(logits, labels), by_exit)


def test_one_label_means_regression(tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"), num_labels=1)
    assert model.config.problem_type == "regression"
    output = model(**padded, labels=torch.arange(5.0))
    expected = ((output.exit_logits.squeeze(-1) - torch.arange(5.0)[:, None]) ** 2).mean()
    torch.testing.assert_close(output.loss, expected)


@every_backbone
def test_a_model_exports_with_a_dynamic_number_of_rows(name: str, tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder(name, layers=2)).eval()
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(
        model,
        (),
        kwargs=dict(padded),
        dynamic_shapes={name: {0: rows} for name in padded},
        strict=False,
    )
    fewer = {name: tensor[:3] for name, tensor in padded.items()}
    torch.testing.assert_close(program.module()(**fewer).exit_logits, exit_logits(model, fewer))


WITHOUT_CHECKPOINTING = {"albert", "mpnet"}
"""Families without gradient checkpointing in transformers."""


@pytest.mark.parametrize("name", sorted(BACKBONES.keys() - WITHOUT_CHECKPOINTING))
def test_gradient_checkpointing_recomputes_layers_and_gives_the_same_gradients(
    name: str, tiny_encoder: Make, padded: Inputs
) -> None:
    model = ExitModel.from_encoder(tiny_encoder(name), head=HeadConfig(dropout=0.0))
    for module in model.modules():
        if hasattr(module, "p"):  # dropout, of torch or of the family
            module.p = 0.0
    calls: list[int] = []
    for layer in model.adapter.layers(model.backbone):
        part = next(module for module in layer.modules() if isinstance(module, torch.nn.Linear))
        part.register_forward_hook(lambda *_: calls.append(1))

    def gradients() -> dict[str, Tensor]:
        calls.clear()
        model.zero_grad()
        model.train()(**padded, labels=torch.tensor([0, 1, 0, 1, 1])).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain, once = gradients(), len(calls)
    model.gradient_checkpointing_enable()
    again = gradients()
    assert len(calls) == 2 * once > 0
    assert again.keys() == plain.keys()
    for name, gradient in again.items():
        torch.testing.assert_close(gradient, plain[name])


@pytest.mark.parametrize("name", sorted(WITHOUT_CHECKPOINTING))
def test_gradient_checkpointing_is_refused_where_transformers_has_none(name: str, tiny_encoder: Make) -> None:
    with pytest.raises(ValueError, match="gradient checkpointing"):
        ExitModel.from_encoder(tiny_encoder(name)).gradient_checkpointing_enable()


def test_the_attention_implementation_can_be_switched(
    tiny_encoder: Make, padded: Inputs, tmp_path: Path
) -> None:
    ExitModel.from_encoder(tiny_encoder("bert")).save_pretrained(tmp_path)
    eager = ExitModel.from_pretrained(tmp_path, attn_implementation="eager")
    sdpa = ExitModel.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert eager.backbone.config._attn_implementation == "eager"
    assert sdpa.backbone.config._attn_implementation == "sdpa"
    torch.testing.assert_close(exit_logits(eager, padded), exit_logits(sdpa, padded))
    eager.set_attn_implementation("sdpa")
    assert torch.equal(exit_logits(eager, padded), exit_logits(sdpa, padded))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_implementation_of_the_encoder_is_kept(
    attention: str, tiny_encoder: Make, padded: Inputs, tmp_path: Path
) -> None:
    tiny_encoder("bert").save_pretrained(tmp_path)
    model = ExitModel.from_encoder(tmp_path, attn_implementation=attention)
    shorter = model.truncate(2)
    assert model.backbone.config._attn_implementation == attention
    assert shorter.backbone.config._attn_implementation == attention
    assert torch.equal(exit_logits(shorter, padded), exit_logits(model, padded)[:, :3])


def test_threads_can_share_a_model(tiny_encoder: Make, padded: Inputs) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"))
    rows = [{name: tensor[i : i + 1] for name, tensor in padded.items()} for i in range(5)]
    alone = [exit_logits(model, row) for row in rows]
    wrong: list[int] = []

    def work(order: range) -> None:
        for _ in range(10):
            wrong.extend(i for i in order if not torch.equal(exit_logits(model, rows[i]), alone[i]))

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


@pytest.mark.parametrize("changes", [{}, {"exits": "all"}, {"head": [1]}, {"encoder_config": None}])
def test_a_newer_config_asks_for_an_upgrade(changes: dict[str, Any], tmp_path: Path) -> None:
    config_file(tmp_path, format=2, **changes)
    for auto in (ExitConfig, AutoConfig):
        with pytest.raises(BadConfig, match=r"newer offramp.*Upgrade"):
            auto.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"exits": [1, 7]}, "exits"),
        ({"exits": "all"}, "exits"),
        ({"head": {"pooling": "max"}}, "pooling"),
        ({"head": {"dropout": "a"}}, "dropout"),
        ({"problem_type": "clustering"}, "problem_type"),
        ({"problem_type": "single_label_classification", "id2label": {"0": "a"}}, "problem_type"),
        ({"id2label": {"a": 0}}, "'a'"),
        ({"id2label": {}}, "num_labels"),
        ({"encoder_config": {"model_type": "gpt2"}}, "gpt2"),
        ({"encoder_config": {"model_type": "bert", "num_hidden_layers": "two"}}, "num_hidden_layers"),
        ({"encoder_config": {}}, "encoder_config"),
        ({"encoder_config": None}, "encoder_config"),
        ({"encoder_config": "bert"}, "encoder_config"),
        ({"format": "first"}, "format"),
    ],
)
def test_a_damaged_config_names_the_cause(changes: dict[str, Any], cause: str, tmp_path: Path) -> None:
    config_file(tmp_path, **changes)
    for auto in (ExitConfig, AutoConfig):
        with pytest.raises(OfframpError, match=cause):
            auto.from_pretrained(tmp_path)


@pytest.mark.parametrize("content", ['{"exits": ', "[1, 2]", "3", "\udcff"])
def test_a_config_that_is_not_a_json_object_is_reported(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    for auto in (ExitConfig, ExitModel):
        with pytest.raises(BadConfig, match=r"config\.json does not hold a JSON object"):
            auto.from_pretrained(tmp_path)


def test_a_path_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="nowhere"):
        ExitModel.from_encoder(tmp_path / "nowhere")


def test_pickled_weights_are_not_loaded(tiny_encoder: Make, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.config.save_pretrained(tmp_path)
    torch.save(encoder.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CannotLoad, match="safetensors"):
        ExitModel.from_encoder(tmp_path)


def test_a_model_with_exits_is_refused_as_an_encoder(tiny_encoder: Make, tmp_path: Path) -> None:
    model = ExitModel.from_encoder(tiny_encoder("bert"))
    model.save_pretrained(tmp_path)
    for encoder in (tmp_path, model):
        with pytest.raises(BadConfig, match=r"already has exits.*from_pretrained"):
            ExitModel.from_encoder(encoder)
