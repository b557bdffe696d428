"""Overlap: an engine samples the next step during an update, where a run does not say otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.kit.section import KeyPath
from groupwise.plugins.plugin import Plugin
from groupwise.plugins.resolved import ResolvedConfig, resolve
from groupwise.sampler import Sampler
from groupwise.storage.disk import read_text
from groupwise.storage.files import CONFIG
from groupwise.storage.run_info import settings_of

SAMPLER: KeyPath = ("sampler",)
ALGORITHM: KeyPath = ("algorithm",)
NOTE = (
    "the engine samples the next step during each update, with weights one step older "
    "(train.ahead: 1, since it has a device of its own); train.ahead: 0 samples after the update"
)


def with_overlap(
    loaded: ResolvedConfig, *, resumed: Path | None = None
) -> tuple[ResolvedConfig, list[str]]:
    """The configuration with `train.ahead: 1` and a note, if it is unset, the sampler can draw
    during updates, and the algorithm then clips around what drew the rollouts (`importance:
    ratio`); else as it is, and no note.

    With that correction sampling ahead cost no accuracy where it was measured; with others, or with
    narrower clip ranges, it is left to the user. Imports the sampler and the algorithm; raises
    UserError for their options.

    resumed: the folder of a run that goes on, which keeps its own value.
    """
    config = loaded.config
    if config.train.ahead is not None or config.players is not None:
        return loaded, []
    if resumed is not None and (resumed / CONFIG).exists():
        train = settings_of(read_text(resumed / CONFIG)).get("train") or {}
        return _with_ahead(loaded, train.get("ahead")), []
    if config.sampler is None or not _draws_beside(loaded.plugins[SAMPLER]):
        return loaded, []
    ahead = _with_ahead(loaded, 1)
    if getattr(ahead.plugins[ALGORITHM].settings, "importance", None) != "ratio":
        return loaded, []
    return ahead, [NOTE]


def _with_ahead(loaded: ResolvedConfig, ahead: Any) -> ResolvedConfig:
    """Its options are validated again: what is right may depend on `train.ahead`."""
    train = loaded.config.train.model_copy(update={"ahead": ahead})
    return resolve(replace(loaded, config=loaded.config.model_copy(update={"train": train})))


def _draws_beside(sampler: Plugin) -> bool:
    kind = sampler.target
    if not (isinstance(kind, type) and issubclass(kind, Sampler)):
        return False
    return kind.draws_beside(sampler.settings)
