"""Parts of messages: plurals and suggestions."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: close matches, or else everything there is.

    >>> did_you_mean("entrpy", ["entropy", "margin"])
    "'entrpy'; did you mean entropy?"
    >>> did_you_mean("x", ["entropy", "margin"])
    "'x'; available: entropy, margin."
    """
    known = list(known)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"available: {', '.join(known)}."
    return f"{name!r}; {hint}"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "text"), count(8530, "text"), count(2, "query")
    ('1 text', '8530 texts', '2 queries')
    """
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def enumerate_names(names: Iterable[str]) -> str:
    """Names in a sentence.

    >>> enumerate_names(["de"]), enumerate_names(["de", "en", "fr"])
    ('de', 'de, en and fr')
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
