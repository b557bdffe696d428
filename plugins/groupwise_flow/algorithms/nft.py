"""NFT: DiffusionNFT, learns from finished images what to predict and what not to.

When to use it: the first to try for `policy: forward_process`. It needs no log-probs and no path,
so images are drawn by any sampler, as in use; good and bad images both teach, and what a bad image
teaches is bounded, unlike in `elbo_grpo` and `awm`. It assumes a reward that ranks finished images;
rewards of single steps cannot be used.

Where implementations differ: the authors blend the weights that sample after each step, by a decay
that grows (`decay: 0.5, decay_rise: 0.001`; for OCR `decay: 0.999, decay_delay: 75, decay_rise:
0.0075`). By default it is 0 here: the current weights sample, and no copy is needed. They train
with b = 1 (for OCR 0.1), beta 1e-4, and LoRA at a learning rate of 3e-4, draw without guidance by
10 steps, and train on copies at all levels.
"""

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from groupwise import objective
from groupwise.advantages import Scale
from groupwise.algorithm import Algorithm, Batch
from groupwise.algorithms.parts import Options
from groupwise.rollouts import LogProbs
from groupwise_flow.algorithms.following import Following
from groupwise_flow.algorithms.velocities import Matching, distance, expanded

SAMPLING = "sampling"
"""The name of the weights that sample, where they are not the current ones."""
LEAST = 1e-5
"""The least mean error by which a squared error is divided."""


class NFT(Following, Matching):
    """DiffusionNFT, arXiv:2509.16117: towards good images and away from bad ones, without a path.

        r = A / (2 clip) + 1/2, A clipped to [-clip, clip]
        v+ = b v + (1 - b) v_old; v- = (1 + b) v_old - b v
        loss = (clip / b) (r |x+ - x0|^2 / w+ + (1 - r) |x- - x0|^2 / w-)

    plus beta |v - v_reference|^2. x0 is the finished latent, x+ = x - sigma v+ what v+ predicts of
    it from its noised copy x, and w+ the mean of |x+ - x0|, without gradient. v_old is the velocity
    of the weights that drew the images: the current ones, or with `decay` a copy that follows them.
    """

    follower = SAMPLING

    class Config(Following.Config, Matching.Config):
        scale: Scale = Field(
            "batch",
            description="divide advantages by the std of the group, of the batch, or by none",
        )
        b: float = Field(
            1.0,
            gt=0,
            description="strength of guidance: how far v+ and v- are from v_old; the authors' "
            "`config.beta`, whose `config.train.beta` is `beta` here",
        )

    config: Config

    def __init__(self, config: Options | None = None) -> None:
        super().__init__(config)
        self.needs = frozenset({"velocity", "noised", "clean", "sigma"})
        self.old = frozenset({"velocity"})
        if self.config.decay:
            self.old = frozenset()
            self.copies = {SAMPLING: frozenset({"velocity"})}
            self.samples_with = SAMPLING

    def active(self, targets: Mapping[str, Tensor]) -> Tensor:
        """[B] bool: all that count. An advantage of 0 pulls towards the weights that sampled."""
        return Algorithm.active(self, targets)

    def surrogate(self, current: LogProbs, batch: Batch) -> Tensor:
        config, velocity = self.config, current.extra["velocity"]
        old = batch["old_velocity" if "velocity" in self.old else f"{SAMPLING}_velocity"]
        share = objective.per_decision(batch["advantages"]) / (2 * config.advantage_clip) + 0.5
        towards = self._error(old + config.b * (velocity - old), current)
        away = self._error(old - config.b * (velocity - old), current)
        return config.advantage_clip / config.b * (share * towards + (1 - share) * away)

    @staticmethod
    def _error(velocity: Tensor, current: LogProbs) -> Tensor:
        """[b, t]: |x - x0|^2 / w of the clean latent x that this velocity predicts."""
        sigma, clean = current.extra["sigma"], current.extra["clean"]
        predicted = current.extra["noised"] - expanded(sigma, clean) * velocity
        size = (predicted - clean).detach().abs().flatten(2).mean(dim=2).clamp(min=LEAST)
        return distance(predicted, clean) / size
