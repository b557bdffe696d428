"""Groupwise: Group Relative Policy Optimization (GRPO) for any policy that gives log-probs."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from groupwise.hookspecs import hookimpl
from groupwise.moved import FormerNames
from groupwise.version import __version__

if TYPE_CHECKING:
    from groupwise import advantages, objective, testing
    from groupwise.algorithm import Algorithm
    from groupwise.callback import Callback
    from groupwise.environment import Environment
    from groupwise.policy import Policy
    from groupwise.recording.result import RunResult
    from groupwise.rollouts import LogProbs, Rollouts
    from groupwise.run.train import train
    from groupwise.sampler import Sampler
    from groupwise.tool_call import ToolCall

sys.meta_path.append(FormerNames())

# Imported at first use, so that neither `groupwise plugins` nor a plugin's module imports torch.
_LAZY = {
    "advantages": "groupwise.advantages",
    "objective": "groupwise.objective",
    "Algorithm": "groupwise.algorithm:Algorithm",
    "Callback": "groupwise.callback:Callback",
    "Environment": "groupwise.environment:Environment",
    "Policy": "groupwise.policy:Policy",
    "ToolCall": "groupwise.tool_call:ToolCall",
    "LogProbs": "groupwise.rollouts:LogProbs",
    "Rollouts": "groupwise.rollouts:Rollouts",
    "Sampler": "groupwise.sampler:Sampler",
    "RunResult": "groupwise.recording.result:RunResult",
    "testing": "groupwise.testing",
    "train": "groupwise.run.train:train",
}

__all__ = [
    "Algorithm",
    "Callback",
    "Environment",
    "LogProbs",
    "Policy",
    "Rollouts",
    "RunResult",
    "Sampler",
    "ToolCall",
    "__version__",
    "advantages",
    "hookimpl",
    "objective",
    "testing",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
    path, _, attribute = _LAZY[name].partition(":")
    module = importlib.import_module(path)
    return getattr(module, attribute) if attribute else module
