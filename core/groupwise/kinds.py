"""Kinds: everything that plugins can register, one entry for each kind.

All else follows from this table: the hook `register_NAME` that is called (its description is in
`groupwise.hookspecs`), the sections of a configuration that name a plugin of the kind, what is
accepted there, and the lists of `groupwise plugins` and docs/configuration.md.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expected:
    """What a built part must be: in words, for messages, and as a test.

    base: the class that it derives from, among those that `groupwise` exports; "" for none.
    """

    words: str
    fits: Callable[[Any], bool]
    base: str = ""


def exported(name: str) -> type:
    """A class that `groupwise` exports, imported when it is needed."""
    kind: type = getattr(importlib.import_module("groupwise"), name)
    return kind


def _instance(name: str) -> Expected:
    """An instance of a class that `groupwise` exports."""

    def fits(part: Any) -> bool:
        return isinstance(part, exported(name))

    return Expected(f"a groupwise.{name}", fits, base=name)


def _is_source(part: Any) -> bool:
    return hasattr(part, "__len__") and hasattr(part, "__getitem__")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of plugin.

    name: in the hook and in lists; singular: in messages; purpose: in lists.
    sections: dotted keys of a configuration that name a plugin of this kind, with `[]` if each item
    of a list does; of_learner: each of several learners has these sections, too.
    expected: what the configuration builds; None if a run does not build it.
    docs: the page on the built-in ones; in_manual: docs/configuration.md lists their options.
    """

    name: str
    singular: str
    purpose: str
    sections: tuple[str, ...] = ()
    of_learner: bool = False
    expected: Expected | None = None
    docs: str = ""
    in_manual: bool = False


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="policies",
            singular="policy",
            purpose="what is trained",
            sections=("policy", "teacher"),
            of_learner=True,
            expected=_instance("Policy"),
            docs="docs/configuration.md",
            in_manual=True,
        ),
        Kind(
            name="samplers",
            singular="sampler",
            purpose="what draws completions in place of the policy",
            sections=("sampler",),
            of_learner=True,
            expected=_instance("Sampler"),
            docs="docs/configuration.md",
            in_manual=True,
        ),
        Kind(
            name="adapters",
            singular="adapter",
            purpose="model architectures that a policy can train, chosen by the model itself",
            docs="docs/plugins.md",
        ),
        Kind(
            name="families",
            singular="family",
            purpose="vision-language architectures that a policy can read pictures with, chosen by "
            "the model itself",
            docs="docs/plugins.md",
        ),
        Kind(
            name="rewards",
            singular="reward",
            purpose="what scores completions",
            sections=("rewards[]", "watch[]"),
            expected=Expected("a callable", callable),
            docs="docs/rewards.md",
            in_manual=True,
        ),
        Kind(
            name="environments",
            singular="environment",
            purpose="how an episode is played: who is called when",
            sections=("environment",),
            expected=_instance("Environment"),
            docs="docs/environments.md",
            in_manual=True,
        ),
        Kind(
            name="algorithms",
            singular="algorithm",
            purpose="how scores become updates",
            sections=("algorithm",),
            of_learner=True,
            expected=_instance("Algorithm"),
            docs="docs/algorithms.md",
            in_manual=True,
        ),
        Kind(
            name="prompts",
            singular="prompt source",
            purpose="where rows come from",
            sections=("prompts", "prompts.sources[]", "evaluation.source"),
            expected=Expected("rows, with len() and [index]", _is_source),
            docs="docs/configuration.md",
            in_manual=True,
        ),
        Kind(
            name="callbacks",
            singular="callback",
            purpose="what else happens during a run",
            sections=("callbacks[]",),
            expected=_instance("Callback"),
        ),
        Kind(
            name="trackers",
            singular="tracker",
            purpose="where metrics and completions are also sent",
            sections=("tracking[]",),
            expected=_instance("Callback"),
            docs="docs/runs.md",
            in_manual=True,
        ),
        Kind(
            name="reports",
            singular="report",
            purpose="pages of a run",
            sections=("reports[]",),
            expected=Expected("a callable", callable),
            docs="docs/runs.md",
        ),
        Kind(
            name="displays",
            singular="display",
            purpose="what shows a run while it goes on",
            docs="docs/runs.md",
        ),
        Kind(
            name="watches",
            singular="watch",
            purpose="what is measured of completions at evaluations without being named",
            docs="docs/configuration.md",
        ),
        Kind(
            name="objects",
            singular="class of objects",
            purpose="what may stand in the place of a plugin's name in Python",
            docs="docs/plugins.md",
        ),
        Kind(
            name="drafts",
            singular="draft",
            purpose="kinds of models for which `groupwise init` writes a configuration",
            docs="docs/configuration.md",
        ),
        Kind(
            name="commands",
            singular="command",
            purpose="further commands of the command line",
            docs="docs/runs.md",
        ),
    )
}
"""By name, in the order of lists."""
