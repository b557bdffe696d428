"""What a critic of its own weights builds on: a rate of its own, no copies, no passes in vain."""

import pytest
import torch
from torch import nn

from groupwise import LogProbs, train
from groupwise.algorithms.grpo import GRPO
from groupwise.storage.checkpoint import Checkpoints


@pytest.fixture
def actor_critic(lab):
    class ActorCritic(lab.Tabular):
        """A table of values beside that of logits."""

        provides = lab.Tabular.provides | {"value"}
        unkept = ("critic",)

        def __init__(self):
            super().__init__()
            self.critic = nn.Parameter(torch.zeros(1, dtype=torch.float64))
            self.rates = {"critic": 10.0}
            self.wanted = []

        def forward(self, rollouts, decisions=slice(None)):
            self.wanted.append(self.needed)
            answer = super().forward(rollouts, decisions)
            value = self.critic.expand(answer.log_probs.shape)
            return LogProbs(log_probs=answer.log_probs, extra={"value": value})

    return ActorCritic()


class Valued(GRPO):
    """GRPO that also learns one value for all."""

    def __init__(self, **options):
        super().__init__(GRPO.Config(**options))
        self.needs = self.needs | {"value"}

    sees = frozenset({"old_value"})

    def loss(self, current, batch):
        apart = (current.extra["value"] - 1.0).square()
        return super().loss(current, batch) + torch.where(
            batch["mask"], apart * batch["weights"], 0.0
        )


class Follows(Valued):
    """The reference moves, so that checkpoints hold it."""

    def end_step(self, policy, step):
        policy.blend("reference", 0.5)


def test_weights_named_so_are_trained_at_a_rate_of_their_own(lab, actor_critic):
    trainer = lab.trainer(actor_critic, Valued(), learning_rate=1e-3, held_out=0.0, warmup_steps=0)
    before = {name: p.detach().clone() for name, p in actor_critic.named_parameters()}
    trainer.learn(trainer.experience.next(trainer.state))
    moved = {
        name: float((p.detach() - before[name]).abs().max())
        for name, p in actor_critic.named_parameters()
    }
    # The first step of Adam is the rate, whatever the gradient.
    assert moved == pytest.approx({"table": 1e-3, "critic": 1e-2}, rel=1e-3)
    assert [name for name, _ in trainer.learner.optimizer.trained] == ["critic", "table"]


def test_a_pass_is_told_what_is_asked_of_it(lab, actor_critic):
    """So a critic can be asked alone; the algorithm's own needs come back for the update."""
    actor_critic.needed = frozenset({"log_probs", "value"})
    trainer = lab.trainer(actor_critic, Valued(beta=0.1), held_out=0.0)
    scored = trainer.experience.next(trainer.state)
    actor_critic.wanted.clear()
    trainer.learn(scored)
    wanted = [sorted(names) for names in dict.fromkeys(actor_critic.wanted)]
    assert wanted == [["log_probs"], ["value"], ["log_probs", "value"]]


def test_no_copy_of_it_is_kept_and_kept_weights_resume(lab, actor_critic, tmp_path):
    def go(name, steps, policy):
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

    go("through", 4, actor_critic)
    for name in ("reference", "average"):
        assert set(actor_critic.kept(name)) == {"table"}
    kind = type(actor_critic)
    go("halved", 2, kind())
    go("halved", 4, kind())
    one, other = (
        Checkpoints(tmp_path / name / "checkpoints").last() for name in ("through", "halved")
    )
    for file in ("weights", "optimizer", "kept_reference", "kept_average"):
        name = f"{file}.safetensors"
        assert (one / name).read_bytes() == (other / name).read_bytes()
