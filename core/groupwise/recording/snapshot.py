"""Snapshot: from the whole state of a trainer to a checkpoint, and back."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from groupwise.config.learners import SOLE
from groupwise.kit.errors import UserError
from groupwise.learning.learner import AVERAGE, Learner
from groupwise.learning.trainer import Trainer
from groupwise.storage.run_info import kept
from groupwise.storage.saved import KEPT, Saved, as_here, read_weights, trained_weights
from groupwise.storage.staging import Checkpoint
from groupwise.storage.state import encode
from groupwise.weights import kept_parameters

SMALL = 0.05
"""The largest difference from the planned learning rate, as a share of the peak, not noted."""
Count = Annotated[int, Field(ge=0, le=2**53)]


class _Optimizer(BaseModel, strict=True):
    skipped: Count
    scaler: dict[str, Any] | None


class _Learner(BaseModel, strict=True):
    updates: Count
    optimizer: _Optimizer
    kept: list[str] | None = None


class _Prompts(BaseModel, strict=True):
    position: Count
    drawn: Count
    skipped: Count = 0


class _State(BaseModel, strict=True):
    """The required content of a checkpoint's state; it may have more."""

    step: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    prompts: _Prompts
    learners: dict[str, _Learner]
    digests: dict[str, list[str]] = {}
    alarms: dict[str, dict[str, Any]] = {}
    rewards: dict[str, Any]


def check_state(state: Mapping[str, Any]) -> None:
    """Raise ValueError if it is not a state that `take` made."""
    try:
        _State.model_validate(dict(state))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key} in state.json: {first['msg']}") from error


def take(trainer: Trainer, *, run: str | None = None) -> Checkpoint:
    """Everything that a run needs to continue from the end of its last whole step.

    With the state of rewards and algorithms that have `state_dict` and `load_state_dict`. Kept
    weights are included only if they changed during the run; others are kept again at the start.

    run: the identity of the run, which `check_of` compares.
    """
    return Checkpoint(
        tensors={
            f"{prefix(label)}{name}": tensors
            for label in trainer.learners
            for name, tensors in _tensors(trainer, label).items()
        },
        state={
            "step": trainer.step,
            "seconds": trainer.seconds,
            "prompts": dict(trainer.prompts_state),
            "in_flight": trainer.experience.in_flight(),
            "rows": len(trainer.experience.prompts.source),
            "digests": trainer.digests,
            "learners": {n: learner.state_dict() for n, learner in trainer.learners.items()},
            "rates": {n: _rates(trainer, learner) for n, learner in trainer.learners.items()},
            "alarms": trainer.evaluator.alarms.state_dict(),
            "rewards": trainer.scorer.state_dict(),
            "names": kept(trainer.config),
            "run": run,
        },
    )


def _rates(trainer: Trainer, learner: Learner) -> dict[str, float]:
    """The learning rates of the last step and of the next one."""
    steps = {"last": max(0, trainer.step - 1), "next": trainer.step}
    return {name: learner.rate(step, trainer.seconds) for name, step in steps.items()}


def jumps(trainer: Trainer, state: Mapping[str, Any]) -> Iterator[str]:
    """Notes on learning rates that are now others than was planned when the checkpoint was made.

    trainer: after `restore`; differences of less than `SMALL` of the peak are not noted.
    """
    for label, planned in state.get("rates", {}).items():
        learner = trainer.learners[label]
        rate = learner.rate(trainer.step, trainer.seconds)
        if abs(rate - planned["next"]) > SMALL * learner.settings.learning_rate:
            of = "" if label == SOLE else f" of {label}"
            yield (
                f"the learning rate{of} goes from {planned['last']:.3g} in step {trainer.step} to "
                f"{rate:.3g} in step {trainer.step + 1}: as planned before, it would be "
                f"{planned['next']:.3g}. Its schedule is as long as train.steps and train.minutes "
                f"say; to plan a longer run from its start, set train.schedule_steps"
            )


def prefix(label: str) -> str:
    """Prefix of the files of a learner; "" if there is only one."""
    return "" if label == SOLE else f"{label}-"


def _tensors(trainer: Trainer, label: str) -> dict[str, Mapping[str, Tensor]]:
    learner, first = trainer.learners[label], trainer.kept_at_first[label]
    kept = learner.weights
    changed = [name for name, count in kept.changes.items() if count != first.get(name)]
    return {
        "weights": trained_weights(learner.policy),
        "optimizer": learner.optimizer.tensors(),
        **{f"{KEPT}{name}": kept.copies(name) for name in changed},
    }


def check(trainer: Trainer) -> None:
    """Raise UserError if the state of a reward or an algorithm, or a model, cannot be saved."""
    for name, state in trainer.scorer.state_dict().items():
        encode(state, f"reward {name!r}")
    for learner in trainer.learners.values():
        encode(learner.state_dict().get("algorithm"), "algorithm")
        learner.policy.try_saving()


def restore(trainer: Trainer, checkpoint: Saved) -> None:
    """Load a checkpoint. Raises UserError if it is of another model or of other parts."""
    state = checkpoint.state
    if state["learners"].keys() != trainer.learners.keys():
        there, here = (", ".join(names) for names in (state["learners"], trainer.learners))
        raise UserError(f"the checkpoint is of a run that trains {there}, this run trains {here}")
    for label, learner in trainer.learners.items():
        _restore(learner, of_learner(checkpoint, label), state["learners"][label])
    trainer.evaluator.alarms.load_state_dict(state.get("alarms", {}))
    trainer.scorer.load_state_dict(state["rewards"])
    trainer.resume_at(step=state["step"], seconds=state["seconds"], prompts_state=state["prompts"])
    if "in_flight" in state:
        trainer.experience.restore(state["in_flight"])


def of_learner(checkpoint: Saved, label: str) -> Saved:
    """The checkpoint with the tensors of one learner only, without the prefix of their files."""
    start = prefix(label)
    tensors = {
        n.removeprefix(start): x for n, x in checkpoint.tensors.items() if n.startswith(start)
    }
    return replace(checkpoint, tensors=tensors)


def _restore(learner: Learner, checkpoint: Saved, state: Mapping[str, Any]) -> None:
    """Load one learner; checkpoint: with this learner's tensors only."""
    tensors = checkpoint.tensors
    if "optimizer" not in tensors:
        raise UserError("the checkpoint has no optimizer")
    kept = {n.removeprefix(KEPT): value for n, value in tensors.items() if n.startswith(KEPT)}
    averaged = learner.averaged
    if not averaged:
        kept.pop(AVERAGE, None)  # `train.ema` was unset since
    if averaged and state["updates"] and averaged not in kept:
        raise UserError(
            "train.ema: the checkpoint has no averaged weights; leave train.ema out, as when the "
            "run was started"
        )
    read_weights(learner.policy, checkpoint)
    copies = learner.algorithm.copies.keys()
    for name in copies - state.get("kept", copies):  # earlier versions do not say which there were
        learner.weights.keep(name)  # it is new since: of the weights of now, not of the first ones
    for name, weights in kept.items():
        learner.weights.restore(name, as_here(kept_parameters(learner.policy), weights))
    learner.optimizer.restore(tensors["optimizer"])
    learner.load_state_dict(state)
