"""Moved: modules of earlier versions, importable under their former names."""

import importlib
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

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
MOVED = {f"groupwise.{name}": f"groupwise.kit.{name}" for name in _TO_KIT}


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
