"""From traces to a table, JSON, plots and one HTML page that opens offline."""

from offramp.reports.report import Report, report
from offramp.reports.sections import Section

__all__ = ["Report", "Section", "report"]
