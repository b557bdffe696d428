"""The report: a run's folder as one HTML page that needs nothing else."""

from groupwise.report.page import write_report

__all__ = ["write_report"]
