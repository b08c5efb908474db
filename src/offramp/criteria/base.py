"""What every rule has in common. (Skeleton.)"""

from typing import Any, ClassVar

from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


class Criterion:
    """A rule for leaving, as a fold: `start(examples) -> state`, `step(state, logits) -> (state, readiness)`."""

    reads: ClassVar[str] = "logits"  # what `step` is fed: "logits", "gate" or "layer"
    strict: ClassVar[bool] = True  # leave above the threshold, or (False) already at it
    sign: ClassVar[int] = 1  # -1 where a person's threshold is an upper bound (entropy below 0.3)
    regression: ClassVar[bool] = False  # can it decide for a single real-valued output
    bare: ClassVar[bool] = False  # takes no threshold (never, oracle)

    def level(self, threshold: ArrayLike) -> Array:
        raise NotImplementedError
