"""One pass of a model over a data set, run by the engine: where every trace comes from."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from offramp.engine import Engine
from offramp.errors import BadData, BadOption
from offramp.inference.runner import NEVER, Runner
from offramp.inference.texts import BatchTokenizer, check_kind
from offramp.inference.windows import WindowedText, WindowTokenizer
from offramp.lists import Lists
from offramp.problems import UNLABELLED, Array, Problem
from offramp.row_hashes import hash_batch, hash_rows
from offramp.runtimes import Tokens, runtime_of
from offramp.tags import token_tags
from offramp.trace import Trace

Batch = dict[str, list[Any]]
"""Consecutive rows of a data set, by column."""


def collect(
    model: Any,
    dataset: Any,
    tokenizer: Any = None,
    *,
    batch_tokens: int | None = None,
    max_length: int | None = None,
    metrics: tuple[str, ...] = (),
    data: str = "",
    group: str = "",
    progress: bool = True,
) -> Trace:
    """Run all exits once over a data set; the trace is in the data set's order.

    The logits are kept in memory: a million examples with 12 exits and 3 classes take 144 MB, or twice that for a
    stream, whose length is unknown until its end.

    Args:
        model: an `ExitModel`; or a `Runner`, or a `Classifier` that has one, to use its runtime, tokenizer,
            `batch_tokens` and `max_length`.
        dataset: a `datasets.Dataset` or `IterableDataset`, or a mapping of columns to lists, with the columns `text`
            and optionally `text_pair`, or with `input_ids`; optionally `label` or `labels`, and `idx` or `id`. Labels
            that are all -1 or None, as in a hidden test set, count as unlabelled; tags need the column `words`.
        tokenizer: the model's fast tokenizer, needed for texts.
        batch_tokens: the most tokens in a micro-batch, padding included; by default what suits the runtime.
        max_length: the number of tokens at which texts are truncated; by default as in training, or the
            model's limit if that is unknown.
        metrics: names of the task's metrics, the headline first.
        data: the name of the data set in reports.
        group: a column, such as that of a conversation or a customer: rows with the same value are not independent,
            so that a guarantee must be proven on one row of each.
        progress: show a progress bar.
    """
    model = getattr(model, "runner", model)
    columns = column_names(dataset)
    if group and columns and group not in columns:
        raise BadOption(f"group={group!r}: no such column; choose one of {', '.join(columns)}")
    was_training = getattr(model, "training", False)
    try:
        engine, batch_tokenizer = prepare(model, tokenizer, batch_tokens, max_length)
        if "text" in columns:
            check_kind("text_pair" in columns, engine.runtime.info.trained_on_pairs, "a row")
        known_rows = model.training_rows if isinstance(model, Runner) else None
        arrays = run(engine, dataset, batch_tokenizer, progress, known_rows, group)
    finally:
        if was_training:  # TorchRuntime set the model to evaluation
            model.train()
    runtime = engine.runtime
    return Trace(
        **arrays,
        layers=runtime.info.exits,
        problem=runtime.info.problem,
        decide=str(runtime.info.decide),
        label_names=runtime.info.labels,
        metrics=metrics,
        data=data,
        group_column=group,
        precision=runtime.precision,
        max_length=batch_tokenizer.max_length if batch_tokenizer and "input_ids" not in columns else None,
        fingerprint=runtime.fingerprint(),
        runtime=runtime.name,
        shape=runtime.info.shape,
    )


def prepare(
    model: Any, tokenizer: Any, batch_tokens: int | None, max_length: int | None
) -> tuple[Engine, BatchTokenizer | None]:
    if isinstance(model, Runner):
        if (tokenizer, batch_tokens, max_length) != (None, None, None):
            raise BadOption("a runner has its own tokenizer, batch_tokens and max_length; set them there.")
        return model.engine, model.tokenizer
    if tokenizer is None:
        return Engine(runtime_of(model), batch_tokens=batch_tokens), None
    runner = Runner(model, tokenizer, NEVER, batch_tokens=batch_tokens, max_length=max_length)
    return runner.engine, runner.tokenizer


def run(
    engine: Engine,
    dataset: Any,
    tokenizer: BatchTokenizer | None,
    progress: bool,
    known_rows: Array | None,
    group: str,
) -> dict[str, Any]:
    """The arrays of a trace. Labels are read and checked before the model runs; in a stream, as it is read."""
    from tqdm.auto import tqdm

    info = engine.runtime.info
    problem, classes = info.problem, len(info.labels)
    total, columns = count_rows(dataset), column_names(dataset)
    windows = WindowTokenizer(tokenizer) if problem.of_tokens and tokenizer is not None else None
    label_columns = [name for name in columns if name in ("label", "labels")]
    unread: Sequence[str] | None = None
    parts: dict[str, list[Array]] = defaultdict(list)
    if total and label_columns:
        for _, _, labels in read(dataset, label_columns, engine.window, problem, classes):
            if labels is not None and not problem.of_tokens:  # tags are placed once there are tokens
                parts["labels"].append(labels)
        unread = None if problem.of_tokens else [name for name in columns if name not in label_columns]
    logits = None
    if total is not None and not problem.of_tokens:
        logits = np.empty((total, len(info.exits), classes), np.float32)
    with tqdm(total=total, unit=" examples", disable=not progress) as bar:
        for first, batch, labels in read(dataset, unread, engine.window, problem, classes):
            if windows is not None and "text" in batch:
                texts = windows(batch["text"])
                tokens = [window for text in texts for window in text.windows]
                row_of = np.repeat(np.arange(len(texts)), [len(text.windows) for text in texts])
            else:
                tokens = tokenize(batch, first, tokenizer)
                texts, row_of = [], np.arange(len(tokens))
            outputs, gates = engine.trace(tokens)
            part = {} if gates is None else {"gates": gates}
            if logits is None:
                part["logits"] = outputs
            else:
                logits[first : first + len(tokens)] = outputs
            if labels is not None:
                part["labels"] = labels
            if problem.of_tokens:
                part = tagged(engine, tokens, texts, batch, part)
            part["lengths"] = np.array([len(example.ids) for example in tokens])
            rows = range(first, first + len(tokens))
            part["ids"] = np.array(batch.get("idx", batch.get("id", rows)))[row_of]
            if "text" in batch:
                hashes = hash_batch(batch)
                part["texts"] = (hash_rows(map(str, batch[group])) if group else hashes)[row_of]
                if known_rows is not None:
                    part["trained_on"] = np.isin(hashes, known_rows)[row_of]
            for name, values in part.items():
                parts[name].append(values)
            bar.update(len(next(iter(batch.values()))))
    if not parts:
        raise BadData("the data set is empty.")
    arrays: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    if "continues" in arrays and not arrays["continues"].any():
        del arrays["continues"]
    if "labels" not in arrays or (arrays["labels"] == -1).all():  # the hidden labels of a regression
        arrays["labels"] = None
    return arrays if logits is None else arrays | {"logits": logits}


def tagged(
    engine: Engine,
    windows: Sequence[Tokens],
    texts: Sequence[WindowedText],
    batch: Batch,
    part: Mapping[str, Array],
) -> dict[str, Array]:
    """The arrays of texts whose tokens are tagged, without tokens that no one asks for."""
    sizes = np.array([len(window.ids) for window in windows])
    counts, words = words_of(engine, windows, texts)
    arrays = {**part, "counts": counts, "words": words}
    kept = counts | words
    if "labels" in part:
        tags = [
            token_tags(text.offsets, words_of_text, its_tags, False)
            for text, words_of_text, its_tags in zip(texts, batch["words"], part["labels"], strict=True)
        ]
        arrays["labels"] = spread(texts, tags, UNLABELLED)
        kept |= arrays["labels"] != UNLABELLED
    continues = [np.arange(len(text.windows)) > 0 for text in texts] or [np.zeros(len(windows), bool)]
    return {
        **{name: values[kept] for name, values in arrays.items()},
        "sizes": Lists.consecutive(sizes).total(kept.astype(int)),
        "continues": np.concatenate(continues),
    }


def words_of(engine: Engine, windows: Sequence[Tokens], texts: Sequence[WindowedText]) -> tuple[Array, Array]:
    """(tokens,) of all windows, which of them rules read, and which begin the words that spans are made of.

    Rows of `input_ids` have no texts: their words are what rules take for words.
    """
    tokens = engine.tokens_of(windows)
    assert tokens is not None
    counts = np.ones(len(tokens.numbers), bool) if tokens.counts is None else tokens.counts
    if not texts:
        return counts, counts
    return counts, spread(texts, [text.is_first for text in texts], False)


def spread(texts: Sequence[WindowedText], values: Sequence[Array], elsewhere: Any) -> Array:
    """(tokens,) of all windows, from those of each text; `elsewhere` for tokens that belong to none."""
    windows = (
        window
        for text, of_text in zip(texts, values, strict=True)
        for window in text.spread(of_text, elsewhere)
    )
    return np.concatenate([*windows])


def column_names(dataset: Any) -> Sequence[str]:
    """Those of a stream may be unknown."""
    return [*dataset] if isinstance(dataset, Mapping) else dataset.column_names or ()


def count_rows(dataset: Any) -> int | None:
    """None for a stream."""
    if isinstance(dataset, Mapping):
        return len(next(iter(dataset.values()), ()))
    return len(dataset) if hasattr(dataset, "__len__") else None


def read(
    dataset: Any, columns: Sequence[str] | None, size: int, problem: Problem, classes: int
) -> Iterator[tuple[int, Batch, Array | None]]:
    """The data set in batches: the number of the first row, some columns or all, and the labels if there are any."""
    first, labelled = 0, None
    for batch in batches(dataset, columns, size):
        labels = read_labels(batch.get("label", batch.get("labels", [])), first, problem, classes)
        if labelled is not None and labelled != (labels is not None):
            raise unlabelled(0 if labels is not None else first)
        labelled = labels is not None
        yield first, batch, labels
        first += len(next(iter(batch.values())))


def batches(dataset: Any, columns: Sequence[str] | None, size: int) -> Iterator[Batch]:
    if isinstance(dataset, Mapping):
        for start in range(0, count_rows(dataset) or 0, size):
            yield {name: dataset[name][start : start + size] for name in columns or dataset}
    else:
        chosen = dataset if columns is None else dataset.select_columns(columns)
        yield from chosen.with_format(None).iter(batch_size=size)


def read_labels(labels: Sequence[Any], first: int, problem: Problem, classes: int) -> Array | None:
    """Labels as an array; None if all are missing."""
    missing = [is_hidden(label, problem) for label in labels]
    if all(missing):
        return None
    if any(missing):
        raise unlabelled(first + missing.index(True))
    for row, label in enumerate(labels, first):
        if not problem.is_label(label, classes):
            raise BadData(f"row {row} has the label {label!r}, expected {problem.expected(classes)}.")
    if problem.of_tokens:  # of different lengths
        return np.fromiter(labels, object, len(labels))
    return np.array(labels, np.int64 if problem.has_classes else np.float32)


def is_hidden(label: Any, problem: Problem) -> bool:
    """Whether a label is missing, or is -1 as in hidden test sets."""
    if label is None or label != label:  # NaN
        return True
    hidden = [-1] * len(label) if isinstance(label, list) else -1
    return bool(label == hidden and problem.has_classes)


def unlabelled(row: int) -> BadData:
    return BadData(f"row {row} has no label but others do; label all rows, or remove the label column.")


def tokenize(batch: Batch, first: int, tokenizer: BatchTokenizer | None) -> list[Tokens]:
    if "input_ids" in batch:
        return unpad(batch, first)
    if "text" not in batch:
        raise BadData(f"the data set needs a column text or input_ids; it has {', '.join(batch)}.")
    if tokenizer is None:
        raise BadData("the data set has texts: pass the model's tokenizer, or a data set with input_ids.")
    if "text_pair" not in batch:
        return tokenizer(batch["text"])
    return tokenizer([*zip(batch["text"], batch["text_pair"], strict=True)])


def unpad(batch: Batch, first: int = 0) -> list[Tokens]:
    """Rows of `input_ids`, without padding; `first` is the number of the first row."""
    ids, types = batch["input_ids"], batch.get("token_type_ids")
    masks = batch.get("attention_mask") or [[1] * len(row) for row in ids]
    for row, mask in enumerate(masks, first):
        if not any(mask):
            raise BadData(f"row {row} has no tokens.")
    return [
        Tokens([*compress(ids[row], mask)], None if types is None else [*compress(types[row], mask)])
        for row, mask in enumerate(masks)
    ]
