"""Where a policy changes predictions: how often in each group of examples, and for which examples.

For lists, the documents of the reference's top k are counted, and one that is missed has changed. For taggers, texts
are counted, and spans and words by their label.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from offramp.guarantees.comparison import (
    Compared,
    Difference,
    GroupDifferences,
    by_class,
    by_group,
    largest,
    one_text,
)
from offramp.lists import Lists
from offramp.numerics import softmax
from offramp.policy import Decision
from offramp.problems import Array
from offramp.rules.rank import relevance
from offramp.tags import are_among, begin_texts
from offramp.trace import Trace

MOST = 100
"""Examples that are shown."""
SURENESS = (0.6, 0.8, 0.9, 0.99)
PLACES = (2, 4, 11, 31)
"""Where groups of the reference's probability and of places in its ranking begin."""


@dataclass(frozen=True)
class Changes:
    groups: dict[str, tuple[GroupDifferences, ...]]
    """By what the groups are about, such as "exit"; without empty groups."""
    examples: tuple[Difference, ...]
    """Those with the most different scores, at most `MOST`."""
    layers: tuple[int, ...]
    """Where each of these exited."""


def find_changes(
    trace: Trace,
    decision: Decision,
    texts: Sequence[Any],
    tolerance: float | None = None,
    top_k: int | None = None,
    spell: Callable[[int, Array], str] | None = None,
) -> Changes:
    """`texts` has the text of each row of the trace; a trace of lists needs a top k.

    A trace of tags needs `spell`, which shows the spans of a text, from its number and the logits of its words.
    """
    if trace.problem.of_tokens:
        assert spell is not None
        return changed_spans(trace, decision, texts, spell)
    if trace.sizes is None:
        return changed_predictions(trace, decision, texts, tolerance)
    return missed_documents(trace, decision, texts, top_k or 1)


def changed_predictions(
    trace: Trace, decision: Decision, texts: Sequence[Any], tolerance: float | None
) -> Changes:
    problem, names = trace.problem, trace.label_names
    logits = trace.reference_logits, decision.logits
    decisions = problem.decode(logits[0]), problem.decode(logits[1])
    scores = decisions
    if problem.has_classes:
        scores = problem.probabilities(logits[0]), problem.probabilities(logits[1])
    compared = Compared(np.arange(len(trace)), decisions, problem, scores, {})
    different = ~problem.agree(decisions[1], decisions[0], tolerance)
    groups = {
        "exit": by_layer(different, trace, decision.exits),
        "class": by_class(compared, names),
        "length": by_length(different, trace.lengths),
    }
    if trace.categories is not None:
        members = trace.categories[:, None] == np.arange(len(trace.category_names))
        groups[trace.category_column] = by_group(different[:, None], members, trace.category_names)
    if problem.has_classes:
        _, sureness = problem.named(logits[0], scores[0], names or [*map(str, range(logits[0].shape[-1]))])
        groups["sureness of the original"] = by_sureness(different, np.array(sureness))
    examples = largest(compared, names, tolerance, texts, MOST)
    return changes(groups, examples, trace, decision.exits)


def changed_spans(
    trace: Trace, decision: Decision, texts: Sequence[str], spell: Callable[[int, Array], str]
) -> Changes:
    """Texts whose spans have changed; spans of the reference that are not among those now, by label; and words in
    spans of the reference that are in none now, by label."""
    words, scheme = trace.words_of_examples, trace.scheme
    assert words is not None
    logits = [trace.reference_logits, decision.logits]
    if trace.words is not None:
        logits = [rows[trace.words] for rows in logits]
    text_of_word = trace.text_numbers[words.numbers]
    begins = begin_texts(text_of_word)
    tags = [rows.argmax(-1) for rows in logits]
    old, new = (scheme.spans(rows, begins) for rows in tags)
    kept = are_among(old, new)
    marked, missed = ~scheme.outside[tags[0]], scheme.outside[tags[1]]
    names = [
        *dict.fromkeys(label for label, out in zip(scheme.labels, scheme.outside, strict=True) if not out)
    ]
    label_of_tag = np.array([names.index(label) if label in names else -1 for label in scheme.labels])
    labels = np.arange(len(names))
    different = trace.by_text(~trace.agrees(decision.logits))
    exits, lengths = trace.by_text(decision.exits), trace.by_text(trace.lengths, np.add)
    sureness = np.ones(len(different))
    np.minimum.at(sureness, text_of_word, softmax(logits[0]).max(-1))
    groups = {
        "exit": by_layer(different, trace, exits),
        "label": by_group(~kept[:, None], label_of_tag[tags[0][old[:, 0]]][:, None] == labels, names),
        "label of words": by_group(
            missed[marked, None], label_of_tag[tags[0][marked]][:, None] == labels, names
        ),
        "length": by_length(different, lengths),
        "sureness of the original": by_sureness(different, sureness),
    }
    examples, ends = [], np.cumsum(np.bincount(text_of_word, minlength=len(different)))
    for row in np.flatnonzero(different)[:MOST].tolist():
        its_words = slice(ends[row - 1] if row else 0, ends[row])
        before, after = (spell(row, rows[its_words]) for rows in logits)
        examples.append(Difference(row, before, after, None, texts[row]))
    return changes(groups, examples, trace, exits)


def missed_documents(trace: Trace, decision: Decision, texts: Sequence[Any], top_k: int) -> Changes:
    lists = Lists.consecutive(trace.sizes)
    old, new = (
        lists.ranks(relevance(logits))[lists.numbers, lists.columns]
        for logits in (trace.reference_logits, decision.logits)
    )
    top = np.flatnonzero(old < top_k)
    missed, sizes = new[top] >= top_k, lists.sizes[lists.numbers[top]]
    groups = {
        "exit": by_layer(missed, trace, decision.exits[top]),
        "place": by_level(missed, old[top] + 1, PLACES),
        "length": by_length(missed, trace.lengths[top]),
        "documents of the query": by_level(missed, sizes, quartiles(sizes)),
    }
    worst = top[missed][np.argsort(old[top[missed]], kind="stable")][:MOST]
    examples = (
        Difference(row, f"place {old[row] + 1}", f"place {new[row] + 1}", None, one_text(texts[row]))
        for row in worst.tolist()
    )
    return changes(groups, examples, trace, decision.exits)


def changes(
    groups: Mapping[str, Sequence[GroupDifferences]],
    examples: Iterable[Difference],
    trace: Trace,
    exits: Array,
) -> Changes:
    shown = tuple(examples)
    full = {what: tuple(group for group in parts if group.rows) for what, parts in groups.items()}
    return Changes(
        {what: parts for what, parts in full.items() if parts},
        shown,
        layers=tuple(trace.layers[exits[example.row]] for example in shown),
    )


def by_layer(different: Array, trace: Trace, exits: Array) -> tuple[GroupDifferences, ...]:
    members = exits[:, None] == np.arange(len(trace.layers))
    return by_group(different[:, None], members, [f"layer {layer}" for layer in trace.layers])


def by_length(different: Array, lengths: Array) -> tuple[GroupDifferences, ...]:
    return by_level(different, lengths, quartiles(lengths), " tokens")


def by_sureness(different: Array, sureness: Array) -> tuple[GroupDifferences, ...]:
    return by_level(different, 100 * sureness, [100 * start for start in SURENESS], "%")


def quartiles(values: Array) -> list[int]:
    """Whole numbers at which groups of about a quarter of the rows begin."""
    return np.unique(np.quantile(values, (0.25, 0.5, 0.75)).astype(int) + 1).tolist() if len(values) else []


def by_level(
    different: Array, values: Array, starts: Sequence[float], unit: str = ""
) -> tuple[GroupDifferences, ...]:
    """By how large a value is.

    >>> [group.name for group in by_level(np.array([True]), np.array([7]), (5, 10), " tokens")]
    ['below 5 tokens', '5 to below 10 tokens', '10 tokens or more']
    """
    members = np.digitize(values, starts)[:, None] == np.arange(len(starts) + 1)
    between = [f"{low:g} to below {high:g}{unit}" for low, high in pairwise(starts)]
    ends = ("below {:g}" + unit, "{:g}" + unit + " or more")
    names = [ends[0].format(starts[0]), *between, ends[1].format(starts[-1])] if len(starts) else ["all"]
    return by_group(different[:, None], members, names)
