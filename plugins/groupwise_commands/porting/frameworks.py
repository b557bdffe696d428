"""frameworks: those whose configurations can be ported, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from groupwise_commands.porting.option import Group
from groupwise_commands.porting.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework: its title and version, what is read of it, and a package of this one that has
    its `TABLE` and, in a module `reading`, the function `settings`."""

    title: str
    reads: str
    package: str

    @property
    def table(self) -> tuple[Group, ...]:
        table: tuple[Group, ...] = import_module(self._module).TABLE
        return table

    @property
    def read(self) -> Callable[[str], Settings]:
        read: Callable[[str], Settings] = import_module(f"{self._module}.reading").settings
        return read

    @property
    def _module(self) -> str:
        return f"{__package__}.{self.package}"


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
