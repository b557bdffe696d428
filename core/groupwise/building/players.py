"""Players: the environment of a run with the policies that it calls, and how many completions each
of them samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from groupwise.config.learners import PLAYERS, SOLE
from groupwise.config.load import LoadedConfig
from groupwise.config.sections import RunConfig
from groupwise.environment import Environment
from groupwise.kit.copies import copied
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row


@dataclass(frozen=True)
class Players:
    """The policies of a run by their labels, as an environment calls them."""

    environment: Environment
    config: RunConfig

    @cached_property
    def labels(self) -> Sequence[str]:
        return [*self.config.learners]

    @cached_property
    def casts(self) -> Mapping[str, Sequence[str]]:
        return self.environment.casts(self.labels)

    @cached_property
    def receivers(self) -> Sequence[str]:
        """The players whose prompts are rows of the data set."""
        return self.environment.receivers(self.labels)

    def opening(self, row: Row) -> Row:
        """What a receiver is called with at first, as a row."""
        return self.environment.opening(copied(row, pictures=False))

    @cached_property
    def judged(self) -> Sequence[str]:
        return self.environment.judged(self.labels)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """By label, the completions in a group; casts share those of a prompt."""
        count = len(self.casts)
        return {
            label: learning.train.group_size // count
            for label, learning in self.config.learners.items()
        }

    @cached_property
    def groups(self) -> Mapping[str, int]:
        """By label, the groups of completions for each prompt."""
        return self.environment.groups(self.sizes)

    @property
    def judged_size(self) -> int:
        """How many completions of a prompt rewards judge in a training step."""
        return sum(self.groups[label] * self.sizes[label] for label in self.judged)

    def check(self, loaded: LoadedConfig) -> None:
        """Raise UserError if these are not the players that the environment calls, or its casts
        cannot share groups of that size."""
        try:
            _ = self.casts
        except UserError as error:
            raise UserError(loaded.origin.message(("environment",), str(error))) from None
        if (problem := self._fault_of_columns()) is not None:
            raise UserError(loaded.origin.message(("environment",), problem))
        called = {label for cast in self.casts.values() for label in cast}
        several = self.config.players is not None
        name = self.config.environment.name
        if idle := [label for label in self.labels if label not in called]:
            problem = f"environment {name!r} does not call the player {idle[0]!r}"
            raise UserError(loaded.origin.message((PLAYERS,) if several else ("policy",), problem))
        count = len(self.casts)
        if count == 1:
            return
        for number, section in enumerate(self.config.players or ()):
            if dict(section.train)["group_size"] is not None:
                problem = (
                    f"the players of environment {name!r} share the run's train.group_size evenly; "
                    f"set that instead"
                )
                path = (PLAYERS, number, "train", "group_size")
                raise UserError(loaded.origin.message(path, problem))
        if self.config.train.group_size % count:
            problem = (
                f"{count} policies cannot share groups of {self.config.train.group_size} evenly"
            )
            raise UserError(loaded.origin.message(("train", "group_size"), problem))

    def _fault_of_columns(self) -> str | None:
        """What is wrong with the columns that the environment names."""
        columns = {*self.environment.columns(self.labels)}
        logged = {*self.environment.logged(self.labels)}
        shown = {*self.environment.shown(self.labels)}
        for kind, names in (("logged", logged), ("shown", shown)):
            if unknown := sorted(names - columns):
                return f"its `{kind}` names {unknown[0]!r}, which is not among its `columns`"
        if both := sorted(logged & shown):
            return (
                f"its `logged` and its `shown` name {both[0]!r}; `logged` is for numbers, and "
                f"`shown` for texts and pictures"
            )
        return None

    def counts(self, *, evaluated: int | None = None, greedy: bool = True) -> dict[str, int]:
        """Batch arithmetic: completions and updates, per step and in total.

        evaluated: prompts of an evaluation, as configured if None; greedy: whether a policy has a
        greedy mode.
        """
        train, evaluation = self.config.train, self.config.evaluation
        per_step = train.groups_per_step * self.judged_size
        updates = train.updates_per_rollout * train.epochs
        of_each = {
            f"rollouts of {label} per step": train.groups_per_step * groups * self.sizes[label]
            for label, groups in self.groups.items()
            if label != SOLE and len(self.casts) == 1
        }
        return {
            **of_each,
            "rollouts per step": per_step,
            "groups per update": train.groups_per_step // train.updates_per_rollout,
            "rollouts per update": per_step // train.updates_per_rollout,
            "updates per step": updates,
            **({} if train.data_epochs is None else {"steps": train.steps}),
            "updates in total": train.steps * updates,
            "rollouts in total": train.steps * per_step,
            "rollouts per evaluation": (evaluation.count if evaluated is None else evaluated)
            * (evaluation.samples + (evaluation.greedy and greedy)),
        }
