"""Support for a critic with its own weights: its learning rate, no kept copies, separate passes."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from groupwise import LogProbs, train
from groupwise.algorithms.grpo import GRPO
from groupwise.storage.checkpoint import Checkpoints


@pytest.fixture
def actor_critic(lab):
    class ActorCritic(lab.Tabular):
        """A policy with a value in addition to the table of logits."""

        provides = lab.Tabular.provides | {"value"}
        unkept = ("critic",)

        def __init__(self):
            super().__init__()
            self.critic = nn.Parameter(torch.zeros(1, dtype=torch.float64))
            self.rates = {"critic": 10.0}
            self.requests = []

        def forward(self, rollouts, decisions=slice(None), outputs=None):
            self.requests.append(outputs)
            output = super().forward(rollouts, decisions)
            value = self.critic.expand(output.log_probs.shape)
            return LogProbs(log_probs=output.log_probs, extra={"value": value})

    return ActorCritic()


class Valued(GRPO):
    """GRPO with a loss for the value, which is the same for all decisions."""

    def __init__(self, **options):
        super().__init__(GRPO.Config(**options))
        self.needs = self.needs | {"value"}

    target_inputs = frozenset({"old_value"})

    def loss(self, current, batch):
        error = (current.extra["value"] - 1.0).square()
        return super().loss(current, batch) + torch.where(
            batch["mask"], error * batch["weights"], 0.0
        )


class Follows(Valued):
    """Its reference moves, so it is saved in checkpoints."""

    def end_step(self, weights, step):
        weights.blend("reference", 0.5)


def test_rates_multiply_the_learning_rate_of_named_weights(lab, actor_critic):
    trainer = lab.trainer(actor_critic, Valued(), learning_rate=1e-3, held_out=0.0, warmup_steps=0)
    before = {name: p.detach().clone() for name, p in actor_critic.named_parameters()}
    trainer.learn(trainer.experience.next(trainer.state))
    changes = {
        name: float((p.detach() - before[name]).abs().max())
        for name, p in actor_critic.named_parameters()
    }
    # The first step of Adam is the learning rate, whatever the size of the gradient.
    assert changes == pytest.approx({"table": 1e-3, "critic": 1e-2}, rel=1e-3)
    assert [name for name, _ in trainer.learner.optimizer.trained] == ["critic", "table"]


def test_a_pass_is_asked_for_the_outputs_that_are_read(lab, actor_critic):
    """So a pass for the value alone skips the log-probs; the update needs both."""
    trainer = lab.trainer(actor_critic, Valued(beta=0.1), held_out=0.0)
    scored = trainer.experience.next(trainer.state)
    actor_critic.requests.clear()
    trainer.learn(scored)
    requests = [sorted(names) for names in dict.fromkeys(actor_critic.requests)]
    assert requests == [["log_probs"], ["value"], ["log_probs", "value"]]


def test_a_forward_without_outputs_is_not_asked_and_computes_all(lab, actor_critic):
    """`forward(rollouts, decisions)` of a simple policy stays as short as that."""
    rollouts = lab.build(lab.rows(2), [[1, 0], [2]])
    asked = frozenset({"log_probs"})
    plain = lab.Tabular()(rollouts, slice(0, 1), asked)
    assert plain.entropy.shape == (2, 1)
    actor_critic(rollouts, outputs=asked)
    actor_critic(rollouts)
    assert actor_critic.requests == [asked, None]


def test_unkept_weights_have_no_copies_and_a_resumed_run_is_equal(lab, actor_critic, tmp_path):
    def run(name, steps, policy):
        return train(
            policy=policy,
            algorithm=Follows(beta=0.1),
            prompts=lab.rows(),
            rewards=[lab.ones],
            train={"groups_per_step": 2, "group_size": 4, "steps": steps, "ema": 0.9},
            evaluation={"prompts": 1},
            output=tmp_path / name,
            resume=(tmp_path / name).exists(),
            quiet=True,
            **{"prompts.held_out": 0.3},
        )

    run("through", 4, actor_critic)
    for name in ("reference", "average"):
        file = Checkpoints(tmp_path / "through" / "checkpoints").last() / f"kept_{name}.safetensors"
        assert set(load_file(file)) == {"table"}
    policy_class = type(actor_critic)
    run("halved", 2, policy_class())
    run("halved", 4, policy_class())
    one, other = (
        Checkpoints(tmp_path / name / "checkpoints").last() for name in ("through", "halved")
    )
    for file in ("weights", "optimizer", "kept_reference", "kept_average"):
        name = f"{file}.safetensors"
        assert (one / name).read_bytes() == (other / name).read_bytes()
