"""Regress, an algorithm without log-probs, for tests of `forward_process`."""

from pydantic import BaseModel

from groupwise import Algorithm, objective
from groupwise.advantages import group_relative
from groupwise_flow.noising import uniform, with_levels


class Regress(Algorithm):
    """Predicts the velocities of its better images, and flees those of the others.

        loss = A |v - target|^2 + beta |v - v_reference|^2

    at noise levels that are squares of uniform numbers. The reference follows the policy slowly,
    and draws the images.
    """

    class Config(BaseModel):
        beta: float = 0.5
        decay: float = 0.5

    needs = frozenset({"velocity", "target_velocity"})
    old = frozenset()
    reference = frozenset({"velocity"})
    moves_reference = True
    samples_with = "reference"

    def __init__(self, config=None):
        self.config = config or self.Config()

    def with_decisions(self, rollouts, step):
        return with_levels(rollouts, uniform(rollouts, step).square(), step)

    def targets(self, scores, rollouts, inputs):
        return {
            "advantages": group_relative(scores.total, rollouts.groups).float(),
            "weights": objective.weights(rollouts.mask, normalize="token"),
        }

    def loss(self, current, batch):
        pull = batch["advantages"].unsqueeze(1) * distance(
            current, current.extra["target_velocity"]
        )
        return (pull + self.config.beta * self.kl(current, batch)) * batch["weights"]

    def kl(self, current, batch):
        return distance(current, batch["reference_velocity"])

    def measure(self, current, batch):
        return {"kl": self.kl(current, batch)}

    def end_step(self, weights, step):
        weights.blend("reference", self.config.decay)


def distance(current, velocity):
    """[b, t]: |v - velocity|^2, averaged over a latent's dimensions."""
    return (current.extra["velocity"] - velocity).square().flatten(2).mean(dim=2)
