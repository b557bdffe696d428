"""Moved: modules and formulas of earlier versions, importable under their former names.

What moved into another package is known here by name alone, and imported where its former name is.
"""

import importlib
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TO_KIT = (
    "attention",
    "copies",
    "descendants",
    "draft",
    "errors",
    "foreign_json",
    "lora",
    "memory",
    "metric_names",
    "model_files",
    "options",
    "processes",
    "progress",
    "rendezvous",
    "section",
    "secrets",
    "terminal",
    "trust",
)
_VARIANTS = (
    *("bnpo", "cispo", "dapo", "dppo", "dr_grpo", "gdpo", "gmpo", "gspo", "guard", "lead"),
    *("luspo", "maxrl", "opo", "pass_at_k", "rae", "reinforce_pp", "reinforce_pp_baseline"),
    *("rloo", "sapo", "vespo"),
)
_TO_DATA = ("arrow", "csv_file", "dataset", "encoding", "folder", "json_file", "stands")
MOVED = {
    **{f"groupwise.{name}": f"groupwise.kit.{name}" for name in _TO_KIT},
    **{f"groupwise.algorithms.{name}": f"groupwise_algorithms.{name}" for name in _VARIANTS},
    **{f"groupwise.prompts.{name}": f"groupwise_data.{name}" for name in _TO_DATA},
    "groupwise.kit.completion": "groupwise_messages.completion",
    "groupwise.wording": "groupwise_messages.wording",
}
FORMULAS = {
    "groupwise.advantages": {
        "normalise_then_sum": "gdpo",
        "leave_one_out": "rloo",
        "length_weighted": "opo",
        "whitened": "reinforce_pp",
        "lead_rewards": "lead",
        "by_difficulty": "lead",
    },
    "groupwise.objective": {
        "cispo": "cispo",
        "is_capped": "cispo",
        "sapo": "sapo",
        "sapo_gate": "sapo",
        "vespo_weights": "vespo",
    },
}
"""By module that had them: the variant that has each of these formulas now."""


def formula(module: str, name: str) -> Any:
    """A formula by the name that it had in `module`. Raises AttributeError for other names."""
    if name not in FORMULAS[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    variant = importlib.import_module(f"groupwise_algorithms.{FORMULAS[module][name]}")
    return getattr(variant, name)


class FormerNames(MetaPathFinder, Loader):
    """Finds a former name as the very module that it names now, so that classes stay the same."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        # The import system puts the former name's spec on what this returns; it gets its own back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        former = module.__spec__
        assert former is not None
        module.__spec__ = former.loader_state
