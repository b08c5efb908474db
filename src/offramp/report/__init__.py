"""From traces to a table, JSON, images and one HTML page that opens offline."""

from offramp.report.report import Report, report
from offramp.report.sections import Section

__all__ = ["Report", "Section", "report"]
