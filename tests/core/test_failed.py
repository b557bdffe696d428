"""Failed samples have no reward and no gradient, are counted and shown, and never count as 0."""

import json
import math
import os
import re
from dataclasses import replace

import pytest
import torch
from accelerate.utils import gather_object
from tests.core.launching import call

import groupwise
from groupwise import Rollouts
from groupwise.algorithms.grpo import GRPO
from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward, SampleErrors, Scores
from groupwise.scoring.scorer import Scorer
from groupwise_algorithms.dapo import DAPO

WHY = "its numbers are not finite"
TIMES = 3
"""Steps and evaluations in a row after which a run ends."""


def breaking(lab, fails=lambda row, seed: seed % 3 == 0):
    """A policy whose failed rollouts poison every pass that they are part of."""

    class Breaking(lab.Tabular):
        def sample(self, prompts, **options):
            rollouts = super().sample(prompts, **options)
            pairs = zip(rollouts.prompts, options["seeds"], strict=True)
            bad = torch.tensor([fails(row, seed) for row, seed in pairs])
            noise = torch.zeros(len(rollouts), dtype=torch.float64).masked_fill(bad, math.nan)
            return replace(
                rollouts,
                failures=[WHY if one else None for one in bad.tolist()],
                completions=[
                    "poison" if x else c for x, c in zip(bad, rollouts.completions, strict=True)
                ],
                trajectory={**rollouts.trajectory, "noise": noise},
            )

        def forward(self, rollouts, decisions=slice(None)):
            answers = super().forward(rollouts, decisions)
            noise = rollouts.trajectory.get("noise")
            if noise is None:  # inside of `sample`, which adds it
                return answers
            poison = noise.unsqueeze(1)
            return replace(
                answers, log_probs=answers.log_probs + poison, entropy=answers.entropy + poison
            )

    return Breaking()


def test_selecting_and_joining_keeps_failures(lab):
    rollouts = lab.build(lab.rows(3), [[1, 0], [2], [1]])
    assert rollouts.failed.tolist() == [False] * 3
    marked = replace(rollouts, failures=[None, WHY, None])
    both = Rollouts.concat([rollouts, marked])
    assert both.failed.tolist() == [False, False, False, False, True, False]
    assert both.select([4, 0]).failures == [WHY, None]
    assert Rollouts.concat([rollouts, rollouts]).failures is None
    with pytest.raises(ValueError, match="failures has length 2, prompts has 3"):
        replace(rollouts, failures=[None, WHY])


# ---- rewards


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_no_reward_is_called_on_a_failed_rollout(lab, kind):
    received = []

    def plain(completions, prompts, log_extra):
        received.extend(completions)
        log_extra("length", [len(text) for text in completions])
        return [float(len(text)) for text in completions]

    async def later(completions, prompts, log_extra):
        return plain(completions, prompts, log_extra)

    rollouts = lab.build(lab.rows(4), [[1, 0], [2], [1, 1, 1], [2, 2]], group_size=2)
    rollouts = replace(rollouts, failures=[None, None, WHY, None])
    reward = Reward(name="long", function=plain if kind == "plain" else later)
    scores = Scorer([reward, Reward(name="ones", function=lab.ones)])(rollouts)
    assert received == ["10", "2", "22"]
    assert scores.failed.tolist() == [False, False, True, False]
    assert scores.total.isnan().tolist() == [False, False, True, False]
    assert scores.column("long").nan_to_num(-1).tolist() == [2.0, 1.0, -1.0, 2.0]
    assert scores.extra == {"length": [2, 1, None, 2]}
    assert scores.failures == {}
    nothing = Scorer([reward])(replace(rollouts, failures=[WHY] * 4))
    assert nothing.failed.all()
    assert nothing.values.shape == (4, 1)


def test_step_rewards_stay_with_their_rollouts(lab):
    rollouts = lab.build(lab.rows(3), [[1, 1, 1, 0], [1], [1, 0]])
    rollouts = replace(rollouts, failures=[WHY, None, None])
    reward = Reward(name="steps", function=lambda completions: [[2.0], [None, 3.0]])
    scores = Scorer([reward])(rollouts)
    assert scores.steps.nan_to_num(-1).tolist() == [[-1] * 4, [2, -1, -1, -1], [-1, 3, -1, -1]]


# ---- an update


ALGORITHMS = {
    "grpo": lambda: GRPO(GRPO.Config(beta=0.1, entropy=0.01, scale="batch")),
    "token": lambda: GRPO(GRPO.Config(normalize="token")),
    "constant": lambda: GRPO(GRPO.Config(normalize="constant", importance="sequence")),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("updates", [1, 2])
def test_an_update_is_that_without_the_failed_rollouts(lab, name, updates):
    """Counted as completions, they would shrink the gradient; in a pass, make it NaN."""
    settings = {"updates_per_rollout": updates, "group_size": 6, "seed": 1}
    trainer = lab.trainer(breaking(lab), ALGORITHMS[name](), **settings)
    twin = lab.trainer(lab.Tabular(), ALGORITHMS[name](), **settings)
    scored, clean = (each.experience.next(each.state) for each in (trainer, twin))
    failed = scored.rollouts.failed
    assert 0 < int(failed.sum()) < len(failed) / 2
    ours = trainer.learn(scored)
    pairs = zip(clean.rollouts_of("policy"), failed.tolist(), strict=True)
    usable = [own for own, fails in pairs if not fails]
    theirs = twin.learner.learn(usable, clean.scores, 0)
    assert trainer.policy.table.isfinite().all()
    assert torch.equal(trainer.policy.table, twin.policy.table)
    assert ours == pytest.approx(theirs)
    assert not ours["skipped_updates"]


def test_metrics_of_a_step_are_of_the_others(lab):
    trainer = lab.trainer(breaking(lab), group_size=6, evaluation={"threshold": 1.0})
    twin = lab.trainer(lab.Tabular(), group_size=6)
    metrics = lab.step(trainer)
    clean = twin.experience.next(twin.state)
    seeds = trainer.experience.failures["/"]
    assert WHY in seeds
    assert "(seed " in seeds
    failed = trainer_failed(lab)
    total = clean.scores.total[~failed]
    lengths = clean.rollouts.lengths[~failed].double()
    assert metrics["failed"] == int(failed.sum()) > 0
    assert metrics["unscored"] == 0
    assert metrics["reward"] == pytest.approx(float(total.mean()))
    assert metrics["rewards/ones"] == pytest.approx(float(total.mean()))
    assert metrics["accuracy"] == pytest.approx(float((total >= 1).double().mean()))
    assert metrics["length"] == pytest.approx(float(lengths.mean()))
    assert metrics["length_max"] == float(lengths.max())
    assert math.isfinite(metrics["mismatch/max"])


def trainer_failed(lab):
    trainer = lab.trainer(breaking(lab), group_size=6)
    return trainer.experience.next(trainer.state).rollouts.failed


def test_a_group_whose_rollouts_all_failed_is_refilled(lab):
    policy = breaking(lab, lambda row, seed: row["id"] % 2 == 0)
    trainer = lab.trainer(policy, DAPO(), groups_per_step=3, max_refills=9, held_out=0.0)
    scored = trainer.experience.next(trainer.state)
    assert scored.metrics["refilled_groups"] > 0
    assert scored.metrics["failed"] >= 4
    assert not scored.rollouts.failed.any()


def test_a_step_in_which_all_failed_changes_nothing(lab):
    trainer = lab.trainer(breaking(lab, lambda row, seed: True))
    before = trainer.policy.table.clone()
    metrics = lab.step(trainer)
    assert torch.equal(trainer.policy.table, before)
    assert metrics["failed"] == 16
    assert math.isnan(metrics["reward"])


# ---- several policies


def test_a_parent_failed_if_itself_did_or_all_of_its_children(lab):
    scores = Scores(
        names=("r",),
        weights=(1.0,),
        values=torch.tensor([[1.0], [5.0], [7.0], [math.nan]]).double(),
        failed=torch.tensor([False, True, True, True]),
    )
    means = lab.credited(scores, [0, 0, 1, 1], failed=[False, False, True])
    assert means.failed.tolist() == [False, True, True]
    assert means.total.nan_to_num(-1).tolist() == [1.0, -1.0, -1.0]


def sections(lab, tmp_path, **options):
    """Arguments of `groupwise.train` for a short run."""
    train = {"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.05}
    return {
        "prompts": {"name": lab.rows(), "held_out": 0.4},
        "rewards": [lab.ones],
        "evaluation": {"prompts": 2, "samples": 4},
        "output": tmp_path / "run",
        "quiet": True,
        **options,
        "train": {**train, **options.get("train", {})},
    }


def lines(folder, key="loss"):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if key in row]


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_failed_rollouts_among_several_policies(lab, tmp_path, kind):
    """In a chain a completion that failed is no prompt, and is shown as failed, not as refused."""
    seen = []

    class Second(lab.Tabular):
        def sample(self, prompts, **options):
            seen.extend(row["prompt"] for row in prompts)
            return super().sample([{**row, "id": 0} for row in prompts], **options)

    environment = {"name": kind, **({"refused": {"first": -7.0}} if kind == "chain" else {})}
    players = [
        {"label": "first", "policy": breaking(lab)},
        {"label": "second", "policy": Second(seed=2)},
    ]
    result = groupwise.train(**sections(lab, tmp_path, environment=environment, players=players))
    steps = lines(result.folder, "first/loss")
    assert sum(row["first/failed"] for row in steps) > 0
    assert all(row["failed"] == row["first/failed"] + row["second/failed"] for row in steps)
    assert all(math.isfinite(row["first/grad_norm"]) for row in steps)
    assert all(row["first/reward"] > -2 for row in steps)
    assert "poison" not in seen
    samples = (result.folder / "samples" / "after.jsonl").read_text().splitlines()
    failed = [sample for sample in map(json.loads, samples) if "failed" in sample]
    assert failed
    for sample in failed:
        assert sample["failed"].startswith(WHY)
        assert sample["total"] is None
        assert sample["rewards"] == {"ones": None}
        assert "refused" not in sample


# ---- runs


def test_a_run_counts_and_shows_failed_samples_and_resumes_past_them(lab, tmp_path, capsys):
    def train(name, **train):
        policy = breaking(lab)
        return groupwise.train(
            policy=policy,
            **{**sections(lab, tmp_path, train=train), "output": tmp_path / name, "quiet": False},
            resume=name == "part" and (tmp_path / name).exists(),
        )

    through = train("through", steps=4, checkpoint_every=1)
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count(f"warning: a completion failed: {WHY} (seed ") == 1
    assert " failed " in printed
    train("part", steps=2, checkpoint_every=1)
    resumed = train("part", steps=4, checkpoint_every=1)
    drop = ("decisions_per_second", "time/", "reward_time/", "memory/")
    kept = [
        [{k: v for k, v in row.items() if not k.startswith(drop)} for row in lines(x.folder)]
        for x in (through, resumed)
    ]
    assert kept[0] == kept[1]
    assert sum(row["failed"] for row in kept[0]) > 0
    samples = (through.folder / "samples" / "after.jsonl").read_text().splitlines()
    failed = [sample for sample in map(json.loads, samples) if "failed" in sample]
    scored = [sample for sample in map(json.loads, samples) if "failed" not in sample]
    drawn = [sample for sample in scored if not sample["greedy"]]
    assert through.after["failed"] == sum(not sample["greedy"] for sample in failed) > 0
    assert "unscored" not in through.after
    for name in ("total", "length"):
        mean = sum(sample[name] for sample in drawn) / len(drawn)
        assert through.after["reward" if name == "total" else name] == pytest.approx(mean)
    assert f"failed: {WHY}" in (through.folder / "report.html").read_text()


def test_a_run_ends_when_most_samples_fail_again_and_again(lab, tmp_path):
    policy = breaking(lab, lambda row, seed: seed % 8 != 0)
    more = sections(lab, tmp_path, train={"steps": 9, "group_size": 8})
    with pytest.raises(UserError, match=rf"{WHY} \(seed \d+\), at the prompt 'question \d") as stop:
        groupwise.train(policy=policy, **more)
    assert f"in the last {TIMES} steps and evaluations in a row" in str(stop.value)
    assert len(lines(tmp_path / "run")) == TIMES - 1  # the first evaluation is one of them


def second(lab):
    """A policy that is prompted by the texts of another."""

    class Second(lab.Tabular):
        def sample(self, prompts, **options):
            return super().sample([{**row, "id": 0} for row in prompts], **options)

    return Second(seed=2)


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_failures_of_every_policy_are_named_with_prompt_and_seed(lab, tmp_path, kind, capsys):
    players = [
        {"label": "first", "policy": breaking(lab, lambda row, seed: True)},
        {"label": "second", "policy": second(lab)},
    ]
    more = sections(lab, tmp_path, train={"steps": 9, "group_size": 8}, quiet=False)
    if kind == "pool":
        players[1]["policy"] = breaking(lab, lambda row, seed: True)
    why = rf"a completion of 'first' failed: {WHY} \(seed \d+\), at the prompt 'question \d'"
    with pytest.raises(UserError, match=f"the last failures:\n  {why}") as stop:
        groupwise.train(**more, environment=kind, players=players)
    assert ("of 'second' failed" in str(stop.value)) == (kind == "pool")
    printed = " ".join(capsys.readouterr().err.split())
    assert len(re.findall(f"warning: {why}", printed)) == 1
    assert printed.count("warning: a completion of 'second' failed") == (kind == "pool")


def test_an_evaluation_of_a_chain_names_the_prompt_of_a_failure(lab, tmp_path, capsys):
    class Breaking(type(breaking(lab))):
        def sample(self, prompts, *, purpose, **options):
            rollouts = super().sample(prompts, purpose=purpose, **options)
            return rollouts if purpose != "train" else replace(rollouts, failures=None)

    players = [
        {"label": "first", "policy": Breaking()},
        {"label": "second", "policy": second(lab)},
    ]
    config = sections(lab, tmp_path, train={"steps": 0}, quiet=False)
    groupwise.train(**config, environment="chain", players=players)
    printed = " ".join(capsys.readouterr().err.split())
    why = rf"warning: a completion of 'first' failed: {WHY} \(seed \d+\), at the prompt 'quest"
    assert len(re.findall(why, printed)) == 1


def chain_that_fails_on_one_process(lab, folder):
    """The steps of each process of a run in which all of process 1's first texts failed."""
    rank = processes.accelerator().process_index
    players = [
        {"label": "first", "policy": breaking(lab, lambda row, seed: rank == 1)},
        {"label": "second", "policy": second(lab)},
    ]
    result = groupwise.train(**sections(lab, folder), environment="chain", players=players)
    return gather_object([result.steps])


@pytest.mark.slow
def test_a_chain_goes_on_where_one_process_has_no_prompts_of_a_policy(lab, tmp_path):
    first, other = call(chain_that_fails_on_one_process, tmp_path, 2)
    assert first == other > 0


def test_a_reward_that_fails_on_all_samples_again_and_again_ends_the_run(lab, tmp_path):
    def judge(completions, **_):
        raise ConnectionError("no route to host")

    rewards = [{"name": judge, "on_error": "skip"}]
    with pytest.raises(UserError, match="'judge' raised ConnectionError: no route to host, at the"):
        groupwise.train(policy=lab.Tabular(), **sections(lab, tmp_path, rewards=rewards))


def answers_some(completions, **_):
    """As a judge of a third of the rows, whose server does not answer while AWAY is set."""
    values = [None if row % 3 else 0.0 for row in range(len(completions))]
    if "AWAY" in os.environ:
        rows = range(0, len(completions), 3)
        raise SampleErrors([None] * len(completions), dict.fromkeys(rows, "got no answer"))
    return values


def dies(completions, **_):
    if "AWAY" in os.environ:
        os._exit(3)
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"name": answers_some}, r"'answers_some' failed on every .* 3 steps .* got no answer"),
        ({"name": dies, "isolate": True}, r"ended its process \(exit code 3\)"),
    ],
)
@pytest.mark.slow
def test_a_reward_that_is_away_ends_the_run_which_goes_on_when_it_is_back(
    lab, tmp_path, monkeypatch, reward, message
):
    rewards = [lab.ones, {**reward, "on_error": "skip"}]
    more = sections(lab, tmp_path, train={"steps": 6, "group_size": 2}, rewards=rewards)
    monkeypatch.setenv("AWAY", "1")
    with pytest.raises(UserError, match=message):
        groupwise.train(policy=lab.Tabular(), **more)
    assert 2 <= len(lines(tmp_path / "run", "failed")) <= TIMES
    monkeypatch.delenv("AWAY")
    assert groupwise.train(policy=lab.Tabular(), **more, resume=True).steps == 6
    steps = lines(tmp_path / "run", "failed")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1]["failed"] == 0


def test_a_verifier_that_gives_no_labels_again_and_again_ends_the_run(lab, tmp_path):
    """The reward that learns from it would go on, without learning."""

    class Learns:
        labels = "verifier"

        def __call__(self, completions, **_):
            return [0.5] * len(completions)

        def refresh(self, rollouts, scores):
            return {}

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    calls = []

    def verifier(completions, **_):
        calls.append(len(completions))
        if len(calls) > 1:  # the first evaluation is before the server is gone
            raise ConnectionError("no route to host")
        return [1.0] * len(completions)

    more = sections(lab, tmp_path, train={"steps": 9}, rewards=[{"name": Learns(), "label": "net"}])
    more["evaluation"] |= {"greedy": False}
    watch = [{"name": verifier, "on_error": "skip"}]
    with pytest.raises(UserError, match=r"reward 'verifier' failed on every .* no route to host"):
        groupwise.train(policy=lab.Tabular(), watch=watch, **more)
    assert len(lines(tmp_path / "run")) == TIMES


def test_only_failures_in_a_row_end_a_run(lab):
    failing = lab.trainer().failing
    for failed in (3, 3, 2, 3, 3):  # of 4: more than half, or just half
        failing.sampled(failed, 4, what="step", why={})
        failing.check()
    failing.sampled(4, 4, what="step 6", why={"judge": "reward 'judge' is away"})
    with pytest.raises(UserError, match="step 6: 4 of 4 completions failed"):
        failing.check()
    # Of a reward: steps in which it gave no value, but not those in which it had nothing to judge.
    for failed, values in ((2, 0), (2, 0), (3, 1), (2, 0), (0, 0), (2, 0)):
        failing.judged("judge", failed=failed, values=values, what="step", why="")
        failing.check()
    failing.judged("judge", failed=1, values=0, what="step 9", why="it is away")
    with pytest.raises(UserError, match=r"step 9: reward 'judge' failed on .* 3 steps .* is away"):
        failing.check()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_a_run_ends_at_the_share_of_failures_that_it_is_told(lab, tmp_path, share):
    """A quarter of the completions fail in every step, and none in evaluations."""

    def judge(completions, purpose, **_):
        fails = purpose == "train"
        return [math.nan if fails and n % 4 == 0 else 1.0 for n in range(len(completions))]

    more = sections(lab, tmp_path, train={"steps": 5, "max_failed": share}, rewards=[judge])
    if share >= 0.25:
        groupwise.train(policy=lab.Tabular(), **more)
        return
    message = rf"step 3: \d+ of \d+ completions failed, and more than {share:.3g} of them did"
    with pytest.raises(UserError, match=message):
        groupwise.train(policy=lab.Tabular(), **more)


def test_prompts_of_failed_samples_are_not_judged(lab):
    """For weighting by success: a reward that worked must not judge a sample that failed."""

    def always(completions, **_):
        return [1.0] * len(completions)

    def fails(completions, **_):
        return [math.nan, *[0.0] * (len(completions) - 1)]

    rewards = [Reward(name="right", function=always), Reward(name="fails", function=fails)]
    evaluation = {"accuracy": "right"}
    trainer = lab.trainer(reward=rewards, groups_per_step=1, group_size=4, evaluation=evaluation)
    metrics = trainer.experience.next(trainer.state).metrics
    assert metrics["failed"] == metrics["failed/fails"] == 1
    assert metrics["accuracy"] == metrics["reward"] == 1.0
