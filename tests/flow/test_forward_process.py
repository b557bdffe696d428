"""The policy `forward_process`: final latents of the ODE, noised at levels that are drawn."""

import math
from itertools import count

import pytest
import torch
from tests.flow.regress import Regress
from tests.repeated import step_lines

from groupwise import testing, train
from groupwise.kit.errors import UserError
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.forward_process import ForwardProcess
from groupwise_flow.noising import uniform, with_levels

SEEDS = [1, 2, 3, 4]
ANIMALS = ("cat", "dog")


def new(lab, **options):
    return lab.policy(kind=ForwardProcess, **options)


def sample(policy, rows, purpose="train", seeds=SEEDS):
    return policy.sample(rows, group_size=2, seeds=seeds, purpose=purpose)


# ---- how images are drawn, and what is kept of them


def test_images_of_training_are_those_of_evaluation_with_as_many_steps(lab):
    policy = new(lab, steps=7, guidance=2.0)
    drawn, evaluated = (sample(policy, lab.rows, purpose) for purpose in ("train", "evaluate"))
    assert torch.equal(lab.images_of(drawn), lab.images_of(evaluated))
    assert drawn.mask.shape == (4, 1)
    assert evaluated.mask.shape == (4, 0)
    assert not evaluated.trajectory


def test_only_the_final_latents_are_kept(lab):
    def stored(kind, **options):
        """Bytes of latents that a rollout keeps in memory, and what the estimate says."""
        policy = lab.policy(kind=kind, steps=10, **options)
        rollouts = sample(policy, lab.rows)
        columns = [c for c in rollouts.trajectory.values() if not isinstance(c, torch.Tensor)]
        size = sum(column[0].numel() * column[0].element_size() for column in columns)
        estimated = policy.estimate_cpu(
            policy.config, rollouts=1, prompts=0, facts=frozenset(), references=0
        )
        return size, estimated["latents of a step"]

    latents = 4 * math.prod(new(lab).adapter.latent_shape)
    assert stored(ForwardProcess) == (latents, latents)
    flow = type(lab.policy())
    assert stored(flow) == (10 * latents, 10 * latents)


def test_the_algorithm_gets_the_velocity_and_what_it_should_be(lab, rounding):
    policy = new(lab, decisions=3)
    rollouts = sample(policy, lab.rows)
    outputs = policy(rollouts).extra
    assert outputs.keys() | {"log_probs"} == policy.provides
    sigma = outputs["sigma"].view(4, 3, *[1] * 3)
    noise = outputs["target_velocity"] + outputs["clean"]
    assert 0.9 < noise.std() < 1.1
    restored = (1 - sigma) * outputs["clean"] + sigma * noise
    rounding.same(lambda: policy(rollouts).extra["noised"], restored)
    rounding.same(lambda: policy.guided.decode(outputs["clean"][:, 0]), lab.images_of(rollouts))

    def velocity():
        conditions = policy.guided.conditions(rollouts.prompts)
        at = outputs["noised"][:, 1], outputs["sigma"][:, 1]
        return policy.adapter.velocity(*at, conditions, guidance=1.0)

    rounding.same(velocity, outputs["velocity"][:, 1])


def test_the_model_runs_for_the_velocity_alone(lab):
    policy = new(lab)
    rollouts = sample(policy, lab.rows)
    sizes = lab.calls(policy)
    assert policy(rollouts, outputs=frozenset({"clean"})).extra.keys() == {"clean"}
    assert sizes == []
    assert policy(rollouts, outputs=frozenset({"velocity"})).extra.keys() == {"velocity"}
    assert policy(rollouts, outputs=frozenset({"log_probs"})).outputs.keys() == {"log_probs"}
    assert sizes == [4, 4]


# ---- noise levels


def test_levels_unless_the_algorithm_draws_are_one_of_each_part_of_the_schedule(lab):
    policy = new(lab, steps=6, decisions=3)
    rows = [{"prompt": f"a cat {number}"} for number in range(8)]
    levels = sample(policy, rows, seeds=list(range(16))).tensor("sigma")
    schedule = policy.sigmas[:-1]
    for number in range(3):
        part = schedule[2 * number : 2 * number + 2]
        assert set(levels[:, number].tolist()) == set(part.tolist())
    many = sample(new(lab, steps=2, decisions=5), lab.rows).tensor("sigma")
    assert many.shape == (4, 5)


def test_levels_and_noise_depend_on_the_rollouts_seed_and_the_step_alone(lab):
    policy = new(lab, decisions=2)
    whole = sample(policy, lab.rows)
    alone = whole.select([2])
    for step in (0, 5):
        assert torch.equal(uniform(whole, step)[2:3], uniform(alone, step))
    assert not bool((uniform(whole, 0) == uniform(whole, 1)).any())
    outputs = frozenset({"noised"})
    halves = torch.full(whole.mask.shape, 0.5)
    first, later = (
        policy(with_levels(whole, halves, step), outputs=outputs).extra["noised"] for step in (0, 1)
    )
    single = with_levels(alone, halves[:1], 0)
    assert torch.equal(
        policy(single, slice(1, 2), outputs=outputs).extra["noised"], first[2:3, 1:2]
    )
    noises = torch.stack([first, later]).flatten(0, 2)  # of 2 steps, 4 rollouts and 2 decisions
    assert len(noises.flatten(1).unique(dim=0)) == 16


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (torch.full((4, 3), 0.5), r"shape \[4, 3\], expected that of the mask, \[4, 2\]"),
        (torch.full((4, 2), 1.5), "expected levels between 0 and 1"),
        (torch.full((4, 2), math.nan), "expected levels between 0 and 1"),
    ],
)
def test_impossible_levels_are_refused(lab, levels, message):
    rollouts = sample(new(lab, decisions=2), lab.rows)
    with pytest.raises(ValueError, match=message):
        with_levels(rollouts, levels, 0)


# ---- laws


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "settings",
    [
        {"decisions": 3},
        {"decisions": 2, "guidance": 3.0, "lora": {"rank": 2}},
        {"architecture": "sd3.5", "gradient_checkpointing": True},
    ],
)
def test_laws_of_policies(lab, settings):
    policy = new(lab, **settings)
    lab.nudge(policy)
    testing.check_policy(policy, lab.rows, group_size=2)
    testing.check_sampler(policy, policy, lab.rows, group_size=2)


def test_laws_of_algorithms_hold_for_one_that_regresses_velocities():
    def velocity(log_probs):
        return torch.stack([log_probs.sin(), log_probs.cos()], dim=2)

    extras = {"velocity": velocity, "target_velocity": lambda log_probs: velocity(log_probs) + 1}
    testing.check_algorithm(Regress(), extras=extras)


def test_the_gradient_of_an_update_does_not_depend_on_its_micro_batches(lab, rounding):
    policy, algorithm = new(lab, decisions=3, batch=4), Regress()
    rollouts = algorithm.with_decisions(sample(policy, lab.rows), 0)
    with torch.no_grad():
        reference = policy(rollouts, outputs=frozenset({"velocity"})).extra["velocity"] + 0.5

    def gradient(budget):
        policy.zero_grad()
        outputs = {"reference_velocity": reference}
        lab.update(policy, algorithm, rollouts, outputs=outputs, budget=budget)
        return lab.gradient(policy)

    rounding.same(lambda: gradient(10**9), gradient(1), gradient(2))


# ---- runs


def run(lab, folder, *, algorithm=None, steps=4, resume=False, policy=None, **options):
    settings = {"steps": 4, "evaluation_steps": 4, "decisions": 2, "lora": {"rank": 2}}
    settings |= policy or {}
    usual = {"groups_per_step": 2, "group_size": 4, "learning_rate": 3e-3}
    torch.manual_seed(1)
    return train(
        policy=ForwardProcess(lab.settings(kind=ForwardProcess, **settings)),
        algorithm=algorithm or Regress(),
        prompts=[{"prompt": f"{letter} {animal}"} for letter in "abcdefgh" for animal in ANIMALS],
        rewards=[lab.redness],
        train={**usual, "steps": steps, **options},
        evaluation={"prompts": 2},
        output=folder,
        resume=resume,
        quiet=True,
        **{"prompts.held_out": 0.5},
    )


def files(folder, name):
    """The last checkpoint's tensors of this name."""
    return max((folder / "checkpoints").rglob(f"{name}.safetensors")).read_bytes()


@pytest.mark.slow
def test_a_run_learns_without_path_or_log_probs(lab, tmp_path):
    result = run(
        lab,
        tmp_path / "run",
        policy={"lora": None},
        algorithm=Regress(Regress.Config(beta=1.0, decay=0.3)),
        steps=15,
        group_size=8,
        learning_rate=0.01,
    )
    assert result.after["rewards/redness"] > result.before["rewards/redness"] + 0.01
    lines = step_lines(tmp_path / "run")
    assert [line["trained_decisions"] for line in lines] == [2 * 8 * 2] * 15
    assert lines[0]["kl"] == 0
    assert lines[-1]["kl"] > 0
    assert "mismatch/max" not in lines[-1]


@pytest.mark.slow
def test_metrics_do_not_depend_on_micro_batches(lab, tmp_path, rounding):
    folders = (tmp_path / f"run {number}" for number in count())

    def metrics(**options):
        folder = next(folders)
        run(lab, folder, updates_per_rollout=2, learning_rate=1e-4, **options)
        names = ("loss", "kl", "grad_norm", "reward")
        return [{name: line[name] for name in names} for line in step_lines(folder)]

    rounding.same(metrics, metrics(microbatch=3), unit=1.0, digits=6)


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(lab, tmp_path):
    options = {"epochs": 2, "updates_per_rollout": 2}
    run(lab, tmp_path / "through", **options)
    run(lab, tmp_path / "halved", steps=2, **options)
    run(lab, tmp_path / "halved", resume=True, **options)
    assert step_lines(tmp_path / "halved") == step_lines(tmp_path / "through")
    for name in ("weights", "kept_reference", "optimizer"):
        assert files(tmp_path / "halved", name) == files(tmp_path / "through", name)


@pytest.mark.slow
def test_images_of_training_are_drawn_with_the_weights_that_follow_slowly(lab, tmp_path):
    """With a copy that stays where it was, the images of both runs are those of the base model."""
    rewards = []
    for rate in (1e-5, 3e-3):
        still = Regress(Regress.Config(decay=1.0))
        run(lab, tmp_path / str(rate), algorithm=still, learning_rate=rate)
        rewards.append([line["reward"] for line in step_lines(tmp_path / str(rate))])
    assert rewards[0] == rewards[1]
    run(lab, tmp_path / "follows", algorithm=Regress(Regress.Config(decay=0.0)))
    assert step_lines(tmp_path / "follows")[-1]["reward"] != rewards[0][-1]


def test_an_algorithm_for_steps_is_refused_with_the_policy_that_has_them(lab, tmp_path):
    message = "needs mean, std, which policy 'ForwardProcess' does not provide; take policy: flow"
    with pytest.raises(UserError, match=message):
        run(lab, tmp_path / "run", algorithm=FlowGRPO())
