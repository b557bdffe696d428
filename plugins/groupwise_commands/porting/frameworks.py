"""frameworks: those whose configurations can be ported, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from groupwise_commands.porting.option import Group, table
from groupwise_commands.porting.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework, whose package of this one has a `table.yaml` and, in a module `reading`, the
    function `settings`."""

    title: str
    """Its name and version."""
    reads: str
    """What is read of it."""
    package: str

    @property
    def table(self) -> tuple[Group, ...]:
        return table(f"{__package__}.{self.package}")

    @property
    def read(self) -> Callable[[str], Settings]:
        module = import_module(f"{__package__}.{self.package}.reading")
        read: Callable[[str], Settings] = module.settings
        return read


FRAMEWORKS: Mapping[str, Framework] = {
    "trl": Framework(
        title="TRL 1.16",
        reads="a GRPOConfig as YAML or JSON, the YAML of `trl grpo`, or a Python script",
        package="trl",
    ),
    "flow_grpo": Framework(
        title="flow_grpo",
        reads="FILE.py:NAME, as config/grpo.py:pickscore_sd3",
        package="flow_grpo",
    ),
}
