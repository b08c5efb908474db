"""The rankings that a trace of lists gives, and what they lose against the reference's."""

from offramp.guarantees.losses import LOSSES, Reference
from offramp.lists import Lists
from offramp.problems import Array
from offramp.rules.rank import relevance
from offramp.trace import Trace


class Rankings:
    """The lists of a trace, and which documents of each are the best k of the reference."""

    def __init__(self, trace: Trace, top_k: int | None) -> None:
        assert trace.sizes is not None
        self.lists = Lists.consecutive(trace.sizes)
        full = self.lists.ranks(relevance(trace.reference_logits))
        self.reference = Reference(full, sizes=trace.sizes, top_k=top_k)

    def losses(self, logits: Array, risk: str) -> Array:
        """(lists,) from 0 to 1, if the lists are ranked by logits (documents, outputs)."""
        return LOSSES[risk].values(self.lists.ranks(relevance(logits)), self.reference)
