"""From traces to a table, JSON, charts and one HTML page that opens offline; the model card."""

from offramp.reports.report import Report, report
from offramp.reports.sections import Section

__all__ = ["Report", "Section", "report"]
