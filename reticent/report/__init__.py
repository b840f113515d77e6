"""The privacy statement, tables and plots."""

from reticent.report.page import Report, report
from reticent.report.reading import Run, read_run

__all__ = ["Report", "Run", "read_run", "report"]
