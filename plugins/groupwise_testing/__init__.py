"""The laws of `groupwise.testing`: what each kind of part must keep, and checks of it."""

from pkgutil import resolve_name
from typing import Any

from groupwise_testing import compare
from groupwise_testing.algorithm import check_algorithm
from groupwise_testing.environment import check_environment
from groupwise_testing.laws import Law, hold, law
from groupwise_testing.playing import play_episodes
from groupwise_testing.policy import check_policy
from groupwise_testing.reward import check_reward
from groupwise_testing.sampler import check_sampler
from groupwise_testing.updater import updater_of

__all__ = [
    "Law",
    "check_adapter",
    "check_algorithm",
    "check_environment",
    "check_policy",
    "check_reward",
    "check_sampler",
    "compare",
    "hold",
    "law",
    "play_episodes",
    "updater_of",
]


def check_adapter(adapter_class: type, pipeline: Any, **options: Any) -> None:
    """Check an adapter on a pipeline, preferably a tiny one with random weights.

    The laws are those of the plugin that uses the adapter: its base class names, as `laws`, the
    "module:function" that checks them. Raises AssertionError, which names the law that is broken,
    and TypeError for a class without `laws`.

    options: passed to that function; for images see `groupwise_flow.testing.check_adapter`.
    """
    laws = getattr(adapter_class, "laws", None)
    if not isinstance(laws, str):
        raise TypeError(
            f"check_adapter: {adapter_class.__name__} has no `laws`; an adapter is a subclass of "
            f"the base class of the plugin that uses it, for images groupwise_flow.adapter.Adapter"
        )
    resolve_name(laws)(adapter_class, pipeline, **options)
