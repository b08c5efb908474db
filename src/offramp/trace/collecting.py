"""One pass of a model over a data set: the only place on the measuring side that runs torch.

`gather` is the pass itself, for whatever can answer a part of the data set; `collect` lets an ExitModel answer.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

import numpy as np

from offramp.errors import BadData
from offramp.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from offramp.trace.record import Array, Trace

CHUNK = 4096
"""How many examples are tokenized and sorted by length at a time."""

Columns = dict[str, list[Any]]
Progress = Callable[[int], Any]
"""Is told how many more examples are done."""


def collect(
    model: Any,
    dataset: Any,
    tokenizer: Any = None,
    *,
    batch_tokens: int = 16_384,
    max_length: int | None = None,
    metrics: tuple[str, ...] = (),
    data: str = "",
    progress: bool = True,
) -> Trace:
    """Run all exits once over a data set, in batches of similar length; the trace is in the data set's order.

    A million examples with 12 exits and 3 classes take 144 MB, or twice that for a stream, whose length shows
    at its end only. What an exported model says is collected by `Classifier.collect`.

    Args:
        model: an `ExitModel`.
        dataset: a `datasets.Dataset` or `IterableDataset` with the columns `text` and maybe `text_pair`, or
            with `input_ids`; and maybe `label` or `labels`, and `idx` or `id`. Labels that are all -1 or
            None, as in a hidden test set, count as none.
        tokenizer: the model's, needed for text.
        batch_tokens: how many tokens a batch may hold, padding included.
        max_length: where text is cut, by default where the model's positions end.
        metrics: names of the task's metrics, the headline first.
        data: what the data is, for people who read the trace later.
        progress: show a progress bar.
    """
    import torch

    config = model.config

    def answer(columns: Columns, done: Progress) -> dict[str, Array]:
        rows = _token_rows(columns, tokenizer, model.max_length, max_length)
        return _run(model, rows, batch_tokens, done)

    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            arrays = gather(dataset, answer, config.problem_type, len(config.id2label), progress)
    finally:
        model.train(was_training)
    return Trace(
        **arrays,
        layers=tuple(config.exits),
        problem_type=config.problem_type,
        label_names=tuple(config.id2label[index] for index in sorted(config.id2label)),
        metrics=metrics,
        fingerprint=model.fingerprint(),
        data=data,
        runtime=runtime(_weight(model).device),
        precision=precision_name(_weight(model).dtype),
        shape=sizes(config),
    )


def gather(
    dataset: Any,
    answer: Callable[[Columns, Progress], dict[str, Array]],
    problem_type: str,
    classes: int,
    progress: bool,
) -> dict[str, Any]:
    """The arrays of a trace: what `answer` gives for one part of the data set after another (lengths, logits,
    maybe gates), and the ids and labels that stand there.

    Labels are checked before anything runs; those of a stream, before their part does.
    """
    from tqdm.auto import tqdm

    total = len(dataset) if hasattr(dataset, "__len__") else None
    names = [name for name in ("label", "labels") if name in (dataset.column_names or ())]
    if total and names:
        for _ in _described(dataset.select_columns(names), problem_type, classes):
            pass
    with tqdm(total=total, unit=" examples", disable=not progress) as bar:
        parts = _described(dataset, problem_type, classes)
        return _joined((answer(columns, bar.update) | known for columns, known in parts), total)


def _described(dataset: Any, problem_type: str, classes: int) -> Iterator[tuple[Columns, dict[str, Array]]]:
    """Each part of the data set, with its ids, and its labels if there are any."""
    first, labelled = 0, None
    for columns in dataset.with_format(None).iter(batch_size=CHUNK):
        count = len(next(iter(columns.values())))
        ids = columns.get("idx", columns.get("id", range(first, first + count)))
        labels = _labels(columns, problem_type, classes, first)
        if labelled is not None and labelled != (labels is not None):
            raise _unlabelled(0 if labels is not None else first)
        labelled = labels is not None
        yield columns, {"ids": np.array(ids)} | ({} if labels is None else {"labels": labels})
        first += count


def _labels(columns: Columns, problem_type: str, classes: int, first: int) -> Array | None:
    """The labels of a part; None if all of them are missing."""
    labels = columns.get("label", columns.get("labels", []))
    missing = [_is_missing(label, problem_type) for label in labels]
    if all(missing):
        return None
    if any(missing):
        raise _unlabelled(first + missing.index(True))
    for row, label in enumerate(labels, first):
        if not _is_label(label, problem_type, classes):
            expected = {
                SINGLE_LABEL: f"0 to {classes - 1}",
                MULTI_LABEL: f"a list of {classes} zeros and ones",
            }
            raise BadData(
                f"row {row} has the label {label!r}, expected {expected.get(problem_type, 'a number')}."
            )
    return np.array(labels, np.float32 if problem_type == REGRESSION else np.int64)


def _is_missing(label: Any, problem_type: str) -> bool:
    if label is None or label != label:  # NaN
        return True
    hidden = [-1] * len(label) if isinstance(label, list) else -1
    return bool(label == hidden and problem_type != REGRESSION)


def _is_label(label: Any, problem_type: str, classes: int) -> bool:
    if problem_type == REGRESSION:
        return isinstance(label, int | float) and isfinite(label)
    if problem_type == MULTI_LABEL:
        return isinstance(label, list) and len(label) == classes and all(each in (0, 1) for each in label)
    return isinstance(label, int) and 0 <= label < classes


def _unlabelled(row: int) -> BadData:
    return BadData(f"row {row} has no label and others have: give all rows one, or leave the column out.")


def _run(model: Any, rows: list[dict[str, list[int]]], batch_tokens: int, done: Progress) -> dict[str, Array]:
    """What all exits say of rows of tokens."""
    lengths = np.array([len(row["input_ids"]) for row in rows])
    arrays = {"lengths": lengths}
    for batch in _batches(lengths, batch_tokens):
        output = model(**_padded(model, [rows[row] for row in batch]))
        for name, values in (("logits", output.exit_logits), ("gates", output.exit_gates)):
            if values is not None:
                answers = values.float().cpu().numpy()
                arrays.setdefault(name, np.empty((len(rows), *answers.shape[1:]), np.float32))
                arrays[name][batch] = answers
        done(len(batch))
    return arrays


def _token_rows(
    columns: Columns, tokenizer: Any, positions: int, max_length: int | None
) -> list[dict[str, list[int]]]:
    """The tokens of each example, without padding."""
    if "input_ids" in columns:
        return unpadded_rows(columns)
    texts, pairs = text_columns(columns)
    if tokenizer is None:
        raise BadData("the data is text: pass the model's tokenizer too, or a data set that has input_ids.")
    longest = min(max_length or positions, positions, tokenizer.model_max_length)
    return unpadded_rows(tokenizer(texts, pairs, truncation=True, max_length=longest))


def text_columns(columns: Columns) -> tuple[list[str], list[str] | None]:
    """The texts, and in a data set of pairs the second ones."""
    if "text" not in columns:
        raise BadData(
            f"the data has neither text nor input_ids, only {', '.join(columns)}; rename its column."
        )
    return columns["text"], columns.get("text_pair")


def unpadded_rows(tokens: Any) -> list[dict[str, list[int]]]:
    """The tokens of each example, and their types where they are told, without padding."""
    names = [name for name in ("input_ids", "token_type_ids") if name in tokens]
    masks = tokens.get("attention_mask") or [[1] * len(ids) for ids in tokens["input_ids"]]
    return [
        {name: [token for token, real in zip(tokens[name][row], mask, strict=True) if real] for name in names}
        for row, mask in enumerate(masks)
    ]


def _batches(lengths: Array, batch_tokens: int) -> Iterator[Array]:
    """Rows of similar length, the longest first, so that what does not fit in memory shows at once."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        size = max(1, batch_tokens // max(1, int(lengths[order[0]])))
        yield order[:size]
        order = order[size:]


def _padded(model: Any, rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    pad = {"input_ids": getattr(model.config.encoder_config, "pad_token_id", None) or 0, "token_type_ids": 0}
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch = {
        name: pad_sequence([torch.tensor(row[name], dtype=torch.long) for row in rows], True, pad[name])
        for name in rows[0]
    }
    batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return {name: tensor.to(_weight(model).device) for name, tensor in batch.items()}


def _joined(chunks: Iterator[dict[str, Array]], total: int | None) -> dict[str, Any]:
    """The arrays of all chunks; logits go straight to their place where the total is known."""
    parts: dict[str, list[Array]] = defaultdict(list)
    logits = None
    done = 0
    for chunk in chunks:
        part = chunk.pop("logits")
        if total is None:
            parts["logits"].append(part)
        else:
            logits = np.empty((total, *part.shape[1:]), np.float32) if logits is None else logits
            logits[done : done + len(part)] = part
        done += len(part)
        for name, array in chunk.items():
            parts[name].append(array)
    if not done:
        raise BadData("the data set is empty; there is nothing to collect.")
    arrays: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    labels = arrays.get("labels")
    unknown = labels is None or (labels == -1).all()  # so a regression hides them
    return {**arrays, "labels": None if unknown else labels} | ({} if logits is None else {"logits": logits})


def _weight(model: Any) -> Any:
    """One of them, which knows where and what all are."""
    return next(model.parameters())


def runtime(device: Any) -> str:
    import torch

    return f"torch {torch.__version__}, {device.type}"


def precision_name(dtype: Any) -> str:
    """A dtype of torch by its short name.

    >>> precision_name("torch.bfloat16")
    'bf16'
    """
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")


def sizes(config: Any) -> dict[str, int]:
    """The shape of a trace, from the config of an ExitModel."""
    encoder = config.encoder_config
    return {
        "hidden": encoder.hidden_size,
        "intermediate": getattr(encoder, "intermediate_size", None)
        or encoder.hidden_dim,  # DistilBERT's word
        "heads": encoder.num_attention_heads,
        "layers": encoder.num_hidden_layers,
        "pooler": config.head_config.pooler != "none",
    }
