"""Epochs: the number of steps of a run that is as long as some passes over its prompts."""

import math
from dataclasses import replace

from groupwise.kit.errors import UserError
from groupwise.kit.schedule import Schedule
from groupwise.plugins.resolved import ResolvedConfig
from groupwise.prompts.draws import SCAN, Prompts


def with_steps(loaded: ResolvedConfig, prompts: Prompts) -> ResolvedConfig:
    """The configuration with the steps that its `train.data_epochs` take; as it is without them.

    Raises UserError for schedules that do not fit so many steps.
    """
    config, train = loaded.config, loaded.config.train
    if train.data_epochs is None:
        return loaded
    rows = training_rows(prompts)
    steps = math.ceil(round(train.data_epochs * rows / train.groups_per_step, 6))
    of = (
        f"train.data_epochs: {train.data_epochs:g} passes over {rows:,} prompts are {steps:,} steps"
    )
    planned = train.schedule_steps
    if planned is not None and planned < steps and train.schedule != "constant":
        raise UserError(f"{of}, and train.schedule_steps is {planned}: it must be at least that")
    for section in config.rewards:
        if isinstance(section.weight, Schedule) and section.weight.steps > steps:
            raise UserError(
                f"{of}, and the schedule of the weight of {section.title!r} takes "
                f"{section.weight.steps}; lower it, or raise train.data_epochs"
            )
    counted = train.model_copy(update={"steps": steps})
    return replace(loaded, config=config.model_copy(update={"train": counted}))


def training_rows(prompts: Prompts) -> int:
    """The rows that training draws from: all that are not held out; of a source that has more than
    `SCAN` their expected number."""
    count = len(prompts.source)
    if count > SCAN:
        return round(count * (1 - prompts.fraction))
    return sum(not prompts.is_held_out(row) for row in prompts.rows())
