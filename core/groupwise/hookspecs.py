"""Every extension point of Groupwise.

A plugin is a module (or object) with functions of these names, decorated by `groupwise.hookimpl`
and named by an entry point in the group `groupwise`:

    [project.entry-points.groupwise]
    my_package = "my_package.plugin"

Each hook receives `register(name, target, *, extra=None)`. `target` is "module:attribute" and is
imported only when a run names it, so that listing plugins imports nothing heavy. `extra` names the
extra of the distribution that brings what the target imports.

A target that is a class with a nested pydantic `Config` is built as `Target(config)`. Installing a
package never changes a run that does not name what it registers.
"""

from typing import Protocol

import pluggy

PROJECT = "groupwise"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """Registers a lazy target under a name."""

    def __call__(self, name: str, target: str, *, extra: str | None = None) -> None: ...


@hookspec
def register_policies(register: Register) -> None:
    """Policies: subclasses of `groupwise.Policy` with a nested `Config`."""


@hookspec
def register_samplers(register: Register) -> None:
    """Samplers: subclasses of `groupwise.Sampler` with a nested `Config`, built as
    `Target(config, policy)`."""


@hookspec
def register_adapters(register: Register) -> None:
    """Adapters: what a policy must know of an architecture, registered by the name of that (for
    images the class of the pipeline); the policy that looks it up says what an adapter is."""


@hookspec
def register_rewards(register: Register) -> None:
    """Rewards: functions, or classes with a nested `Config` whose instances are called."""


@hookspec
def register_algorithms(register: Register) -> None:
    """Algorithms: subclasses of `groupwise.Algorithm` with a nested `Config`."""


@hookspec
def register_prompts(register: Register) -> None:
    """Prompt sources: classes with a nested `Config`; instances have `__len__` and `__getitem__`
    and give dataset rows, each a mapping with at least a `prompt`."""


@hookspec
def register_callbacks(register: Register) -> None:
    """Callbacks: subclasses of `groupwise.Callback` with a nested `Config`."""
