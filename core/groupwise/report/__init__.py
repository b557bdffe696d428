"""The report: a run's folder, or several, as one HTML page that needs nothing else."""

from groupwise.report.page import write_report
from groupwise.report.several import write_comparison

__all__ = ["write_comparison", "write_report"]
