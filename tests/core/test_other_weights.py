"""Algorithms without log-probs, with kept weights, with a state, or with a value."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.repeated import lines
from torch import nn

from groupwise import Algorithm, LogProbs, Policy, Rollouts, objective, train
from groupwise.advantages import group_relative
from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.storage.checkpoint import Checkpoints


class Thrower(Policy):
    """Throws at a number, its `aim`: a completion is the aim plus noise. It has no log-probs."""

    provides = frozenset({"aim", "hit"})

    def __init__(self):
        super().__init__()
        self.aim = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        rows = [row for row in prompts for _ in range(group_size)]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        noise = torch.stack(
            [torch.randn((), generator=generator) for generator in generators]
        ).double()
        hits = self.aim.detach() + (0.0 if purpose == "greedy" else 0.5) * noise
        return Rollouts(
            prompts=rows,
            completions=hits.tolist(),
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            trajectory={"hits": hits.unsqueeze(1)},
        )

    def forward(self, rollouts, decisions=slice(None)):
        hits = rollouts.tensor("hits")[:, decisions]
        return LogProbs(log_probs=None, extra={"aim": self.aim.expand(hits.shape), "hit": hits})


class Regress(Algorithm):
    """Moves the aim towards hits that were better than their group; samples with a slow copy.

    As in DiffusionNFT (arXiv:2509.16117): no ratio, and older weights sample. Its state is
    `total`, the sum of all rewards.
    """

    needs = frozenset({"aim", "hit"})
    old = frozenset({"aim"})
    samples_with = "slow"

    def __init__(self, decay=0.5):
        self.decay, self.total = decay, 0.0

    def prepare(self, policy, weights):
        weights.keep("slow")

    def targets(self, scores, rollouts, inputs):
        self.total += float(scores.total.sum())
        return {
            "advantages": group_relative(scores.total, rollouts.groups).float(),
            "weights": objective.weights(rollouts.mask, normalize="token"),
        }

    def loss(self, current, batch):
        aim, advantages = current.extra["aim"], batch["advantages"].unsqueeze(1)
        pull = advantages * (aim - current.extra["hit"]).square()
        return (pull + 0.01 * (aim - batch["old_aim"]).square()) * batch["weights"]

    def measure(self, current, batch):
        return {"aim": current.extra["aim"]}

    def end_step(self, weights, step):
        weights.blend("slow", self.decay)

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def near_two(completions, **_):
    return [-abs(hit - 2.0) for hit in completions]


def run(folder, *, steps=6, resume=False, algorithm=None, policy=None, **options):
    settings = {"groups_per_step": 2, "group_size": 4, "learning_rate": 0.05, "steps": steps}
    return train(
        policy=policy or Thrower(),
        algorithm=algorithm or Regress(),
        prompts=[{"prompt": f"throw {number}"} for number in range(6)],
        rewards=[near_two],
        train={**settings, **options},
        evaluation={"prompts": 1},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.3},
    )


def kept_weights(folder, name):
    """The weights kept under a name, from the run's last checkpoint."""
    return load_file(Checkpoints(folder / "checkpoints").last() / f"kept_{name}.safetensors")


def lines_of_steps(folder):
    """The metrics of steps, without lines that have only an evaluation."""
    return [line for line in lines(folder) if "loss" in line]


@pytest.mark.slow
def test_a_policy_without_log_probs_is_trained(tmp_path):
    result = run(tmp_path / "run", steps=40)
    assert result.after["reward"] > result.before["reward"] + 0.5
    last = lines_of_steps(tmp_path / "run")[-1]
    assert "mismatch/mean" not in last
    assert last["aim"] > 0.5


class Copying(Regress):
    """The same with the slow copy in `copies`, and its aim in the loss."""

    copies = {"slow": frozenset({"aim"})}  # noqa: RUF012

    def prepare(self, policy, weights):
        pass

    def measure(self, current, batch):
        return {"slow": batch["slow_aim"]}


def test_copies_are_kept_from_the_start_and_their_outputs_are_in_the_batch(tmp_path):
    for name, algorithm in (("plain", Regress()), ("copying", Copying())):
        run(tmp_path / name, algorithm=algorithm)
    plain, copying = (kept_weights(tmp_path / name, "slow") for name in ("plain", "copying"))
    assert torch.equal(plain["aim"], copying["aim"])
    seen = [line["slow"] for line in lines_of_steps(tmp_path / "copying")]
    aims = [line["aim"] for line in lines_of_steps(tmp_path / "plain")]
    blended, expected = 0.0, []
    for aim in aims[1:]:  # as an update begins, it is that of the end of the step before
        expected.append(blended)
        blended = 0.5 * blended + 0.5 * aim
    assert seen == pytest.approx([*expected, blended], abs=1e-6)  # as metrics are rounded


def test_a_copy_must_not_have_the_name_of_other_outputs(tmp_path):
    algorithm = Copying()
    algorithm.copies = {"old": frozenset({"aim"})}
    with pytest.raises(ValueError, match="'old' names other weights or outputs of every run"):
        run(tmp_path / "run", algorithm=algorithm)


def test_rollouts_are_drawn_with_the_weights_of_samples_with(tmp_path):
    aims = []

    class Recording(Thrower):
        def sample(self, *args, purpose="train", **options):
            aims.append((purpose, self.aim.item()))
            return super().sample(*args, purpose=purpose, **options)

    policy = Recording()
    run(tmp_path / "run", policy=policy, algorithm=Regress(decay=0.9))
    training = [aim for purpose, aim in aims if purpose == "train"]
    assert len(training) == 6
    assert abs(training[-1]) < abs(policy.aim.item()) / 2
    assert next(aim for purpose, aim in reversed(aims)) == policy.aim.item()
    assert kept_weights(tmp_path / "run", "slow")["aim"].item() != policy.aim.item()


def test_kept_weights_and_state_are_resumed_exactly(tmp_path):
    uninterrupted, halved = Regress(), Regress()
    run(tmp_path / "through", algorithm=uninterrupted)
    run(tmp_path / "halved", steps=3, algorithm=Regress())
    run(tmp_path / "halved", resume=True, algorithm=halved)
    assert lines_of_steps(tmp_path / "halved") == lines_of_steps(tmp_path / "through")
    assert halved.total == uninterrupted.total != 0
    files = [Checkpoints(tmp_path / name / "checkpoints").last() for name in ("through", "halved")]
    for name in ("weights.safetensors", "kept_slow.safetensors", "optimizer.safetensors"):
        assert files[0].joinpath(name).read_bytes() == files[1].joinpath(name).read_bytes()


def test_an_algorithm_that_needs_missing_outputs_is_refused_with_their_names(tmp_path):
    with pytest.raises(UserError, match=r"algorithm 'GRPO' needs log_probs, which policy 'Throwe"):
        run(tmp_path / "run", algorithm=GRPO())

    class Forgets(Regress):
        old = frozenset({"log_probs"})  # the default of algorithms

    with pytest.raises(UserError, match="algorithm 'Forgets' needs log_probs"):
        run(tmp_path / "run", algorithm=Forgets())

    class Mean(Regress):
        reference = frozenset({"mean"})

    with pytest.raises(UserError, match="algorithm 'Mean' needs mean"):
        run(tmp_path / "run", algorithm=Mean())


def test_an_algorithm_chooses_the_decisions_of_a_step_once_before_all_its_updates(lab):
    """Here the second half of each rollout."""
    chosen = []

    class Ends(GRPO):
        def with_decisions(self, rollouts, step):
            places = torch.arange(rollouts.mask.shape[1])
            later = places >= rollouts.lengths.unsqueeze(1) // 2
            chosen.append((step, int((rollouts.mask & later).sum()), int(rollouts.mask.sum())))
            return replace(rollouts, mask=rollouts.mask & later)

        def active(self, targets):
            return torch.ones(len(targets["weights"]), dtype=torch.bool)

    trainer = lab.trainer(lab.Tabular(), Ends(), updates_per_rollout=2, epochs=2, held_out=0.0)
    trained = [lab.step(trainer)["trained_decisions"] for _ in range(2)]
    assert [step for step, _, _ in chosen] == [0, 1]
    assert trained == [2 * part for _, part, _ in chosen]
    assert all(part < whole for _, part, whole in chosen)


# ---- weights kept at any time, and runs that fail


class KeepsLate(Regress):
    """Begins to keep weights in the second step."""

    samples_with = None

    def prepare(self, policy, weights):
        pass

    def end_step(self, weights, step):
        if step == 2:
            weights.keep("late")
        elif step > 2:
            weights.blend("late", 0.5)


@pytest.mark.parametrize("kind", ["late", "mixed", "replaced"])
@pytest.mark.slow(after=1)
def test_weights_kept_or_blended_during_a_run_are_resumed_exactly(lab, tmp_path, kind):
    def train_named(name, **options):
        if kind == "late":
            return run(tmp_path / name, algorithm=KeepsLate(), **options)
        mix = {"reference_mix": 0.5} if kind == "mixed" else {}
        return train(
            policy=lab.Tabular(),
            algorithm=GRPO(GRPO.Config(beta=0.1, reference_every=2, **mix)),
            prompts=lab.rows(),
            rewards=[lab.ones],
            train={"groups_per_step": 2, "group_size": 4, "learning_rate": 0.3}
            | {"steps": options.get("steps", 6)},
            evaluation={"prompts": 1},
            output=tmp_path / name,
            resume=options.get("resume", False),
            quiet=True,
            **{"prompts.held_out": 0.3},
        )

    train_named("through")
    train_named("halved", steps=3)
    train_named("halved", resume=True)
    assert lines_of_steps(tmp_path / "halved") == lines_of_steps(tmp_path / "through")
    name = "late" if kind == "late" else "reference"
    copies = [kept_weights(tmp_path / folder, name) for folder in ("through", "halved")]
    assert copies[0]
    for name, value in copies[0].items():
        assert torch.equal(value, copies[1][name])


class Plain(Regress):
    """Without a copy: the current weights sample."""

    samples_with = None

    def prepare(self, policy, weights):
        pass

    def end_step(self, weights, step):
        pass


def test_a_copy_that_is_new_at_a_resume_begins_with_the_weights_of_then(tmp_path):
    """With the first ones, the untrained policy would sample."""
    run(tmp_path / "run", steps=4, algorithm=Plain())
    then = load_file(Checkpoints(tmp_path / "run" / "checkpoints").last() / "weights.safetensors")
    run(tmp_path / "run", steps=5, resume=True, algorithm=Copying(decay=1.0))
    kept = kept_weights(tmp_path / "run", "slow")
    assert kept
    assert all(torch.equal(value, then[name]) for name, value in kept.items())


def test_an_average_is_dropped_if_the_resumed_run_has_no_ema(tmp_path):
    run(tmp_path / "run", steps=2, ema=0.9)
    run(tmp_path / "run", steps=4, resume=True)
    assert not (
        Checkpoints(tmp_path / "run" / "checkpoints").last() / "kept_average.safetensors"
    ).exists()
    assert [line["step"] for line in lines_of_steps(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.parametrize("where", ["loss", "end_step", "end_step without an update"])
@pytest.mark.slow(after=1)
def test_a_failing_algorithm_leaves_a_checkpoint_of_a_complete_step(tmp_path, where):
    """Changes to its state and weights in the failed step are not saved."""

    class Fails(Regress):
        def loss(self, current, batch):
            if self.failing and where == "loss":
                raise RuntimeError("no")
            return super().loss(current, batch)

        def active(self, targets):
            return super().active(targets) & ("without" not in where)

        def targets(self, scores, rollouts, inputs):
            self.calls += 1
            self.failing = self.fail and self.calls == 4
            return super().targets(scores, rollouts, inputs)

        def end_step(self, weights, step):
            super().end_step(weights, step)
            if self.failing and where != "loss":
                raise RuntimeError("no")

        calls, failing, fail = 0, False, False

    def train_named(name, *, fail=False, **options):
        algorithm = Fails()
        algorithm.fail = fail
        run(tmp_path / name, algorithm=algorithm, checkpoint_every=2, **options)
        return algorithm

    uninterrupted = train_named("through")
    with pytest.raises(RuntimeError, match="no"):
        train_named("failed", fail=True)
    resumed = train_named("failed", resume=True)
    assert resumed.total == uninterrupted.total
    assert lines_of_steps(tmp_path / "failed") == lines_of_steps(tmp_path / "through")


def test_unknown_names_in_sees_are_refused_before_the_run(tmp_path):
    for name in ("value", "sampler_log_probs", "reference_aim"):

        class Odd(Regress):
            target_inputs = frozenset({name})

        with pytest.raises(
            UserError, match=f"algorithm 'Odd': expected in `target_inputs` .*, found '{name}'"
        ):
            run(tmp_path / "run", algorithm=Odd())


# ---- targets that use a value


def test_targets_receive_the_values_named_in_sees(lab):
    """As for a critic: values from before the first update, cut to the rollouts of the update."""
    calls = []

    class Valued(lab.Tabular):
        provides = frozenset({"log_probs", "value"})

        def forward(self, rollouts, decisions=slice(None)):
            output = super().forward(rollouts, decisions)
            value = output.log_probs.exp() + self.table.sum() * 0
            return LogProbs(log_probs=output.log_probs, extra={"value": value})

    class WithBaseline(GRPO):
        target_inputs = frozenset({"old_value", "old_log_probs"})
        old = frozenset({"log_probs", "value"})
        needs = frozenset({"log_probs", "value"})

        def targets(self, scores, rollouts, inputs):
            calls.append((rollouts, inputs))
            targets = super().targets(scores, rollouts, inputs)
            advantages = targets["advantages"].unsqueeze(1) - inputs["old_value"].float()
            return {**targets, "advantages": advantages}

        def loss(self, current, batch):
            assert batch["old_value"].shape == batch["mask"].shape
            return super().loss(current, batch)

    policy = Valued()
    trainer = lab.trainer(policy, WithBaseline(), updates_per_rollout=2, held_out=0.0)
    scored = trainer.experience.next(trainer.state)
    with torch.no_grad():
        expected = policy(lab.trained(scored))
    trainer.learn(scored)
    assert len(calls) == 2
    for number, (rollouts, inputs) in enumerate(calls):
        rows, mask = slice(8 * number, 8 * number + 8), rollouts.mask
        assert inputs.keys() == {"old_value", "old_log_probs"}
        width = mask.shape[1]
        for name, values in (("value", expected.extra["value"]), ("log_probs", expected.log_probs)):
            torch.testing.assert_close(inputs[f"old_{name}"][mask], values[rows, :width][mask])
        assert not rollouts.trajectory
        assert set(rollouts.versions.tolist()) == {0}
