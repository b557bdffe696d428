"""Snapshot: the whole state of a trainer as a checkpoint, and back."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from groupwise.errors import UserError
from groupwise.run.trainer import Trainer
from groupwise.storage.checkpoint import (
    KEPT,
    Checkpoint,
    Saved,
    as_here,
    read_weights,
    trained_weights,
)
from groupwise.storage.state import HasState, encode
from groupwise.training.learner import AVERAGE

Count = Annotated[int, Field(ge=0, le=2**53)]


class _Optimizer(BaseModel, strict=True):
    skipped: Count
    scaler: dict[str, Any] | None


class _Learner(BaseModel, strict=True):
    updates: Count
    optimizer: _Optimizer


class _Judge(BaseModel, strict=True):
    name: str
    measures: bool


class _Prompts(BaseModel, strict=True):
    position: Count
    drawn: Count
    skipped: Count = 0


class _State(BaseModel, strict=True):
    """What the state of a checkpoint must hold; it may hold more."""

    step: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    prompts: _Prompts
    learner: _Learner
    judge: _Judge
    rewards: dict[str, Any]


def check_state(state: Mapping[str, Any]) -> None:
    """Raise ValueError where it is not what `take` makes."""
    try:
        _State.model_validate(dict(state))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place} in state.json: {first['msg']}") from error


def take(trainer: Trainer) -> Checkpoint:
    """What a run needs to go on from the end of its last whole step.

    Rewards, and an algorithm, that have `state_dict` and `load_state_dict` are part of it. Kept
    weights are where they changed during the run; those it started with, it starts with again.
    """
    policy, algorithm = trainer.policy, trainer.algorithm
    changed = [n for n, count in policy.changes.items() if count != trainer.kept_at_first.get(n)]
    return Checkpoint(
        tensors={
            "weights": trained_weights(policy),
            "optimizer": trainer.learner.optimizer.tensors(),
            **{f"{KEPT}{name}": policy.kept(name) for name in changed},
        },
        state={
            "step": trainer.step,
            "seconds": trainer.seconds,
            "prompts": dict(trainer.place),
            "rows": len(trainer.experience.prompts.source),
            "learner": trainer.learner.state_dict(),
            "judge": trainer.evaluator.judge.state_dict(),
            "rewards": trainer.scorer.state_dict(),
            **({"algorithm": algorithm.state_dict()} if isinstance(algorithm, HasState) else {}),
        },
    )


def check(trainer: Trainer) -> None:
    """Raise UserError where the state of a reward or of the algorithm cannot be saved."""
    for name, state in trainer.scorer.state_dict().items():
        encode(state, f"reward {name!r}")
    if isinstance(trainer.algorithm, HasState):
        encode(trainer.algorithm.state_dict(), "algorithm")


def restore(trainer: Trainer, checkpoint: Saved) -> None:
    """Go on from a checkpoint. Raises UserError where it is of another model or other parts."""
    tensors, state, algorithm = checkpoint.tensors, checkpoint.state, trainer.algorithm
    if "optimizer" not in tensors:
        raise UserError("the checkpoint has no optimizer")
    kept = {n.removeprefix(KEPT): value for n, value in tensors.items() if n.startswith(KEPT)}
    averaged = trainer.learner.averaged
    if not averaged:
        kept.pop(AVERAGE, None)  # of before `train.ema` was unset
    if averaged and state["learner"]["updates"] and averaged not in kept:
        raise UserError("train.ema: the checkpoint has no averaged weights")
    read_weights(trainer.policy, checkpoint)
    for name, weights in kept.items():
        here = trainer.policy.keepable()
        # A policy may need no copy.
        trainer.policy.restore(name, as_here(here, weights) if weights else {})
    trainer.learner.optimizer.restore(tensors["optimizer"])
    trainer.learner.load_state_dict(state["learner"])
    trainer.evaluator.judge.load_state_dict(state["judge"])
    trainer.scorer.load_state_dict(state["rewards"])
    if isinstance(algorithm, HasState) and "algorithm" in state:
        algorithm.load_state_dict(state["algorithm"])
    trainer.go_on(step=state["step"], seconds=state["seconds"], place=state["prompts"])
