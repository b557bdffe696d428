"""Optimizer: clips the gradient and makes a step of AdamW; skips gradients that are not finite."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.distributed.tensor import DTensor

from groupwise.config.train import TrainSection
from groupwise.kit.errors import UserError
from groupwise.learning.adamw import make_adamw
from groupwise.learning.loss_scale import LossScale
from groupwise.policy import Policy
from groupwise.storage.tensors import Stored

SHAPED = {"exp_avg", "exp_avg_sq"}
"""State of AdamW in the shape of the parameter."""
MOMENTS = {"step", *SHAPED}
"""All state of AdamW per parameter; in 8 bits there are scales, too."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What became of the gradient of an update.

    norm: before clipping; None if there was no gradient.
    updated: whether weights changed; skipped: whether not, since the gradient was not finite.
    overflow: whether only the scaled loss made the gradient overflow. The update is to be repeated.
    scale: that of the loss, None without one; zeros: the entries of all gradients that are 0, and
        all entries, counted if the loss is scaled.
    """

    norm: float | None = None
    updated: bool = False
    skipped: bool = False
    overflow: bool = False
    scale: float | None = None
    zeros: tuple[float, float] = (0, 0)


class Optimizer:
    """AdamW for the trained weights of a policy, with factors of the rate (`Policy.rates`).

    For gradients in float16 (`Policy.scale_loss`) the loss is scaled, so that small gradients do
    not become 0; they are unscaled before they are clipped.

    scale: that of the loss, None if it is not scaled.
    skipped: updates skipped in a row; first_nonfinite: the first tensor that was not finite in the
        last of them.
    """

    def __init__(self, policy: Policy, settings: TrainSection, accelerator: Accelerator) -> None:
        self.settings, self.accelerator = settings, accelerator
        shares = {**policy.rates, "": 1.0}
        groups: dict[str, list[tuple[str, torch.nn.Parameter]]] = {start: [] for start in shares}
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad:
                start = next(start for start in shares if name.startswith(start))
                groups[start].append((name, parameter))
        # In the order of the groups, by which AdamW numbers its state.
        self.trained = [pair for group in groups.values() for pair in group]
        if not self.trained:
            raise UserError(
                f"{type(policy).__name__} has no weights to train: `requires_grad` is False for all"
            )
        self.adamw = make_adamw(
            [
                {"params": [p for _, p in group], "share": shares[start]}
                for start, group in groups.items()
                if group
            ],
            settings,
        )
        self.scale = LossScale(accelerator.device) if policy.scale_loss else None
        self.skipped, self.first_nonfinite = 0, ""

    @property
    def least_norm(self) -> float:
        """The norm of the gradient below which epsilon makes AdamW's steps more than a tenth
        shorter: the root mean square of its entries is then below 9 epsilon. Infinite where clipped
        gradients always are.
        """
        count = sum(p.numel() for _, p in self.trained)
        norm = 9 * self.settings.epsilon * math.sqrt(count)
        return math.inf if norm > self.settings.max_grad_norm else norm

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the parameters' own."""
        self.accelerator.backward(loss if self.scale is None else self.scale.scale(loss))

    def step(self, rate: float, *, number: int, first_nonfinite: str | None = None) -> StepResult:
        """Clip, make a step with this learning rate and clear the gradient.

        A gradient that is not finite changes no weight and is counted; UserError after more than
        `max_skipped_updates` in a row. If only the scaled loss made it overflow, it is not counted:
        the scale is halved, and the update is to be repeated.

        number: the training step, for that message; first_nonfinite: the first tensor in the
        forward pass that was not finite, if any.
        """
        for group in self.adamw.param_groups:
            group["lr"] = rate * group["share"]
        gradients = [p.grad for _, p in self.trained if p.grad is not None]
        if not gradients:
            return StepResult()
        scale = None if self.scale is None else self.scale.get_scale()
        if self.scale is not None:
            self.scale.unscale_(self.adamw)
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        length, zeros = float(norm), _zeros(gradients) if self.scale is not None else (0, 0)
        finite = math.isfinite(length)
        overflow = not finite and self._overflows(first_nonfinite)
        if finite:
            self._step(norm)
        self.adamw.zero_grad(set_to_none=True)
        if self.skipped > self.settings.max_skipped_updates:
            self._end(length, number)
        skipped = not finite and not overflow
        return StepResult(
            norm=length,
            updated=finite,
            skipped=skipped,
            overflow=overflow,
            scale=scale,
            zeros=zeros,
        )

    def _step(self, norm: Tensor) -> None:
        """Clip and make a step; norm: of the whole gradient."""
        parameters = [p for _, p in self.trained if p.grad is not None]
        torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.max_grad_norm, norm)
        self.adamw.step() if self.scale is None else self.scale.make_step(self.adamw)
        self.skipped = 0

    def _overflows(self, first_nonfinite: str | None) -> bool:
        """Whether only the scaled loss made the gradient overflow; if not, the update is counted.

        A collective: all processes have the same norm, so all call it.
        """
        forward = [name for name in gather_object([first_nonfinite]) if name]
        gradients = [name for name in gather_object([self._first_gradient()]) if name]
        norm = "the norm itself: the gradients' squares overflow"
        self.first_nonfinite = [*forward, *gradients, norm][0]
        if self.scale is not None and self.scale.halve():
            if not forward:
                return True
            self.scale.restore()
        self.skipped += 1
        return False

    def _end(self, norm: float, number: int) -> None:
        skipped, self.skipped = self.skipped, 0  # a resumed run counts anew
        raise UserError(
            f"step {number}: the gradient norm is {norm}, and {skipped} updates in a row were "
            f"skipped; the first tensor that is not finite is {self.first_nonfinite}. A lower "
            f"learning rate, a smaller clip range or precision: float32 may help"
        )

    def _first_gradient(self) -> str | None:
        """The first gradient that is not finite, in this process's shard."""
        for name, parameter in self.trained:
            gradient = parameter.grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            if local is not None and not bool(local.isfinite().all()):
                return f"the gradient of {name!r}"
        return None

    # ---- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """AdamW's state, flattened: "3/exp_avg" is the first moment of the fourth parameter."""
        return {
            f"{index}/{name}": torch.as_tensor(value)
            for index, values in self.adamw.state_dict()["state"].items()
            for name, value in values.items()
        }

    def restore(self, tensors: Stored) -> None:
        """Load what `tensors` returned. Raises UserError if it is of other parameters, or in 8 bits
        while the optimizer is not."""
        if self.settings.optimizer == "adamw" and any(key.endswith("/absmax1") for key in tensors):
            raise UserError(
                "train.optimizer: the checkpoint's moments are in 8 bits, which adamw cannot load; "
                "set adamw_8bit, as when the run was started"
            )
        keys: dict[int, dict[str, str]] = {}
        for key in tensors:
            index, _, name = key.partition("/")
            keys.setdefault(int(index), {})[name] = key
        for number, names in keys.items():
            self._check(number, {name: tensors.shape(key) for name, key in names.items()})
        state = {
            number: {
                name: tensors.like(key, self.trained[number][1]) if name in SHAPED else tensors[key]
                for name, key in names.items()
            }
            for number, names in keys.items()
        }
        groups = self.adamw.state_dict()["param_groups"]
        self.adamw.load_state_dict({"state": state, "param_groups": groups})

    def _check(self, index: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        problem = f"there is no parameter {index}"
        if index < len(self.trained):
            name, parameter = self.trained[index]
            moments = {moment: list(s) for moment, s in shapes.items() if moment in SHAPED}
            odd = [m for m, shape in moments.items() if shape != list(parameter.shape)]
            if shapes.keys() >= MOMENTS and not odd:
                return
            problem = f"{name!r} is {list(parameter.shape)} here, in the checkpoint {moments}"
        raise UserError(f"the optimizer's state in the checkpoint is of another model: {problem}")

    def state_dict(self) -> dict[str, Any]:
        """The state without tensors."""
        scaler = None if self.scale is None else self.scale.state_dict()
        return {"skipped": self.skipped, "scaler": scaler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.skipped = state["skipped"]
        if self.scale is not None and state["scaler"] is not None:
            self.scale.load_state_dict(state["scaler"])


def _zeros(gradients: Sequence[Tensor]) -> tuple[float, float]:
    """The entries that are 0 and all entries, of all processes' shards. A collective."""
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    others = int(torch.stack([gradient.count_nonzero() for gradient in local]).sum())
    entries = sum(gradient.numel() for gradient in local)
    parts = gather_object([(entries - others, entries)])
    return sum(zeros for zeros, _ in parts), sum(count for _, count in parts)
