"""First order: DPM-Solver++ with settings by which its steps are DDIM's, and so Euler's."""

from typing import Any

from diffusers import DPMSolverMultistepScheduler

FIRST_ORDER = {"solver_order": 1, "algorithm_type": "dpmsolver++"}
"""arXiv:2211.01095, section 4.1."""


def is_first_order(scheduler: Any) -> bool:
    """Whether it is DPM-Solver++ of first order."""
    settings = {name: scheduler.config.get(name) for name in FIRST_ORDER}
    return isinstance(scheduler, DPMSolverMultistepScheduler) and settings == FIRST_ORDER
