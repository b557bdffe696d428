"""KeptWeights: copies of a policy's trained weights under names."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from groupwise.kit.errors import UserError
from groupwise.policy import Policy, Uncopied

REFERENCE = "reference"
"""The name of the weights to whose outputs a KL term compares the policy."""


def kept_parameters(policy: Policy) -> dict[str, nn.Parameter]:
    """The trained weights that copies hold, by name: all except the policy's `unkept`."""
    return {
        key: p
        for key, p in policy.named_parameters()
        if p.requires_grad and not key.startswith(policy.unkept)
    }


class KeptWeights:
    """Copies of a policy's trained weights under names: a reference, a moving average, ...

    The policy's `unkept` weights are not copied. All processes of a sharded policy must call all
    methods.

    changes: by name, how often these weights were kept, blended or restored.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.changes: dict[str, int] = {}
        self._kept: dict[str, dict[str, Tensor] | Uncopied] = {}

    def keep(self, name: str) -> None:
        """Keep the weights as they are now, for `using(name)` and `blend`.

        They are copied, except where a policy can return to the first reference without a copy.
        """
        if not name.isidentifier():
            raise ValueError(
                f"keep: expected an identifier, since weights are saved in a file of that name, "
                f"received {name!r}"
            )
        is_first_reference = name == REFERENCE and name not in self._kept
        uncopied = self.policy.uncopied() if is_first_reference else None
        present = kept_parameters(self.policy)
        self._kept[name] = uncopied or {key: p.detach().clone() for key, p in present.items()}
        self._changed(name)

    @torch.no_grad()
    def blend(self, name: str, decay: float) -> None:
        """kept <- decay x kept + (1 - decay) x current: a moving average if called repeatedly."""
        kept = [*self._copied(name).values()]
        torch._foreach_lerp_(kept, [*kept_parameters(self.policy).values()], 1 - decay)
        self._changed(name)

    @torch.no_grad()
    def distance(self, name: str) -> float:
        """sqrt(mean((current - kept)^2)) over the weights kept as `name`."""
        present = [*kept_parameters(self.policy).values()]
        pairs = zip(present, self._copied(name).values(), strict=True)
        squares = [(current - kept).float().square().sum() for current, kept in pairs]
        whole = [s.full_tensor() if isinstance(s, DTensor) else s for s in squares]
        return math.sqrt(float(torch.stack(whole).sum()) / sum(p.numel() for p in present))

    def using(self, name: str | None) -> AbstractContextManager[None]:
        """A context with the weights kept as `name` in place of the current ones; None: with the
        current ones."""
        if name is None:
            return nullcontext()
        kept = self._of(name)
        return kept.using() if isinstance(kept, Uncopied) else self._exchanged(kept)

    @torch.no_grad()
    def adopt(self, name: str) -> None:
        """Make the weights kept as `name` the current ones, for good; they stay kept, too."""
        kept = self._copied(name)
        for key, parameter in kept_parameters(self.policy).items():
            parameter.copy_(kept[key])

    def copies(self, name: str) -> Mapping[str, Tensor]:
        """The tensors kept as `name`, for a checkpoint; {} if there are none, or no copy."""
        kept = self._kept.get(name, {})
        return {} if isinstance(kept, Uncopied) else kept

    @torch.no_grad()
    def restore(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Load what `copies(name)` returned in an earlier run."""
        present = kept_parameters(self.policy)
        self._kept[name] = {key: weights[key].to(p, copy=True) for key, p in present.items()}
        self._changed(name)

    @contextmanager
    def _exchanged(self, kept: Mapping[str, Tensor]) -> Iterator[None]:
        with self.policy.exchanging():
            self._exchange(kept)
            try:
                yield
            finally:
                self._exchange(kept)

    @torch.no_grad()
    def _exchange(self, kept: Mapping[str, Tensor]) -> None:
        # Copied, not re-pointed: this raises a parameter's version, by which caches (a copy in
        # bf16) notice the change.
        for parameter, other in zip(
            kept_parameters(self.policy).values(), kept.values(), strict=True
        ):
            current = parameter.clone()
            parameter.copy_(other)
            other.copy_(current)

    def _changed(self, name: str) -> None:
        self.changes[name] = self.changes.get(name, 0) + 1

    def _of(self, name: str) -> dict[str, Tensor] | Uncopied:
        if name not in self._kept:
            names = ", ".join(self._kept) or "none"
            raise UserError(
                f"{type(self.policy).__name__} keeps no weights named {name!r} (kept are: "
                f"{names}); call `keep({name!r})` first"
            )
        return self._kept[name]

    def _copied(self, name: str) -> dict[str, Tensor]:
        """The copy to change or to compare with; made now if there was none."""
        kept = self._of(name)
        if isinstance(kept, Uncopied):
            copies = kept.copies()
            kept = self._kept[name] = {key: copies[key] for key in kept_parameters(self.policy)}
        return kept
