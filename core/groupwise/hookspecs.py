"""Every extension point of Groupwise.

A plugin is a module (or object) with functions of these names, decorated by `groupwise.hookimpl`
and named by an entry point in the group `groupwise`:

    [project.entry-points.groupwise]
    my_package = "my_package.plugin"

Each hook receives `register(name, target, *, extra=None)`. `target` is "module:attribute" and is
imported only when a run names it, so that listing plugins imports nothing heavy. `extra` is the
optional extra of your distribution that the target needs: `pip install my_package[extra]`.

A target that is a class with a nested pydantic `Config` is built as `Target(config)`. Installing a
package changes only the runs whose configuration names what it registers; what shows and watches
every run, a display and watches, changes no training.
"""

from typing import Protocol

import pluggy

PROJECT = "groupwise"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """Registers a target under a name, without importing it."""

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
    """Adapters: how a policy handles one architecture, registered under the architecture's name
    (for images, the class name of the pipeline). The policy that uses adapters defines their base
    class."""


@hookspec
def register_families(register: Register) -> None:
    """Families: how a vision-language model reads pictures, registered under the `model_type` of
    its configuration. The policy that uses families defines their base class."""


@hookspec
def register_environments(register: Register) -> None:
    """Environments: subclasses of `groupwise.Environment` with a nested `Config`."""


@hookspec
def register_rewards(register: Register) -> None:
    """Rewards: functions, or classes with a nested `Config` whose instances are called."""


@hookspec
def register_algorithms(register: Register) -> None:
    """Algorithms: subclasses of `groupwise.Algorithm` with a nested `Config`."""


@hookspec
def register_objects(register: Register) -> None:
    """Objects of other libraries that stand for a plugin in Python, as in
    `groupwise.train(policy=model)`: the name is that of their class, with its module, and the
    target a `groupwise.kit.options.StandsFor`. Neither the library nor the target is imported
    before such an object is passed."""


@hookspec
def register_drafts(register: Register) -> None:
    """Drafts: subclasses of `groupwise.kit.draft.Draft`, built without arguments. The name is an
    option of `groupwise init`, whose value is the model."""


@hookspec
def register_prompts(register: Register) -> None:
    """Prompt sources: classes with a nested `Config`, whose instances have `__len__` and
    `__getitem__`; an item is a dataset row, a mapping with at least a `prompt`."""


@hookspec
def register_callbacks(register: Register) -> None:
    """Callbacks: subclasses of `groupwise.Callback` with a nested `Config`."""


@hookspec
def register_trackers(register: Register) -> None:
    """Trackers: callbacks that send what they receive elsewhere, named by the section
    `tracking`."""


@hookspec
def register_reports(register: Register) -> None:
    """Reports: functions, or classes with a nested `Config` whose instances are called. Called with
    the folder of a finished run, or of an evaluation, a report writes a file there from the other
    files, and returns its path."""


@hookspec
def register_displays(register: Register) -> None:
    """Displays: subclasses of `groupwise.display.Display`. The one named `console` shows every run;
    without it a run prints notes and warnings."""


@hookspec
def register_watches(register: Register) -> None:
    """Watches: objects of `groupwise.evaluation.Watch`. Each is measured at every evaluation of
    completions of its classes, under its name, unless a reward of the run has that name."""


@hookspec
def register_commands(register: Register) -> None:
    """Commands of `groupwise`: functions whose signatures are Typer's, or applications of Typer,
    whose commands follow the name. The name of a command of the core is not replaced."""
