"""The rankings that a trace of lists gives, and what they lose against the reference's."""

from offramp.guarantees.losses import LOSSES, Reference
from offramp.lists import Lists
from offramp.policy import Decision, Policy
from offramp.problems import Array
from offramp.rules.rank import relevance
from offramp.trace import Trace


class Rankings:
    """The lists of a trace, ranked by policies for the best k."""

    def __init__(self, trace: Trace, top_k: int | None) -> None:
        assert trace.sizes is not None
        self.trace = trace
        self.lists = Lists.consecutive(trace.sizes, top_k)
        full = self.lists.ranks(relevance(trace.reference_logits))
        self.reference = Reference(full, sizes=trace.sizes, top_k=top_k)

    def decide(self, policy: Policy) -> Decision:
        trace = self.trace
        return policy.decide(trace.logits, trace.gates, trace.layers, trace.problem, self.lists)

    def losses(self, logits: Array, risk: str) -> Array:
        """(lists,) from 0 to 1, of lists ranked by logits (documents, outputs)."""
        return LOSSES[risk].values(self.lists.ranks(relevance(logits)), self.reference)
