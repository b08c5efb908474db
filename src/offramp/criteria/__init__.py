"""Rules by name. (Skeleton.)"""

from offramp.criteria.base import Criterion

CRITERIA: dict[str, type[Criterion]] = {}
