"""What a sampler may get wrong: each is told in one message, and no engine outlives its run."""

import copy
from dataclasses import replace

import pytest
import torch

from groupwise import Sampler, train
from groupwise.algorithms.grpo import GRPO
from groupwise.errors import UserError


class Engine(Sampler):
    """Copies weights and draws with the copy; `spoil` changes what it returns."""

    def __init__(self, policy, spoil=lambda rollouts: rollouts):
        self.copy, self.spoil, self.version, self.closed = copy.deepcopy(policy), spoil, -1, 0

    def follow(self, policy, name, version):
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, *rest, **more):
        rollouts = self.copy.sample(*rest, **more)
        return self.spoil(replace(rollouts, versions=torch.full((len(rollouts),), self.version)))

    def close(self):
        self.closed += 1


def trainer_of(lab, spoil, algorithm=None, **settings):
    policy = lab.Tabular()
    return lab.trainer(policy, algorithm, sampler=Engine(policy, spoil), **settings)


def with_log_probs(value):
    def spoil(rollouts):
        said = rollouts.sampler_log_probs.clone()
        said[~rollouts.mask] = torch.nan  # padding may hold anything
        if value is not None:
            said[3, 0] = value
        return replace(rollouts, sampler_log_probs=said)

    return spoil


BACKWARDS = list(range(15, -1, -1))
MIXED = [0, 4, 1, 5, 2, 6, 3, 7, *range(8, 16)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: None, "sampler Engine returned NoneType, not groupwise.Rollouts"),
        (
            lambda rollouts: rollouts.select(range(15)),
            "returned 15 rollouts for 4 prompts with group_size 4: expected 16",
        ),
        (lambda rollouts: rollouts.select(BACKWARDS), "in another order than the prompts"),
        (lambda rollouts: rollouts.select(MIXED), "those of a prompt must be adjacent"),
        (
            lambda rollouts: replace(rollouts, groups=rollouts.groups * 0),
            "`Rollouts.groups` must number the prompts",
        ),
        (
            lambda rollouts: replace(rollouts, prompts=list(rollouts.prompts)[::-1]),
            "in another order than the prompts",
        ),
        *[
            (
                with_log_probs(value),
                rf"Engine: sampler_log_probs of 1 of \d+ decisions are not finite, the f.* {value}",
            )
            for value in (torch.nan, torch.inf, -torch.inf)
        ],
        (
            lambda rollouts: replace(rollouts, sampler_log_probs=None),
            "Engine gives no log-probs .* which the algorithm needs",
        ),
    ],
)
def test_what_a_sampler_returns(lab, spoil, message):
    trainer = trainer_of(lab, spoil, held_out=0.0)
    table = trainer.policy.table.detach().clone()
    with pytest.raises(UserError, match=message):
        lab.step(trainer)
    assert torch.equal(trainer.policy.table, table)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("groups", torch.zeros(2, 1, dtype=torch.int64), r"groups must be \[B\] int64, received"),
        ("groups", torch.zeros(2), r"groups must be \[B\] int64, received \[2\] torch.float32"),
        ("truncated", torch.zeros(2, dtype=torch.int64), r"truncated must be \[B\] bool, received"),
        ("versions", torch.zeros(2), r"versions must be \[B\] int64, received \[2\] torch.float32"),
        ("versions", torch.tensor(3), r"versions must be \[B\] int64, received \[\] torch.int64"),
        ("mask", torch.ones(2, 3), r"mask must be \[B, T\] bool, received \[2, 3\] torch.float32"),
        ("sampler_log_probs", torch.zeros(2, 9), "must have the same shape"),
        ("completions", ["a"], "completions has length 1, prompts has 2"),
    ],
)
def test_rollouts_of_wrong_shapes(lab, column, value, message):
    rollouts = lab.build(lab.rows(2), [[1, 2, 0], [1, 0]])
    with pytest.raises(ValueError, match=message):
        replace(rollouts, **{column: value})


def test_padding_may_hold_anything_and_silence_is_allowed_where_nothing_is_corrected(lab):
    assert lab.step(trainer_of(lab, with_log_probs(None)))["importance"] == pytest.approx(1.0)
    silent = lambda rollouts: replace(rollouts, sampler_log_probs=None)  # noqa: E731
    metrics = lab.step(trainer_of(lab, silent, GRPO(GRPO.Config(importance="none"))))
    assert "mismatch/mean" not in metrics
    assert metrics["grad_norm"] > 0


def test_older_rollouts_without_log_probs_are_refused(lab):
    """A policy that samples itself and says nothing cannot be ahead."""

    class Silent(lab.Tabular):
        def sample(self, *rest, **more):
            return replace(super().sample(*rest, **more), sampler_log_probs=None)

    with pytest.raises(UserError, match="Silent gives no log-probs"):
        lab.fit(lab.trainer(Silent(), ahead=1))


def test_one_that_is_exact_is_not_corrected(lab):
    trainer = trainer_of(lab, lambda rollouts: rollouts)
    trainer.experience.team.sampling.sampler.exact = True
    metrics = lab.step(trainer)
    assert "importance" not in metrics
    assert metrics["mismatch/max"] == 0.0


def test_a_micro_batch_may_be_empty(lab):
    """A policy of its own cut may give decisions that none of the rows has."""

    class Cuts(lab.Tabular):
        def microbatches(self, rollouts, budget, *, cut_decisions):
            rows = torch.arange(len(rollouts)).split(1)
            return [(row, slice(at, at + 2)) for row in rows for at in (0, 2, 4)]

    one, other = lab.step(lab.trainer(Cuts())), lab.step(lab.trainer())
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12)
    assert one["mismatch/mean"] == other["mismatch/mean"] == 0.0


# ---- in a run


def run(lab, folder, **more):
    return train(
        prompts=lab.rows(),
        rewards=[lab.ones],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        evaluation={"prompts": 1},
        output=folder,
        quiet=True,
        **{"policy": lab.Tabular(), "prompts.held_out": 0.3, **more},
    )


def test_an_engine_is_closed_where_the_rest_cannot_be_built(lab, tmp_path):
    class Never(GRPO):
        def prepare(self, policy):
            raise UserError("not today")

    class Refuses(lab.Tabular):
        def check_sampler(self, sampler):
            raise UserError("not today")

    for more in ({"algorithm": Never()}, {"policy": Refuses()}):
        policy = more.get("policy") or lab.Tabular()
        engine = Engine(policy)
        with pytest.raises(UserError, match="not today"):
            run(lab, tmp_path / "run", **{"policy": policy, "sampler": engine, **more})
        assert engine.closed == 1


def test_a_class_of_samplers_is_built_with_the_policy(lab, tmp_path):
    made = []

    class Mine(Engine):
        def __init__(self, policy):
            super().__init__(policy)
            made.append(self)

    run(lab, tmp_path / "run", sampler=Mine)
    assert [engine.closed for engine in made] == [1]


def test_one_for_another_policy_is_never_started(lab, tmp_path):
    class Other(lab.Tabular):
        pass

    class Starts(Engine):
        policy_class = Other

        def __init__(self, policy):
            raise AssertionError("started")

    with pytest.raises(UserError, match="Starts draws for Other, and the policy is a Tabular"):
        run(lab, tmp_path / "run", sampler=Starts)
    with pytest.raises(UserError, match="found the class dict"):
        run(lab, tmp_path / "run", sampler=dict)
