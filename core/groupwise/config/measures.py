"""Measures: checks across the rewards of a run, those trained on and those watched.

Not part of pydantic's validation, since rewards may be passed in Python after a file was read.
"""

from groupwise.config.load import LoadedConfig
from groupwise.errors import UserError, did_you_mean
from groupwise.reward_weights import Schedule


def check_labels(loaded: LoadedConfig) -> None:
    """Raise UserError if labels collide, or `evaluation.accuracy` names no usable reward."""
    config = loaded.config
    taken = [section.title for section in config.rewards]
    for number, section in enumerate(config.watch):
        if section.title in taken:
            problem = f"another reward is named {section.title!r}; give this one another `label`"
            raise UserError(loaded.origin.message(("watch", number), problem))
        taken.append(section.title)
    name, at = config.evaluation.accuracy, ("evaluation", "accuracy")
    if name is not None and name not in taken:
        problem = f"no reward {name!r}{did_you_mean(name, taken)}; there are {', '.join(taken)}"
        raise UserError(loaded.origin.message(at, problem))
    if any(section.title == name and section.better == "lower" for section in config.watch):
        problem = (
            f"{name!r} has better: lower, but a completion is right at a value of "
            f"evaluation.threshold or above; name a reward with better: higher"
        )
        raise UserError(loaded.origin.message(at, problem))


def check_schedules(loaded: LoadedConfig) -> None:
    """Raise UserError for a weight whose schedule has more steps than the run."""
    last = loaded.config.train.steps
    for number, section in enumerate(loaded.config.rewards):
        if isinstance(section.weight, Schedule) and section.weight.steps > last:
            problem = (
                f"the schedule takes {section.weight.steps} steps, but the run has only {last}; "
                f"lower it, or raise train.steps"
            )
            path = ("rewards", number, "weight", "steps")
            raise UserError(loaded.origin.message(path, problem))
