"""Another sampler than the policy: what it must follow, what is measured of it and corrected."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from groupwise import Sampler, objective, train
from groupwise.algorithms.grpo import GRPO
from groupwise.errors import UserError
from groupwise.run import snapshot
from groupwise.storage.checkpoint import Checkpoints

BIAS = 0.07
"""What the engine adds to its log-probs."""


class Engine(Sampler):
    """Copies weights when told to, draws with the copy, and is off by a known amount.

    drew: for every call its purpose, and the weights it drew with.
    """

    def __init__(self, policy, *, bias=BIAS):
        self.copy, self.bias, self.version = copy.deepcopy(policy), bias, -1
        self.drew, self.followed, self.closed = [], [], 0

    def follow(self, policy, name, version):
        self.followed.append((name, version))
        self.copy.load_state_dict(policy.state_dict())
        self.version = version

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        self.drew.append((purpose, self.copy.table.detach().clone()))
        rollouts = self.copy.sample(prompts, group_size=group_size, seeds=seeds, purpose=purpose)
        return replace(
            rollouts,
            sampler_log_probs=rollouts.sampler_log_probs + self.bias,
            versions=torch.full((len(rollouts),), self.version),
        )

    def close(self):
        self.closed += 1


class Recorded(GRPO):
    """Keeps every batch that its loss sees."""

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


# ---- what it says is measured, and corrected


def test_ratio_is_one_at_the_first_update_and_the_gap_is_measured(lab):
    algorithm = Recorded()
    metrics = lab.step(trainer_of(lab, algorithm))
    assert metrics["clip_fraction"] == 0.0
    assert metrics["mismatch/mean"] == pytest.approx(BIAS, rel=1e-6)
    assert metrics["mismatch/max"] == pytest.approx(BIAS, rel=1e-6)
    assert metrics["mismatch/kl"] == pytest.approx(math.expm1(-BIAS) + BIAS, rel=1e-5)
    assert metrics["importance"] == pytest.approx(math.exp(-BIAS), rel=1e-6)
    for batch in algorithm.batches:
        assert torch.equal(batch["old_log_probs"], batch["log_probs"])


@pytest.mark.parametrize("settings", [{"epochs": 2}, {"updates_per_rollout": 2}])
def test_later_updates_compare_with_the_policy_before_the_first(lab, settings):
    algorithm = Recorded()
    trainer = trainer_of(lab, algorithm, learning_rate=0.3, held_out=0.0, steps=1, **settings)
    before = copy.deepcopy(trainer.policy)
    scored = trainer.experience.next(trainer.state)
    trainer.learn(scored)
    first, second = algorithm.batches[0], algorithm.batches[-1]
    assert torch.equal(first["old_log_probs"], first["log_probs"])
    ratio = (second["log_probs"] - second["old_log_probs"])[second["mask"]]
    # Updates of other prompts do not move this policy's own: its logits are a table.
    assert bool(ratio.abs().max() > 1e-2) == ("epochs" in settings)
    # A restatement: what the untouched copy says of the very rollouts of the last update.
    rows = slice(8, 16) if "updates_per_rollout" in settings else slice(0, 16)
    rollouts = scored.rollouts.select(range(16)[rows])
    with torch.no_grad():
        old = before(rollouts).log_probs
    known = {(round(float(v), 9)) for v in old[rollouts.mask]}
    seen = {(round(float(v), 9)) for v in second["old_log_probs"][second["mask"]]}
    assert seen <= known
    assert len(seen) > 3


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("mode", "cap"), [("truncate", 0.9), ("mask", 0.9), ("truncate", 9.0)])
def test_importance_weights_against_a_restatement(lab, level, mode, cap):
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64) * 0.3
    ours.requires_grad_()
    mask = torch.rand(6, 5, generator=generator) < 0.7
    theirs[~mask] = math.nan
    gap = (ours - theirs).detach()
    weights = objective.importance_weights(ours, theirs, mask, level=level, mode=mode, cap=cap)
    assert not weights.requires_grad
    cut = 0
    for row in range(6):
        places = [place for place in range(5) if mask[row, place]]
        gaps = {place: float(gap[row, place]) for place in places}
        for place in range(5):
            if place not in places:
                assert weights[row, place] == 0
                continue
            weight = math.exp(gaps[place] if level == "token" else sum(gaps.values()))
            cut += weight > cap
            bounded = min(weight, cap) if mode == "truncate" else weight * (weight <= cap)
            assert float(weights[row, place]) == pytest.approx(bounded)
    assert bool(cut) == (cap < 1)


def test_importance_weights_refuse_other_words():
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match='level must be "token" or "sequence"'):
        objective.importance_weights(one, one, one.bool(), level="group")
    with pytest.raises(ValueError, match='mode must be "truncate" or "mask"'):
        objective.importance_weights(one, one, one.bool(), mode="cut")


def test_the_correction_multiplies_the_surrogate_alone(lab):
    """KL and entropy are of the policy; what is masked stays in the denominators."""
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
    rest = (0.1 * corrected.kl(current, batch) - 0.05 * current.entropy) * weights
    rest = rest.where(rollouts.mask, 0.0)
    torch.testing.assert_close(corrected.loss(current, {**batch, **sampled}), rest)
    uncapped = GRPO(GRPO.Config(**config, importance_cap=2.0))
    surrogate = (uncapped.loss(current, batch) - rest) * math.exp(-BIAS)
    torch.testing.assert_close(uncapped.loss(current, {**batch, **sampled}), surrogate + rest)
    untouched = GRPO(GRPO.Config(**config, importance="none"))
    torch.testing.assert_close(
        untouched.loss(current, {**batch, **sampled}), untouched.loss(current, batch)
    )


def test_a_sequence_weight_couples_decisions():
    assert GRPO(GRPO.Config(importance="sequence")).couples_decisions
    assert not GRPO().couples_decisions


# ---- it draws with the right weights


def test_it_follows_updates_and_averages(lab):
    trainer = trainer_of(lab, ema=0.5, evaluate_every=2, steps=6, learning_rate=0.3, bias=0.0)
    engine, policy = trainer.experience.team.sampling.sampler, trainer.policy
    own = lab.trainer(ema=0.5, evaluate_every=2, steps=6, learning_rate=0.3)
    tables = {"train": [], "evaluate": []}

    def note(step, _):
        tables["train"].append(policy.table.detach().clone())
        tables["evaluate"].append(policy.kept("average")["table"].clone())

    first = policy.table.detach().clone()
    assert lab.fit(trainer, note)
    assert lab.fit(own)
    assert torch.equal(policy.table, own.policy.table)
    drawn = {kind: [t for k, t in engine.drew if k == kind] for kind in ("train", "evaluate")}
    for drew, should in zip(drawn["train"], [first, *tables["train"][:-1]], strict=True):
        assert torch.equal(drew, should)
    for drew, should in zip(drawn["evaluate"], tables["evaluate"][1:5:2], strict=True):
        assert torch.equal(drew, should)
        assert not torch.equal(drew, first)
    expected = [("policy", 0), ("policy", 1), ("average", 2), ("policy", 2), ("policy", 3)]
    assert engine.followed == [*expected, ("average", 4), ("policy", 4), ("policy", 5)]


def test_it_follows_a_loaded_checkpoint(lab, tmp_path):
    first, second = trainer_of(lab), trainer_of(lab)
    for _ in range(2):
        lab.step(first)
    Checkpoints(tmp_path).save(2, snapshot.take(first))
    lab.step(second)
    snapshot.restore(second, Checkpoints(tmp_path).load())
    one, other = lab.step(first), lab.step(second)
    assert one["reward"] == other["reward"]
    engine = second.experience.team.sampling.sampler
    assert engine.followed[-1] == ("policy", 2)
    assert torch.equal(engine.drew[-1][1], first.experience.team.sampling.sampler.drew[-1][1])


def test_unchanged_weights_are_not_copied_again(lab):
    trainer = trainer_of(lab, evaluation={"samples": 3, "prompts": 2})
    trainer.evaluate()
    lab.step(trainer)
    assert trainer.experience.team.sampling.sampler.followed == [("policy", 0)]


def test_one_that_was_not_told_is_caught(lab):
    trainer = trainer_of(lab)
    lab.step(trainer)
    trainer.experience.team.sampling.sampler.follow = lambda policy, name, version: None
    with pytest.raises(UserError, match=r"Engine sampled with the weights of step 0, expecte"):
        lab.step(trainer)


def test_one_that_does_not_say_is_refused(lab):
    trainer = trainer_of(lab)
    engine = trainer.experience.team.sampling.sampler
    sample = engine.sample
    engine.sample = lambda *rest, **more: replace(sample(*rest, **more), versions=None)
    with pytest.raises(UserError, match="Engine does not say which weights it sampled w"):
        lab.step(trainer)


# ---- in a run


def run(lab, folder, policy, **more):
    return train(
        policy=policy,
        prompts=lab.rows(),
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        evaluation={"prompts": 1},
        output=folder,
        quiet=True,
        **{"prompts.held_out": 0.3, "rewards": [lab.ones], **more},
    )


def test_a_run_by_an_engine(lab, tmp_path):
    policy = lab.Tabular()
    engine = Engine(policy)
    run(lab, tmp_path / "run", policy, sampler=engine)
    assert {purpose for purpose, _ in engine.drew} == {"train", "evaluate", "greedy"}
    assert engine.closed == 1


def test_an_engine_is_closed_when_the_run_fails(lab, tmp_path):
    def broken(completions):
        raise RuntimeError("no")

    policy = lab.Tabular()
    engine = Engine(policy)
    with pytest.raises(UserError, match="raised RuntimeError: no"):
        run(lab, tmp_path / "run", policy, sampler=engine, rewards=[broken])
    assert engine.closed == 1


def test_samplers_that_do_not_fit(lab, tmp_path):
    class Other(lab.Tabular):
        pass

    class Wants(Engine):
        requires = frozenset({"tokens"})

    class Draws(Engine):
        policy_class = Other

    class Refuses(lab.Tabular):
        def check_sampler(self, sampler):
            raise UserError("top_p cuts what an engine draws from")

    for policy, engine, words in [
        (lab.Tabular(), Draws, "Draws draws for Other, and the policy is a Tabular"),
        (lab.Tabular(), Wants, "Wants needs tokens of the policy, which Tabular does not provide"),
        (Refuses(), Engine, "top_p cuts what an engine draws from"),
        (lab.Tabular(), lambda _: 3, "sampler: expected a groupwise.Sampler, found int"),
    ]:
        with pytest.raises(UserError, match=words):
            run(lab, tmp_path / "run", policy, sampler=engine(policy))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
