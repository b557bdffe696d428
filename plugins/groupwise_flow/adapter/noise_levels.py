"""NoiseLevels: an adapter's noise levels, and the scheduler that they are from."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise_flow.adapter.sizes import Sizes

ROUNDING = 1e-5
"""Levels that differ by less are the same; a first level so close to 1 is 1."""


@dataclass(frozen=True)
class Exchange:
    """Another scheduler in place of the pipeline's: a class of diffusers, made `from_config` of the
    pipeline's own scheduler with these settings changed."""

    kind: type[Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, scheduler: Any) -> "Exchange":
        """The same with the scheduler's own defaults where those of the other class differ:
        `from_config` leaves out what is a default."""
        own, parameters = scheduler.config, inspect.signature(self.kind).parameters
        defaults = {
            name: own[name]
            for name in sorted(own.get("_use_default_values", ()))
            if name in parameters and own[name] != parameters[name].default
        }
        return Exchange(self.kind, {**defaults, **self.settings})

    def made_of(self, scheduler: Any) -> Any:
        """The other scheduler; settings that it does not have are left out, else diffusers warns of
        each."""
        known = inspect.signature(self.kind).parameters
        own = scheduler.config.items()
        config = {name: value for name, value in own if name in known or name.startswith("_")}
        return self.kind.from_config(config, **self.settings)


class NoiseLevels(Sizes):
    """The part of an adapter that is about noise: levels, the scheduler's timesteps and steps.

    A sample at level sigma is (1 - sigma) data + sigma noise.
    """

    def exchange(self, scheduler: Any) -> Exchange | None:
        """The scheduler to take in place of the pipeline's own; None to keep that.

        Steps without noise are Euler's, and a second-order solver draws other pictures at the same
        levels: exchange it for a scheduler with Euler's steps, or keep it, and it is refused.
        Exchanged when the pipeline is loaded, in training and at evaluation; `groupwise check` and
        the model card say so. Where its levels are others, by `levels_of`, `groupwise check` prints
        both.
        """
        return None

    def sigmas(self, steps: int) -> Tensor:
        """[steps + 1] noise levels, falling from at most 1 to `last_sigma`: the pipeline's own."""
        return self.levels_of(self.pipeline.scheduler, steps)

    def levels_of(self, scheduler: Any, steps: int) -> Tensor:
        """[steps + 1] the noise levels of a scheduler: the pipeline's, or the one before it was
        exchanged."""
        scheduler.set_timesteps(steps, **self.schedule(steps))
        return torch.as_tensor(scheduler.sigmas)

    def last_sigma(self) -> float:
        """The noise level at which pictures are decoded, once `sigmas` has been called."""
        return 0.0

    def schedule(self, steps: int) -> dict[str, Any]:
        """Further arguments of the scheduler's `set_timesteps`, as the pipeline passes them."""
        if not self.pipeline.scheduler.config.get("use_dynamic_shifting"):
            return {}
        return {"mu": self.shift(most=1.16)}

    def shift(self, *, most: float, tokens: int | None = None) -> float:
        """The schedule's shift, linear in the number of tokens, those of the image unless given;
        most: its default maximum."""
        config = self.pipeline.scheduler.config
        low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
        least, most = config.get("base_shift", 0.5), config.get("max_shift", most)
        slope = (most - least) / (high - low)
        return float((tokens or self.image_tokens) * slope + least - slope * low)

    def timestep(self, sigma: Tensor) -> Tensor:
        """The scheduler's timesteps at noise levels [n]: sigma times `num_train_timesteps`."""
        return sigma * self.pipeline.scheduler.config.get("num_train_timesteps", 1000)

    def noise_scale(self, steps: int) -> float:
        """The first sample, at `sigmas[0]`, is standard normal noise times this scale."""
        return 1.0

    def data_scale(self) -> float:
        """The last sample, at `last_sigma`, is what `decode` takes as data times this scale."""
        return 1.0

    def is_comparable(self, sigmas: Tensor) -> bool:
        """Whether the scheduler's own steps, by `own_step`, can be compared with Euler's between
        these levels [steps + 1]: not if its samples are others, and the adapter converts none."""
        own = torch.as_tensor(self.pipeline.scheduler.sigmas).to(sigmas)
        return own.shape == sigmas.shape and torch.allclose(own, sigmas, rtol=0, atol=ROUNDING)

    def own_step(
        self, scheduler: Any, velocity: Tensor, sample: Tensor, number: int, sigmas: Tensor
    ) -> Tensor:
        """The sample at sigmas[number + 1] by the scheduler's own `step`.

        An adapter that converts its samples converts them here, too. velocity, sample: [n, ...] at
        sigmas[number].
        """
        time = scheduler.timesteps[number]
        moved: Tensor = scheduler.step(velocity, time, sample, return_dict=False)[0]
        return moved
