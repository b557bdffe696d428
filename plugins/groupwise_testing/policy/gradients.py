"""The law of the gradient: autograd's is that of the outputs that `forward` computes.

The weights are changed a little along random directions. How an output then changes, by central
differences of `forward` without autograd, must be what its gradient predicts. That finds a branch
without gradient, a wrong backward pass of an `autograd.Function`, and a parameter that is left out.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, distributed, nn

from groupwise.rollouts import Rollouts
from groupwise_testing import compare
from groupwise_testing.laws import law
from groupwise_testing.policy.case import Case
from groupwise_testing.policy.wide import Wide

DIRECTIONS = 4
"""Random directions, each along a share of the parameters."""
STEPS = {"float64": 1e-4, "float32": 1e-2}
"""Changes of a weight, in units of its parameter's mean size. In float32 they must be so large that
the rounding of outputs is small beside their change."""


@dataclass(frozen=True)
class Tolerance:
    """error: largest error of a derivative, relative to the derivative along this direction, or to
    `least` of that along all directions."""

    error: float
    least: float = 0.01


TOLERANCES = {
    # Differences are exact to 1e-6. What remains is the rounding of a gradient in float32, 1e-5 to
    # 1e-4, and 6e-3 where log-probs are of Gaussians with a tiny std.
    "float64": Tolerance(0.01),
    # Outputs are rounded by 1e-6, their changes by 1e-4; curvature adds to that.
    "float32": Tolerance(0.05, least=0.1),
    # bf16 rounds gradients by 1e-2 to 1e-1 of the largest part of them; a branch left out is as
    # large as that.
    "half": Tolerance(0.25, least=1.0),
}


@dataclass(frozen=True)
class Derivative:
    """The derivative of an output along a direction: by autograd, and by central differences.

    parameters: their numbers; scale: what the difference of the two is divided by.
    """

    output: str
    parameters: Sequence[int]
    autograd: float
    difference: float
    scale: float

    @property
    def error(self) -> float:
        error = abs(self.autograd - self.difference) / max(self.scale, 1e-30)
        return error if math.isfinite(error) else math.inf


class Gradients:
    """A policy's outputs, and derivatives of the sum of each, every element with a random factor.

    All processes of a sharded policy must use it together: derivatives are means over them, as
    gradients are. The weights must stay the same.
    """

    def __init__(self, case: Case, rollouts: Rollouts) -> None:
        self.case, self.policy, self.rollouts = case, case.policy, rollouts
        named = [(name, p) for name, p in self.policy.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [p for _, p in named]
        self._wide = Wide()

    @cached_property
    def constant(self) -> Rollouts:
        """The rollouts with what the policy declares to be constants of its gradient."""
        with torch.no_grad():
            return self.policy.with_constants(self.rollouts)

    @cached_property
    def method(self) -> str:
        """ "float64" if the policy gives the same outputs in it, else "float32"."""
        if self.policy.mesh is not None:
            return "float32"  # weights are gathered by kernels for their own dtype
        # With other weights, as later; first without the context, so that what `forward` keeps (an
        # encoded prompt, say) is kept in its own dtype.
        constant = self.constant
        with compare.nudged(self.policy, seed=1, size=1e-3):
            plain = self.case.outputs(constant)
            try:
                gap = compare.outputs_gap(self._outputs("float64"), plain)
            except Exception:  # a kernel without float64 may raise anything
                return "float32"
        return "float64" if gap <= self.case.limit else "float32"

    @property
    def tolerance(self) -> Tolerance:
        return TOLERANCES[self.method if self.policy.exact else "half"]

    def derivatives(self) -> list[Derivative]:
        """The derivatives along each direction, of every output that has a gradient."""
        if not self._slopes:
            return []
        # Parameters of about the same derivative share a direction, or the largest would hide
        # others; those without any, which may have lost it, are together.
        shares = [slopes.abs() / slopes.norm().clamp(min=1e-30) for slopes in self._slopes.values()]
        order = torch.stack(shares).amax(dim=0).argsort()
        directions = order.split(-(-len(order) // DIRECTIONS))
        return [one for numbers in directions for one in self._along(numbers.tolist())]

    def largest_deviation(self, broken: Derivative) -> tuple[str, Derivative]:
        """The parameter of a direction with the largest deviation, by its name."""
        each = [
            one
            for number in broken.parameters
            for one in self._along([number])
            if one.output == broken.output
        ]
        worst = max(each, key=lambda one: abs(one.autograd - one.difference))
        return self.names[worst.parameters[0]], worst

    def _along(self, numbers: Sequence[int]) -> list[Derivative]:
        """The derivative of each output along the steps of these parameters."""
        differences = self._differences(numbers)
        derivatives = []
        for name, slopes in self._slopes.items():
            own, every = slopes[list(numbers)], float(slopes.norm())
            scale = max(abs(differences[name]), float(own.norm()), self.tolerance.least * every)
            derivatives.append(
                Derivative(name, numbers, float(own.sum()), differences[name], scale)
            )
        return derivatives

    @cached_property
    def _steps(self) -> list[Tensor]:
        """For each parameter a random change, as long as the parameter itself times `STEPS`."""
        generator = torch.Generator().manual_seed(0)
        steps = []
        for p in self.parameters:
            size = STEPS[self.method] * (p.detach().abs().mean() + 0.01)
            noise = torch.randn(p.shape, generator=generator)
            steps.append(size * compare.divided_as(p, noise))
        return steps

    # ---- central differences

    @torch.no_grad()
    def _differences(self, numbers: Sequence[int]) -> dict[str, float]:
        """Outputs at weights + steps, minus outputs at weights - steps."""
        chosen = [self.parameters[number] for number in numbers]
        before = [p.detach().clone() for p in chosen]
        sums = []
        try:
            for sign in (1, -1):
                for p, value, number in zip(chosen, before, numbers, strict=True):
                    p.copy_(value + sign * self._steps[number])
                sums.append(self._sums(self._outputs(self.method)))
        finally:
            for p, value in zip(chosen, before, strict=True):
                p.copy_(value)
        return {name: sums[0][name] - sums[1][name] for name in sums[0]}

    def _outputs(self, method: str) -> dict[str, Tensor]:
        with self._wide.computing() if method == "float64" else nullcontext():
            return self.case.outputs(self.constant)

    def _sums(self, outputs: Mapping[str, Tensor]) -> dict[str, float]:
        """The sum of each output, as means over all processes of a sharded policy."""
        mesh = self.policy.mesh
        device = None if mesh is None else mesh.device_type
        sums = torch.tensor(
            [float(self._sum(value)) for value in outputs.values()],
            dtype=torch.float64,
            device=device,
        )
        if mesh is not None:
            for group in mesh.get_all_groups():
                distributed.all_reduce(sums, group=group)
            sums /= mesh.size()
        return dict(zip(outputs, sums.tolist(), strict=True))

    def _sum(self, value: Tensor) -> Tensor:
        """The sum over all decisions, in float64, every element with a factor of its own."""
        mask = self.rollouts.mask.to(value.device).view(*value.shape[:2], *[1] * (value.ndim - 2))
        generator = torch.Generator().manual_seed(1)
        factors = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        return (value.double() * factors.to(value.device)).masked_fill(~mask, 0.0).sum()

    # ---- autograd

    @cached_property
    def _slopes(self) -> dict[str, Tensor]:
        """By output, [parameters] the change that its gradient predicts for each of the steps."""
        current = self.policy(self.rollouts).outputs
        names = [name for name, value in current.items() if value.requires_grad]
        del current  # else its graph stays in memory
        return {name: torch.tensor(self._slopes_of(name), dtype=torch.float64) for name in names}

    def _slopes_of(self, output: str) -> list[float]:
        self.policy.zero_grad()
        self._sum(self.policy(self.rollouts).outputs[output]).backward()
        slopes = []
        for p, step in zip(self.parameters, self._steps, strict=True):
            # As rounded when the weights are changed.
            change = (p.detach() + step).double() - (p.detach() - step).double()
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            slopes.append(float(compare.whole((grad.double() * change).sum())))
        self.policy.zero_grad()
        return slopes


@law(
    "the gradient is that of the outputs",
    hint="`forward`: `detach`, `no_grad`, `.data` and `item` in what an output depends on, custom "
    "backward passes, outputs computed from copies of weights; a gradient that is approximate by "
    "intent is declared by `with_constants`",
)
def true(case: Case) -> str | None:
    with compare.nudged(case.policy):  # so that no weight is 0, as in new adapters
        rollouts = case.sample()
        gradients = Gradients(case, rollouts)
        declared = case.outputs(gradients.constant)
        for name, value in case.outputs(rollouts).items():
            if compare.gap(declared[name], value) > case.limit:
                return f"{name} are others for rollouts by `with_constants`, at the same weights"
        derivatives = gradients.derivatives()
        worst = max(derivatives, key=lambda one: one.error, default=None)
        if worst is None or worst.error <= gradients.tolerance.error:
            return None
        parameter, one = gradients.largest_deviation(worst)
        return (
            f"for a small random change of {len(worst.parameters)} of the {len(gradients.names)} "
            f"parameters, the gradient of {worst.output} predicts {worst.autograd:.4g}, and the "
            f"difference in {gradients.method} is {worst.difference:.4g}: an error of "
            f"{worst.error:.2g}, at most {gradients.tolerance.error:g} is allowed. Of these "
            f"parameters {parameter} deviates most: {one.autograd:.4g} and {one.difference:.4g}"
        )


LAWS = (true,)
