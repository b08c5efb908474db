"""Trace: the logits of every exit for every example of a data set, saved as one safetensors file.

It is the only record shared by training and measuring: rules, curves, calibration and reports work on a trace
alone, with no model and no torch. `offramp.collect` creates one.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from offramp.errors import BadData
from offramp.files import atomic_file, use_umask
from offramp.guarantees.operating_point import Decisions, OperatingPoint
from offramp.lists import Lists
from offramp.problems import MULTI_LABEL, SINGLE_LABEL, UNLABELLED, Array, Problem, problem_named
from offramp.row_hashes import hash_rows
from offramp.tags import TagScheme
from offramp.wording import count

FORMAT = 1
SHAPE = ("hidden", "intermediate", "heads", "layers")
PER_PART: dict[str, Any] = {
    "logits": np.float32,
    "labels": None,
    "gates": np.float32,
    "reference": np.float32,
    "counts": bool,
    "words": bool,
}
"""Arrays with a row for each example or part of one, and their dtypes; None for any."""
PER_EXAMPLE: dict[str, Any] = {
    "lengths": None,
    "ids": None,
    "trained_on": bool,
    "texts": np.uint64,
    "categories": np.int64,
    "continues": bool,
}
"""Arrays with a row for each example; if examples are lists of documents, for each document."""
ARRAYS = PER_PART | PER_EXAMPLE | {"sizes": np.int64}
REQUIRED = ("logits", "lengths", "ids")


@dataclass(frozen=True, eq=False)
class Trace:
    """The logits of every exit for every example, and where they come from.

    Where examples have parts (`sizes`), arrays have a row for each part: all of them for the documents of a query;
    for the tokens of a text, logits, labels, gates and reference, `counts` and `words`. There an example is a text,
    or one of the windows that a long text is read in, and tokens that no one asks for may be left out.

    *Example*:

    >>> logits = [[[0.0, 1.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]]
    >>> trace = Trace(logits, layers=(3, 6), labels=[1, 1], lengths=[5, 9], ids=[0, 1])
    >>> len(trace), trace[trace.lengths > 6].ids
    (2, array([1]))
    """

    logits: Array
    """(examples, exits, classes) float32."""
    layers: tuple[int, ...]
    """The layer of each exit; layer 0 is the embeddings."""
    labels: Array | None
    """(examples,) classes or values; (examples, classes) 0 or 1 if multi-label; (tokens,) tags, -100 where there is
    none; None if unlabelled."""
    lengths: Array
    """(examples,) number of tokens, without padding."""
    ids: Array
    """(examples,) integers or strings."""
    gates: Array | None = None
    """(examples, exits) scores of learned gates, if the model has them."""
    reference: Array | None = None
    """(examples, classes) logits of the model whose predictions are to be kept; None: the last exit's."""
    reference_name: str = ""
    """The name of that model in reports; empty without a reference."""
    trained_on: Array | None = None
    """(examples,) whether the model, its rule or its threshold has learned from this text; None if unknown."""
    texts: Array | None = None
    """(examples,) a hash of each text, or of its group: rows with the same hash count as one; None if unknown."""
    group_column: str = ""
    """The column of the groups, such as conversations or customers; empty if each text is its own."""
    categories: Array | None = None
    """(examples,) the category of each text, such as its language, as an index into `category_names`."""
    category_names: tuple[str, ...] = ()
    category_column: str = ""
    """The column of the categories, within each of which a guarantee can hold."""
    sizes: Array | None = None
    """(examples,) the number of consecutive rows of each example; None for one."""
    counts: Array | None = None
    """(tokens,) which of them a rule reads; None for all."""
    words: Array | None = None
    """(tokens,) which of them begin the words that spans are made of; None for all."""
    continues: Array | None = None
    """(examples,) whether this is a further window of the text before it; None if all texts have one."""
    problem: Problem = SINGLE_LABEL
    """Or its name."""
    decide: str = ""
    """The operating point at which logits are to be decided about, such as "spam>=0.7"; see `decided`."""
    decision: str = ""
    """The operating point at which they were decided about: logits are then margins."""
    label_names: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    """Names of the task's metrics, the headline first."""
    fingerprint: str = ""
    """Identifies the model: `ExitModel.fingerprint`."""
    data: str = ""
    """The name of the data set in reports."""
    runtime: str = ""
    """The runtime that computed the logits, such as "torch 2.13.0, cpu"."""
    precision: str = ""
    """The precision they were computed in, such as "fp32" or "int8"."""
    shape: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the backbone (hidden, intermediate, heads, layers), for counting MACs; may be empty."""
    max_length: int | None = None
    """The number of tokens at which texts were truncated; None if unknown."""

    def __post_init__(self) -> None:
        for name, dtype in ARRAYS.items():
            if name in REQUIRED or getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        object.__setattr__(self, "problem", problem_named(self.problem))
        for name in ("layers", "label_names", "metrics", "category_names"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_shapes(self)
        _check_values(self)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.logits if self.sizes is None else self.sizes)

    @property
    def whole_examples(self) -> int:
        """The number of examples, where the windows of a text are one."""
        return len(self.by_text(np.ones(len(self))))

    def __getitem__(self, examples: Any) -> Self:
        """A trace of some of the examples, chosen by mask, indices or slice."""
        sizes, rows = self.sizes, examples
        if sizes is not None:
            rows, sizes = Lists.consecutive(sizes).rows(examples), sizes[examples]
        per_example = rows if self.has_lists else examples
        arrays = {name: (getattr(self, name), rows) for name in PER_PART}
        arrays |= {name: (getattr(self, name), per_example) for name in PER_EXAMPLE}
        kept = {name: array[chosen] for name, (array, chosen) in arrays.items() if array is not None}
        return replace(self, **kept, sizes=sizes)

    @property
    def has_lists(self) -> bool:
        """Whether examples are lists of documents."""
        return self.sizes is not None and not self.problem.of_tokens

    @property
    def lists(self) -> Lists | None:
        """Which parts belong to which example, and which of them count; None if examples have no parts."""
        return None if self.sizes is None else Lists.consecutive(self.sizes, counts=self.counts)

    @cached_property
    def words_of_examples(self) -> Lists | None:
        """Which predictions belong to which example, if tokens are tagged: those of its words."""
        if self.sizes is None or not self.problem.of_tokens:
            return None
        words = np.ones(len(self.logits), bool) if self.words is None else self.words
        return Lists.consecutive(self.parts_of_examples(words))

    def parts_of_examples(self, mask: Array) -> Array:
        """(examples,) how many parts of each a mask (parts,) has."""
        return Lists.consecutive(self.sizes).total(mask.astype(int))

    @property
    def tagged(self) -> Array | None:
        """(tokens,) which of them have a label; None if they are not tagged, or without labels."""
        return None if self.labels is None or not self.problem.of_tokens else self.labels != UNLABELLED

    @property
    def text_numbers(self) -> Array:
        """(examples,) the number of the text that each is, or is a window of."""
        first = np.ones(len(self), bool) if self.continues is None else ~self.continues
        numbers: Array = np.cumsum(first) - 1
        return numbers

    def by_text(self, values: Array, reduce: np.ufunc = np.maximum) -> Array:
        """(texts,) from values (examples,): the largest of the windows of a text, or another reduction of them."""
        if self.continues is None or not len(values):
            return values
        reduced: Array = reduce.reduceat(values, np.flatnonzero(~self.continues))
        return reduced

    def grouped(self, queries: Sequence[Any]) -> Self:
        """The trace with rows of the same query as one example; `queries` has the query of each row, in any order."""
        if self.sizes is not None or len(queries) != len(self):
            raise BadData(
                f"{len(queries)} queries for {count(len(self), 'row')} of the trace; give one per row."
            )
        first: dict[Any, int] = {}
        numbers = np.array([first.setdefault(query, len(first)) for query in queries], int)
        return replace(self[np.argsort(numbers, kind="stable")], sizes=np.bincount(numbers))

    def unseen(self) -> Array:
        """(examples,) a mask of one row of each distinct text (or group), without texts that were learned from."""
        rows = np.arange(len(self.lengths))
        if self.continues is not None:
            rows = rows[~self.continues]  # the first window stands for its text
        if self.trained_on is not None:
            rows = rows[~self.trained_on[rows]]
        mask = np.zeros(len(self.lengths), bool)
        if self.texts is not None and not self.has_lists:
            rows = np.random.default_rng(0).permutation(rows)  # any row of a group, not its first
            rows = rows[np.unique(self.texts[rows], return_index=True)[1]]
        mask[rows] = True
        if self.has_lists and self.lists is not None:
            return np.logical_and.reduceat(mask, self.lists.starts)
        if self.continues is not None:  # and all of its windows
            return np.asarray(mask[~self.continues][self.text_numbers])
        return mask

    def without(self, other: "Trace") -> Self:
        """The trace, in which the texts of another count as learned from."""
        if self.texts is None or other.texts is None:
            return self
        learned = np.isin(self.texts, other.texts)
        return replace(self, trained_on=learned if self.trained_on is None else learned | self.trained_on)

    def categorized(self, column: str, cells: Sequence[Any]) -> Self:
        """The trace with the category of each text, given in its order."""
        if len(cells) != len(self.lengths):
            raise BadData(
                f"{len(cells)} cells of {column} for {count(len(self.lengths), 'text')} of the trace."
            )
        names, categories = np.unique([str(cell) for cell in cells], return_inverse=True)
        return replace(
            self, categories=categories, category_names=tuple(names.tolist()), category_column=column
        )

    def keys(self) -> Array:
        """(examples,) hashes of what an example is: its text, or without texts its id."""
        keys = hash_rows(map(str, self.ids)) if self.texts is None else self.texts
        return keys if self.lists is None or not self.has_lists else np.add.reduceat(keys, self.lists.starts)

    def decided(self) -> Self:
        """The trace at its operating point: a multi-label one of the labels that are decided about, whose logits are
        above 0 for yes. Everything that is measured is then about decisions; without one, the trace itself."""
        names = self.label_names or tuple(map(str, range(self.logits.shape[-1])))
        view = OperatingPoint.parse(self.decide).decisions(self.problem, names)
        if not isinstance(view, Decisions):
            return self
        if self.sizes is not None:
            raise BadData(f"decide={self.decide!r} is about single texts, and this is a trace of lists.")
        return replace(
            self,
            logits=view.margins(self.logits),
            reference=None if self.reference is None else view.margins(self.reference),
            labels=None if self.labels is None else view.truth(self.labels),
            problem=MULTI_LABEL,
            label_names=tuple(view.thresholds),
            metrics=tuple(name for name in self.metrics if name in MULTI_LABEL.metrics),
            decide="",
            decision=self.decide,
        )

    def reference_predictions(self) -> Array:
        """(examples,) or (examples, labels): the predictions to be kept, the reference's or else full depth's."""
        return self.decode(self.reference_logits)

    def decode(self, logits: Array) -> Array:
        """(examples, ...) the predictions that logits (examples, ..., classes) stand for.

        If tokens are tagged: (words, ...) numbers that are the same where the spans are, 0 outside of all.
        """
        words = self.words_of_examples
        if words is None:
            return self.problem.decode(logits)
        tags = self.problem.decode(logits if self.words is None else logits[self.words])
        continues = np.zeros(len(self), bool) if self.continues is None else self.continues
        is_first, after_seam = words.columns == 0, continues[words.numbers]
        return self.scheme.codes(tags, is_first & ~after_seam, is_first & after_seam)

    @property
    def scheme(self) -> TagScheme:
        """How tags divide words into spans."""
        return TagScheme(self.label_names or [str(tag) for tag in range(self.logits.shape[-1])])

    @property
    def reference_logits(self) -> Array:
        """(examples, classes) the reference's, or else full depth's."""
        return self.logits[:, -1] if self.reference is None else self.reference

    def agrees(self, logits: Array, tolerance: float | None = None) -> Array:
        """(examples,) whether logits (examples, classes) give the reference's prediction, in every label."""
        agree = self.problem.agree(self.decode(logits), self.reference_predictions(), tolerance)
        words = self.words_of_examples
        return agree if words is None else words.total(~agree) == 0

    def conditions(self) -> dict[str, Any]:
        """The fields of a certificate's conditions that say which model it was issued for."""
        return {name: getattr(self, name) for name in ("fingerprint", "runtime", "precision", "max_length")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file, atomically."""
        arrays = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        text_ids = not np.issubdtype(self.ids.dtype, np.number)
        if text_ids:
            arrays["ids"] = np.frombuffer(json.dumps(self.ids.tolist()).encode(), np.uint8)
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ARRAYS}
        rest |= {"shape": dict(self.shape), "text_ids": text_ids}
        metadata = {"offramp_trace": str(FORMAT), "fields": json.dumps(rest)}
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        with atomic_file(Path(path)) as file:
            save_file(contiguous, file, metadata)
            use_umask(file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a trace that `save` wrote.

        Unknown fields are an error: a newer offramp may give them a meaning that must not be ignored.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                _check_format(path, metadata)
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            rest = json.loads(metadata["fields"])
            if rest.pop("text_ids"):
                arrays["ids"] = np.array(json.loads(arrays["ids"].tobytes()))
            unknown = {*arrays, *rest} - {field.name for field in fields(cls)}
            if unknown:
                raise BadData(f"{path} has unknown fields {', '.join(sorted(unknown))}; upgrade offramp.")
            return cls(**{"labels": None} | arrays | rest)
        except BadData:
            raise
        except FileNotFoundError:
            raise BadData(f"{path} does not exist; create it with `offramp trace`.") from None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadData(
                f"{path} is not a complete trace file ({error}); create one with `offramp trace`."
            ) from error


def _check_shapes(trace: Trace) -> None:
    if trace.logits.ndim != 3:
        raise BadData(f"logits must be (examples, exits, classes), but have shape {trace.logits.shape}.")
    parts, exits, classes = trace.logits.shape
    examples = len(trace) if trace.problem.of_tokens else parts
    expected: dict[str, tuple[int, ...]] = {
        "layers": (exits,),
        "labels": (parts, classes) if trace.problem.multi_label else (parts,),
        "gates": (parts, exits),
        "reference": (parts, classes),
        "counts": (parts,),
        "words": (parts,),
        **dict.fromkeys(PER_EXAMPLE, (examples,)),
        "label_names": (classes,),
    }
    for name, shape in expected.items():
        value = getattr(trace, name)
        is_absent = (name not in REQUIRED and value is None) or (name == "label_names" and not value)
        if not is_absent and np.shape(value) != shape:
            raise BadData(f"{name} must have shape {shape} to match the logits, but has {np.shape(value)}.")


def _check_values(trace: Trace) -> None:
    classes = trace.logits.shape[2]
    if trace.sizes is not None and ((trace.sizes < 1).any() or trace.sizes.sum() != len(trace.logits)):
        raise BadData(
            f"sizes must be 1 or more and add up to {count(len(trace.logits), 'row')} of the logits."
        )
    if trace.problem.of_tokens and trace.sizes is None:
        raise BadData("a trace of tagged tokens needs the number of tokens of each text: sizes.")
    if not trace.problem.has_classes and classes != 1:
        raise BadData(f"a regression has one output, but the logits have {classes}.")
    if list(trace.layers) != sorted(set(trace.layers)) or not trace.layers or trace.layers[0] < 0:
        raise BadData(f"layers {trace.layers} must increase and must not be negative.")
    if trace.shape and not set(SHAPE) <= set(trace.shape):
        raise BadData(f"shape needs {', '.join(SHAPE)}, but has only {', '.join(trace.shape)}.")
    if trace.labels is not None and trace.problem.has_classes:
        most = 1 if trace.problem.multi_label else classes - 1
        labels = trace.labels[trace.labels != UNLABELLED] if trace.problem.of_tokens else trace.labels
        if ((labels < 0) | (labels > most)).any():
            raise BadData(f"labels must be 0 to {most}; pass labels=None for unlabelled data.")


def _check_format(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    if "offramp_trace" not in metadata:
        raise BadData(f"{path} is a safetensors file but not a trace; create one with `offramp trace`.")
    if int(metadata["offramp_trace"]) > FORMAT:
        raise BadData(f"{path} was written by a newer offramp; upgrade offramp to read it.")
