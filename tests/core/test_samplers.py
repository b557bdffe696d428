"""A sampler other than the policy: its weights, its log-probs, importance weights."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from groupwise import LogProbs, Sampler, objective, train
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise_algorithms.gspo import GSPO
from groupwise_algorithms.guard import Guard

BIAS = 0.07
"""The error of the engine's log-probs."""


class Engine(Sampler):
    """Copies the weights in `follow`, samples with the copy and adds `bias` to its log-probs.

    draws: purpose and weights of each call of `sample`.
    """

    def __init__(self, policy, *, bias=BIAS):
        self.copy, self.bias, self.version = copy.deepcopy(policy), bias, -1
        self.draws, self.followed, self.closed = [], [], 0

    def follow(self, policy, name, version):
        self.followed.append((name, version))
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        self.draws.append((purpose, self.copy.table.detach().clone()))
        rollouts = self.copy.sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)
        return replace(
            rollouts,
            sampler_log_probs=rollouts.sampler_log_probs + self.bias,
            versions=torch.full((len(rollouts),), self.version),
        )

    def close(self):
        self.closed += 1


class Recording(GRPO):
    """Records the batches of its loss."""

    def __init__(self, config=None):
        super().__init__(config)
        self.batches = []

    def loss(self, current, batch):
        answers = {"log_probs": current.log_probs.detach(), "entropy": current.entropy.detach()}
        self.batches.append({**batch, **answers})
        return super().loss(current, batch)


def trainer_of(lab, algorithm=None, *, bias=BIAS, **settings):
    policy = lab.Tabular()
    return lab.trainer(policy, algorithm, sampler=Engine(policy, bias=bias), **settings)


# ---- its log-probs are measured and corrected


def test_the_ratio_is_1_at_the_first_update_and_the_mismatch_is_measured(lab):
    algorithm = Recording()
    metrics = lab.step(trainer_of(lab, algorithm))
    assert metrics["clip_fraction"] == 0.0
    assert metrics["mismatch/mean"] == pytest.approx(BIAS, rel=1e-6)
    assert metrics["mismatch/max"] == pytest.approx(BIAS, rel=1e-6)
    assert metrics["mismatch/kl"] == pytest.approx(math.expm1(-BIAS) + BIAS, rel=1e-5)
    assert metrics["importance"] == pytest.approx(math.exp(-BIAS), rel=1e-6)
    for batch in algorithm.batches:
        assert torch.equal(batch["old_log_probs"], batch["log_probs"])


@pytest.mark.parametrize("settings", [{"epochs": 2}, {"updates_per_rollout": 2}])
def test_old_log_probs_of_later_updates_are_those_before_the_first(lab, settings):
    algorithm = Recording()
    trainer = trainer_of(lab, algorithm, learning_rate=0.3, held_out=0.0, steps=1, **settings)
    before = copy.deepcopy(trainer.policy)
    scored = trainer.experience.next(trainer.state)
    trainer.learn(scored)
    first, second = algorithm.batches[0], algorithm.batches[-1]
    assert torch.equal(first["old_log_probs"], first["log_probs"])
    ratio = (second["log_probs"] - second["old_log_probs"])[second["mask"]]
    # In a table, an update on other prompts does not change the logits of these.
    assert bool(ratio.abs().max() > 1e-2) == ("epochs" in settings)
    # Expected: the log-probs of the copy before training, for the rollouts of the last update.
    rows = slice(8, 16) if "updates_per_rollout" in settings else slice(0, 16)
    rollouts = lab.trained(scored).select(range(16)[rows])
    with torch.no_grad():
        old = before(rollouts).log_probs
    expected = {(round(float(v), 9)) for v in old[rollouts.mask]}
    values = {(round(float(v), 9)) for v in second["old_log_probs"][second["mask"]]}
    assert values <= expected
    assert len(values) > 3


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("floor", [0.0, 0.8])
@pytest.mark.parametrize(("mode", "cap"), [("truncate", 0.9), ("mask", 0.9), ("truncate", 9.0)])
def test_importance_weights_match_their_definition(lab, level, mode, cap, floor):
    generator = torch.Generator().manual_seed(0)
    policy, sampler = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64) * 0.3
    policy.requires_grad_()
    mask = torch.rand(6, 5, generator=generator) < 0.7
    sampler[~mask] = math.nan
    log_ratio = (policy - sampler).detach()
    bounds = {"mode": mode, "cap": cap, "floor": floor}
    weights = objective.importance_weights(policy, sampler, mask, level=level, **bounds)
    assert not weights.requires_grad
    capped = floored = 0
    for row in range(6):
        positions = [position for position in range(5) if mask[row, position]]
        log_ratios = {position: float(log_ratio[row, position]) for position in positions}
        for position in range(5):
            if position not in positions:
                assert weights[row, position] == 0
                continue
            weight = math.exp(
                log_ratios[position] if level == "token" else sum(log_ratios.values())
            )
            capped += weight > cap
            floored += weight < floor
            bounded = weight * (floor <= weight <= cap)
            if mode == "truncate":
                bounded = max(floor, min(weight, cap))
            assert float(weights[row, position]) == pytest.approx(bounded)
    assert bool(capped) == (cap < 1)
    assert bool(floored) == (floor > 0)


def test_importance_weights_refuse_an_unknown_level_and_mode():
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match='level must be "token" or "sequence"'):
        objective.importance_weights(one, one, one.bool(), level="group")
    with pytest.raises(ValueError, match='mode must be "truncate" or "mask"'):
        objective.importance_weights(one, one, one.bool(), mode="cut")


def test_importance_weights_multiply_only_the_surrogate(lab):
    """KL and entropy are not weighted; masked decisions stay in the denominators."""
    config = {"beta": 0.1, "entropy": 0.05, "importance_mode": "mask"}
    corrected = GRPO(GRPO.Config(**config, importance_cap=0.5))  # exp(-0.07) is above: all masked
    policy = lab.Tabular(prompts=2)
    rollouts = policy.sample(lab.rows(2), group_size=4, seeds=range(8))
    scores = lab.scores_of(torch.tensor([1.0, 0.0, 0.0, 2.0] * 2))
    current = policy(rollouts)
    sampled = {"sampler_log_probs": rollouts.sampler_log_probs + BIAS}
    batch = {
        **corrected.targets(scores, rollouts, {}),
        "mask": rollouts.mask,
        "old_log_probs": current.log_probs.detach(),
        "reference_log_probs": current.log_probs.detach() - 0.2,
    }
    weights = batch["weights"]
    kl_and_entropy = (0.1 * corrected.kl(current, batch) - 0.05 * current.entropy) * weights
    kl_and_entropy = kl_and_entropy.where(rollouts.mask, 0.0)
    torch.testing.assert_close(corrected.loss(current, {**batch, **sampled}), kl_and_entropy)
    uncapped = GRPO(GRPO.Config(**config, importance_cap=2.0))
    surrogate = (uncapped.loss(current, batch) - kl_and_entropy) * math.exp(-BIAS)
    torch.testing.assert_close(
        uncapped.loss(current, {**batch, **sampled}), surrogate + kl_and_entropy
    )
    untouched = GRPO(GRPO.Config(**config, importance="none"))
    torch.testing.assert_close(
        untouched.loss(current, {**batch, **sampled}), untouched.loss(current, batch)
    )


def test_sequence_level_corrections_couple_decisions():
    assert GRPO(GRPO.Config(importance="sequence")).couples_decisions
    assert GRPO(GRPO.Config(off_policy_mask=0.1)).couples_decisions
    assert not GRPO(GRPO.Config(importance="ratio")).couples_decisions
    assert not GRPO().couples_decisions


# ---- corrections by the surrogate's ratio and by a mask


def drifted(*, advantages):
    """Log-probs of a policy, before its step and of the sampler; a batch of four completions."""
    generator = torch.Generator().manual_seed(1)
    now, old, sampler = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64) * 0.4
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]).bool()
    sampler[~mask] = math.nan
    batch = {
        "old_log_probs": old,
        "sampler_log_probs": sampler,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "weights": mask / 7.0,
        "mask": mask,
    }
    return LogProbs(log_probs=now.requires_grad_()), batch


def decisions(batch):
    return [tuple(place) for place in batch["mask"].nonzero().tolist()]


def test_by_the_ratio_the_clip_range_is_around_the_sampler():
    current, batch = drifted(advantages=[1.0, -1.0, 2.0, -0.5])
    algorithm = GRPO(GRPO.Config(importance="ratio", clip_low=0.3, clip_high=0.2))
    assert algorithm.corrects
    loss, measured = algorithm.loss(current, batch), algorithm.measure(current, batch)
    (gradient,) = torch.autograd.grad(loss.sum(), current.log_probs)
    ratios = (current.log_probs - batch["sampler_log_probs"]).detach().exp()
    cut = 0
    for row, place in decisions(batch):
        advantage = float(batch["advantages"][row])
        ratio = float(ratios[row, place])
        beyond = ratio > 1.2 if advantage > 0 else ratio < 0.7
        slope = 0.0 if beyond else -ratio * advantage / 7
        assert float(gradient[row, place]) == pytest.approx(slope)
        assert float(measured["clip_fraction"][row, place]) == beyond
        bounded = min(max(ratio, 0.7), 1.2)
        expected = -min(ratio * advantage, bounded * advantage) / 7
        assert float(loss[row, place].detach()) == pytest.approx(expected)
        cut += beyond
    assert 0 < cut < len(decisions(batch))
    assert "importance" not in measured
    # Rollouts of the current policy come without the sampler's log-probs.
    del batch["sampler_log_probs"]
    assert torch.equal(
        algorithm.loss(current, batch),
        GRPO(GRPO.Config(clip_low=0.3, clip_high=0.2)).loss(current, batch),
    )


@pytest.mark.parametrize("importance", ["token", "ratio", "none"])
def test_the_off_policy_mask_leaves_out_wrong_completions_far_from_the_sampler(importance):
    """DeepSeek-V3.2, arXiv:2512.02556, eq. 9; `current` has moved from the old log-probs."""
    current, batch = drifted(advantages=[-1.0, -1.0, 2.0, -0.5])
    limit = 0.02
    plain = GRPO(GRPO.Config(importance=importance))
    masked = GRPO(GRPO.Config(importance=importance, off_policy_mask=limit))
    loss, expected = (each.loss(current, batch).detach() for each in (masked, plain))
    measured = masked.measure(current, batch)
    apart = (batch["sampler_log_probs"] - current.log_probs).detach()
    assert measured.keys() - plain.measure(current, batch).keys() == {"off_policy_mask"}
    left_out = []
    for row in range(4):
        places = [place for r, place in decisions(batch) if r == row]
        gaps = [float(apart[row, place]) for place in places]
        gone = float(batch["advantages"][row]) < 0 and sum(gaps) / len(gaps) > limit
        left_out.append(gone)
        for place in places:
            value = 0.0 if gone else float(expected[row, place])
            assert float(loss[row, place]) == pytest.approx(value)
            assert float(measured["off_policy_mask"][row, place]) == gone
    assert left_out.count(True) in (1, 2)


def test_the_off_policy_mask_compares_with_the_old_log_probs_of_an_own_sample():
    current, batch = drifted(advantages=[-1.0, -1.0, -1.0, -1.0])
    algorithm = GRPO(GRPO.Config(off_policy_mask=0.02))
    swapped = {**batch, "old_log_probs": batch["sampler_log_probs"]}
    del swapped["sampler_log_probs"]
    assert torch.equal(
        algorithm.measure(current, swapped)["off_policy_mask"],
        algorithm.measure(current, batch)["off_policy_mask"],
    )


def test_the_ratio_is_the_default_only_where_rollouts_are_a_step_older():
    def chosen(kind, ahead, **options):
        return kind.Config.model_validate(options, context={"ahead": ahead}).importance

    assert chosen(GRPO, True) == "ratio"
    assert chosen(GRPO, False) == GRPO.Config().importance == "token"
    assert chosen(GRPO, True, importance_cap=3.0) == "token"
    assert chosen(GRPO, True, importance="sequence") == "sequence"
    assert chosen(GSPO, True) == "token"  # its clip range is too narrow
    assert chosen(Guard, True) == "token"  # its ratio needs the mean by which it was drawn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance": "ratio", "importance_cap": 2.0}, "importance_cap bounds importance wei"),
        ({"importance_floor": 2.0}, "importance_floor must be below importance_cap = 2, found 2"),
    ],
)
def test_bounds_that_cannot_bound_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        GRPO.Config(**options)


# ---- its weights are the right ones


def test_a_sampler_follows_updates_and_averages(lab):
    trainer = trainer_of(lab, ema=0.5, evaluate_every=2, steps=6, learning_rate=0.3, bias=0.0)
    engine, policy = trainer.experience.sampler.samplings["policy"].sampler, trainer.policy
    plain = lab.trainer(ema=0.5, evaluate_every=2, steps=6, learning_rate=0.3)
    tables = {"train": [], "evaluate": []}

    def record_tables(step, _):
        tables["train"].append(policy.table.detach().clone())
        tables["evaluate"].append(trainer.learner.weights.copies("average")["table"].clone())

    first = policy.table.detach().clone()
    assert lab.fit(trainer, record_tables)
    assert lab.fit(plain)
    assert torch.equal(policy.table, plain.policy.table)
    tables_of_draws = {
        kind: [t for k, t in engine.draws if k == kind] for kind in ("train", "evaluate")
    }
    for table, expected_table in zip(
        tables_of_draws["train"], [first, *tables["train"][:-1]], strict=True
    ):
        assert torch.equal(table, expected_table)
    for table, expected_table in zip(
        tables_of_draws["evaluate"], tables["evaluate"][1:5:2], strict=True
    ):
        assert torch.equal(table, expected_table)
        assert not torch.equal(table, first)
    expected = [("policy", 0), ("policy", 1), ("average", 2), ("policy", 2), ("policy", 3)]
    assert engine.followed == [*expected, ("average", 4), ("policy", 4), ("policy", 5)]


def test_a_sampler_follows_a_loaded_checkpoint(lab, tmp_path):
    first, second = trainer_of(lab), trainer_of(lab)
    for _ in range(2):
        lab.step(first)
    lab.save(first, tmp_path)
    lab.step(second)
    lab.restore(second, tmp_path)
    one, other = lab.step(first), lab.step(second)
    assert one["reward"] == other["reward"]
    engine = second.experience.sampler.samplings["policy"].sampler
    assert engine.followed[-1] == ("policy", 2)
    assert torch.equal(
        engine.draws[-1][1], first.experience.sampler.samplings["policy"].sampler.draws[-1][1]
    )


def test_unchanged_weights_are_not_followed_again(lab):
    trainer = trainer_of(lab, evaluation={"samples": 3, "prompts": 2})
    trainer.evaluate()
    lab.step(trainer)
    assert trainer.experience.sampler.samplings["policy"].sampler.followed == [("policy", 0)]


def test_a_sampler_with_older_weights_is_refused(lab):
    trainer = trainer_of(lab)
    lab.step(trainer)
    trainer.experience.sampler.samplings["policy"].sampler.follow = lambda policy, name, version: (
        None
    )
    with pytest.raises(UserError, match=r"Engine sampled with the weights of step 0, expecte"):
        lab.step(trainer)


def test_a_sampler_without_versions_is_refused(lab):
    trainer = trainer_of(lab)
    engine = trainer.experience.sampler.samplings["policy"].sampler
    sample = engine.sample
    engine.sample = lambda *args, **options: replace(sample(*args, **options), versions=None)
    with pytest.raises(UserError, match="Engine does not say which weights it sampled w"):
        lab.step(trainer)


# ---- in a run


def run(lab, folder, policy, **sections):
    return train(
        policy=policy,
        prompts=lab.rows(),
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        evaluation={"prompts": 1},
        output=folder,
        quiet=True,
        **{"prompts.held_out": 0.3, "rewards": [lab.ones], **sections},
    )


def test_a_run_samples_only_with_its_engine(lab, tmp_path):
    policy = lab.Tabular()
    engine = Engine(policy)
    run(lab, tmp_path / "run", policy, sampler=engine)
    assert {purpose for purpose, _ in engine.draws} == {"train", "evaluate", "greedy"}
    assert engine.closed == 1


def test_an_engine_is_closed_when_the_run_fails(lab, tmp_path):
    def broken(completions):
        raise RuntimeError("no")

    policy = lab.Tabular()
    engine = Engine(policy)
    with pytest.raises(UserError, match="raised RuntimeError: no"):
        run(lab, tmp_path / "run", policy, sampler=engine, rewards=[broken])
    assert engine.closed == 1


def test_samplers_that_do_not_fit_the_policy_are_refused(lab, tmp_path):
    class Other(lab.Tabular):
        pass

    class Wants(Engine):
        requires = frozenset({"tokens"})

    class Draws(Engine):
        policy_class = Other

    class Refuses(lab.Tabular):
        def check_sampler(self, sampler):
            raise UserError("top_p cuts what an engine draws from")

    for policy, engine, message in [
        (lab.Tabular(), Draws, "Draws draws for Other, and the policy is a Tabular"),
        (lab.Tabular(), Wants, "Wants needs tokens of the policy, which Tabular does not provide"),
        (Refuses(), Engine, "top_p cuts what an engine draws from"),
        (lab.Tabular(), lambda _: 3, "sampler: expected a groupwise.Sampler, found int"),
    ]:
        with pytest.raises(UserError, match=message):
            run(lab, tmp_path / "run", policy, sampler=engine(policy))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
