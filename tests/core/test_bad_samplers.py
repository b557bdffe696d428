"""Mistakes of samplers are refused with one message, and every engine is closed with its run."""

import copy
from dataclasses import replace

import pytest
import torch

from groupwise import Sampler, train
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError


class Engine(Sampler):
    """Copies the weights and samples with the copy; `spoil` changes its rollouts."""

    def __init__(self, policy, spoil=lambda rollouts: rollouts):
        self.copy, self.spoil, self.version, self.closed = copy.deepcopy(policy), spoil, -1, 0

    def follow(self, policy, name, version):
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, *args, **options):
        rollouts = self.copy.sample(*args, **options)
        return self.spoil(replace(rollouts, versions=torch.full((len(rollouts),), self.version)))

    def close(self):
        self.closed += 1


def trainer_of(lab, spoil, algorithm=None, **settings):
    policy = lab.Tabular()
    return lab.trainer(policy, algorithm, sampler=Engine(policy, spoil), **settings)


def with_log_probs(value):
    def spoil(rollouts):
        log_probs = rollouts.sampler_log_probs.clone()
        log_probs[~rollouts.mask] = torch.nan  # any value is allowed at padding
        if value is not None:
            log_probs[3, 0] = value
        return replace(rollouts, sampler_log_probs=log_probs)

    return spoil


REVERSED = list(range(15, -1, -1))
INTERLEAVED = [0, 4, 1, 5, 2, 6, 3, 7, *range(8, 16)]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: None, "sampler Engine returned NoneType, not groupwise.Rollouts"),
        (
            lambda rollouts: rollouts.select(range(15)),
            "returned 15 rollouts for 4 prompts with group_size 4: expected 16",
        ),
        (lambda rollouts: rollouts.select(REVERSED), "in another order than the prompts"),
        (lambda rollouts: rollouts.select(INTERLEAVED), "those of a prompt must be adjacent"),
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
def test_wrong_rollouts_of_a_sampler_are_refused(lab, spoil, message):
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
def test_rollouts_of_wrong_shapes_are_refused(lab, column, value, message):
    rollouts = lab.build(lab.rows(2), [[1, 2, 0], [1, 0]])
    with pytest.raises(ValueError, match=message):
        replace(rollouts, **{column: value})


def test_padding_is_ignored_and_log_probs_are_optional_without_importance_weights(lab):
    assert lab.step(trainer_of(lab, with_log_probs(None)))["importance"] == pytest.approx(1.0)
    without_log_probs = lambda rollouts: replace(rollouts, sampler_log_probs=None)  # noqa: E731
    metrics = lab.step(trainer_of(lab, without_log_probs, GRPO(GRPO.Config(importance="none"))))
    assert "mismatch/mean" not in metrics
    assert metrics["grad_norm"] > 0


def test_older_rollouts_without_log_probs_are_refused(lab):
    """Sampling ahead requires log-probs, also from a policy that samples itself."""

    class WithoutLogProbs(lab.Tabular):
        def sample(self, *args, **options):
            return replace(super().sample(*args, **options), sampler_log_probs=None)

    with pytest.raises(UserError, match="WithoutLogProbs gives no log-probs"):
        lab.fit(lab.trainer(WithoutLogProbs(), ahead=1))


def test_an_exact_sampler_has_no_importance_weights(lab):
    trainer = trainer_of(lab, lambda rollouts: rollouts)
    trainer.experience.sampler.samplings["policy"].sampler.exact = True
    metrics = lab.step(trainer)
    assert "importance" not in metrics
    assert metrics["mismatch/max"] == 0.0


def test_a_micro_batch_may_be_empty(lab):
    """`Policy.microbatches` may return slices in which no row has a decision."""

    class Cuts(lab.Tabular):
        def microbatches(self, rollouts, budget, *, cut_decisions):
            rows = torch.arange(len(rollouts)).split(1)
            return [(row, slice(at, at + 2)) for row in rows for at in (0, 2, 4)]

    one, other = lab.step(lab.trainer(Cuts())), lab.step(lab.trainer())
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-12)
    assert one["mismatch/mean"] == other["mismatch/mean"] == 0.0


# ---- in a run


def run(lab, folder, **options):
    return train(
        prompts=lab.rows(),
        rewards=[lab.ones],
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        evaluation={"prompts": 1},
        output=folder,
        quiet=True,
        **{"policy": lab.Tabular(), "prompts.held_out": 0.3, **options},
    )


def test_an_engine_is_closed_if_another_part_cannot_be_built(lab, tmp_path):
    class Never(GRPO):
        def prepare(self, policy, weights):
            raise UserError("not today")

    class Refuses(lab.Tabular):
        def check_sampler(self, sampler):
            raise UserError("not today")

    for parts in ({"algorithm": Never()}, {"policy": Refuses()}):
        policy = parts.get("policy") or lab.Tabular()
        engine = Engine(policy)
        with pytest.raises(UserError, match="not today"):
            run(lab, tmp_path / "run", **{"policy": policy, "sampler": engine, **parts})
        assert engine.closed == 1


def test_a_class_of_samplers_is_built_with_the_policy(lab, tmp_path):
    engines = []

    class Mine(Engine):
        def __init__(self, policy):
            super().__init__(policy)
            engines.append(self)

    run(lab, tmp_path / "run", sampler=Mine)
    assert [engine.closed for engine in engines] == [1]


def test_a_sampler_for_another_policy_is_refused_before_it_is_built(lab, tmp_path):
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
