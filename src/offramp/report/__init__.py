"""Traces in; a table, JSON, plots and one page that opens offline out."""

from offramp.report.report import Report, report
from offramp.report.sections import Section

__all__ = ["Report", "Section", "report"]
