"""Overlap: an engine samples the next step during an update, where a run does not say otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.config.load import LoadedConfig
from groupwise.kit.section import KeyPath
from groupwise.plugins.build import check_options
from groupwise.plugins.targets import load_target
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
    loaded: LoadedConfig, *, resumed: Path | None = None
) -> tuple[LoadedConfig, list[str]]:
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
    if config.sampler is None or not _draws_beside(loaded):
        return loaded, []
    ahead = _with_ahead(loaded, 1)
    algorithm = loaded.objects.get(ALGORITHM) or load_target(ahead, ALGORITHM)
    if isinstance(algorithm, type):
        options = check_options(ahead, ALGORITHM, algorithm)
    else:  # built, with options of its own
        options = getattr(algorithm, "config", None)
    if getattr(options, "importance", None) != "ratio":
        return loaded, []
    return ahead, [NOTE]


def _with_ahead(loaded: LoadedConfig, ahead: Any) -> LoadedConfig:
    train = loaded.config.train.model_copy(update={"ahead": ahead})
    return replace(loaded, config=loaded.config.model_copy(update={"train": train}))


def _draws_beside(loaded: LoadedConfig) -> bool:
    sampler = loaded.objects.get(SAMPLER) or load_target(loaded, SAMPLER)
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        return False
    return sampler.draws_beside(check_options(loaded, SAMPLER, sampler))
