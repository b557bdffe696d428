"""Overlap: an engine samples the next step during an update, where a run does not say otherwise."""

from dataclasses import replace

from groupwise.config.load import LoadedConfig
from groupwise.plugins.build import check_options
from groupwise.plugins.targets import load_target
from groupwise.sampler import Sampler
from groupwise.section import KeyPath

SAMPLER: KeyPath = ("sampler",)
ALGORITHM: KeyPath = ("algorithm",)
NOTE = (
    "the engine samples the next step during each update, with weights one step older "
    "(train.ahead: 1, since it has a device of its own); train.ahead: 0 samples after the update"
)


def with_overlap(loaded: LoadedConfig) -> tuple[LoadedConfig, list[str]]:
    """The configuration with `train.ahead: 1` and a note, if it is unset, the sampler can draw
    during updates, and the algorithm then clips around what drew the rollouts (`importance:
    ratio`); else as it is, and no note.

    With that correction sampling ahead cost no accuracy where it was measured; with others, or with
    narrower clip ranges, it is left to the user. Imports the sampler and the algorithm; raises
    UserError for their options.
    """
    config = loaded.config
    if config.train.ahead is not None or config.players is not None:
        return loaded, []
    if config.sampler is None or not _draws_beside(loaded):
        return loaded, []
    train = config.train.model_copy(update={"ahead": 1})
    ahead = replace(loaded, config=config.model_copy(update={"train": train}))
    if ALGORITHM in loaded.objects:  # built, with options of its own
        options = getattr(loaded.objects[ALGORITHM], "config", None)
    else:
        options = check_options(ahead, ALGORITHM, load_target(ahead, ALGORITHM))
    if getattr(options, "importance", None) != "ratio":
        return loaded, []
    return ahead, [NOTE]


def _draws_beside(loaded: LoadedConfig) -> bool:
    sampler = loaded.objects.get(SAMPLER) or load_target(loaded, SAMPLER)
    if not (isinstance(sampler, type) and issubclass(sampler, Sampler)):
        return False
    return sampler.draws_beside(check_options(loaded, SAMPLER, sampler))
