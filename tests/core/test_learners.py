"""Several learners: the policies of a pool share groups; in a chain, each prompts the next."""

import dataclasses
import json
import math
from functools import partial

import pytest
import torch
from tests.core.launching import call

import groupwise
from groupwise import advantages, objective
from groupwise.algorithms.grpo import GRPO
from groupwise.config.load import load_config
from groupwise.environment import Environment
from groupwise.kit.errors import UserError
from groupwise.rewards import Scores
from groupwise.storage.checkpoint import Checkpoints

TRAIN = {"steps": 2, "groups_per_step": 2, "group_size": 4, "learning_rate": 0.05}


def settings(lab, tmp_path, **options):
    """Arguments of `groupwise.train` for a short run; `options` replace or add sections."""
    evaluation = {"prompts": 2}
    rows = {"name": lab.rows(), "held_out": 0.4}
    base = {"prompts": rows, "rewards": [lab.ones], "evaluation": evaluation, "quiet": True}
    train = {**TRAIN, **options.pop("train", {})}
    return {**base, "train": train, "output": tmp_path / "run", **options}


def painter_class(lab, longest=99):
    """A policy prompted by another one's completions; it skips those longer than `longest`."""

    class Painter(lab.Tabular):
        refused = 0

        def sample(self, prompts, **options):
            rows = [{**row, "id": len(row["prompt"]) % 4} for row in prompts]
            rollouts = super().sample(rows, **options)
            self.seeds = [*getattr(self, "seeds", []), *options["seeds"]]
            return rollouts

        def skips(self, row):
            return len(row["prompt"]) > longest

    return Painter


def pool(lab):
    return [
        {"label": "one", "policy": lab.Tabular(seed=1)},
        {"label": "two", "policy": lab.Tabular(seed=2, length=4), "train": {"learning_rate": 0.01}},
    ]


def chain(lab, longest=99, **writer_options):
    painter = painter_class(lab, longest)(seed=2)
    return [
        {"label": "writer", "policy": lab.Tabular(seed=1), **writer_options},
        {"label": "painter", "policy": painter, "train": {"group_size": 3}},
    ]


def lines(result):
    text = (result.folder / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if "reward" in line]


# ---- pool


def test_advantages_of_a_pool_are_over_the_whole_group_and_denominators_over_own_completions(
    lab, tmp_path, monkeypatch
):
    calls = []
    targets = GRPO.targets

    def recording_targets(self, scores, rollouts, answers):
        result = targets(self, scores, rollouts, answers)
        calls.append((scores, rollouts, result))
        return result

    monkeypatch.setattr(GRPO, "targets", recording_targets)
    batches = []
    loss = GRPO.loss

    def recording_loss(self, current, batch):
        batches.append(batch)
        return loss(self, current, batch)

    monkeypatch.setattr(GRPO, "loss", recording_loss)
    train = {"steps": 1, "learning_rate": 0.0, "microbatch": 10**6}
    groupwise.train(**settings(lab, tmp_path, environment="pool", players=pool(lab), train=train))
    (own, own_rollouts, _), (union, union_rollouts, _) = calls[:2]
    assert len(own_rollouts) == 4
    assert len(union_rollouts) == 8
    assert sorted(union_rollouts.groups.unique(return_counts=True)[1].tolist()) == [4, 4]
    expected = advantages.group_relative(union.total, union_rollouts.groups)[: len(own_rollouts)]
    own_advantages = advantages.group_relative(own.total, own_rollouts.groups)
    assert not torch.allclose(expected, own_advantages)
    weights = objective.weights(own_rollouts.mask, normalize="sequence")
    by_advantage = {
        round(float(a), 5): float(w.sum()) for a, w in zip(expected, weights, strict=True)
    }
    for batch in batches[:1]:
        for advantage, weight in zip(batch["advantages"], batch["weights"], strict=True):
            assert by_advantage[round(float(advantage), 5)] == pytest.approx(float(weight.sum()))


def test_the_update_of_a_pool_follows_its_formula(lab, tmp_path, rounding):
    """The gradient is that of -sum of A log pi / (B |o|), with A over the completions of both."""
    members = pool(lab)
    before = [member["policy"].table.detach().clone() for member in members]
    calls = []

    def reward(prompts, completions, completion_ids, **_):
        calls.append((prompts, completion_ids, lab.ones(completions)))
        return calls[-1][2]

    train = {"steps": 1, "max_grad_norm": math.inf, "learning_rate": 1e-3}
    for member in members:
        member["train"] = {}
    config = settings(
        lab, tmp_path, environment="pool", players=members, rewards=[reward], train=train
    )
    groupwise.train(**{**config, "evaluation": {"prompts": 0}})
    (prompts, symbols, rewards), *_ = calls
    groups = torch.tensor([int(prompt.split()[1]) for prompt in prompts])
    group_advantages = advantages.group_relative(torch.tensor(rewards), groups)
    for number, (member, table) in enumerate(zip(members, before, strict=True)):
        rows = [n for n in range(8) if n % 4 // 2 == number]
        initial = lab.Tabular(seed=number + 1, length=member["policy"].max_decisions)
        assert torch.equal(initial.table, table)
        rollouts = lab.build(
            [{"prompt": "", "id": int(groups[row])} for row in rows], [symbols[row] for row in rows]
        )
        weights = objective.weights(rollouts.mask, normalize="sequence")
        weights *= group_advantages[rows].unsqueeze(1)
        after = partial(after_a_step, initial, rollouts, weights, 1e-3)
        rounding.same(after, member["policy"].table.detach())


def after_a_step(policy, rollouts, weights, learning_rate):
    """The table after AdamW's first step, which is the learning rate times g / (|g| + epsilon)."""
    sums = (weights * policy(rollouts).log_probs).sum()
    (gradient,) = torch.autograd.grad(sums, policy.table)
    return policy.table.detach() + learning_rate * gradient / (gradient.abs() + 1e-8)


def test_each_policy_of_a_pool_has_its_own_metrics_model_and_samples(lab, tmp_path):
    def right(completions, **_):
        return [float(text.startswith("1")) for text in completions]

    right.judges = True
    result = groupwise.train(
        **settings(lab, tmp_path, environment="pool", players=pool(lab), rewards=[right])
    )
    for metrics in (result.before, result.after):
        each = [metrics["accuracy/one"], metrics["accuracy/two"]]
        assert metrics["accuracy"] == pytest.approx(sum(each) / 2)
    line = lines(result)[0]
    assert {"one/loss", "two/loss", "one/length", "two/reward", "reward"} <= line.keys()
    assert line["one/learning_rate"] == 0.05
    assert line["two/learning_rate"] == 0.01
    names = {path.name for path in (result.folder / "model").iterdir()}
    assert {"one", "two"} <= names
    assert set(result.policies) == {"one", "two"}
    with pytest.raises(UserError, match=r"several policies: policies\['one'\]"):
        _ = result.policy
    samples = (result.folder / "samples" / "after.jsonl").read_text().splitlines()
    assert {json.loads(line)["learner"] for line in samples} == {"one", "two"}


def test_a_policy_that_is_always_wrong_learns_beside_one_that_is_right(lab, tmp_path):
    """Its own completions have equal rewards, but those of the group have not."""

    def by_policy(completions, **_):
        # In a group, those of the first policy come before those of the second.
        share = TRAIN["group_size"] // 2
        return [float(number // share % 2) for number in range(len(completions))]

    result = groupwise.train(
        **settings(lab, tmp_path, environment="pool", players=pool(lab), rewards=[by_policy])
    )
    for line in lines(result):
        assert line["one/reward_std"] == line["two/reward_std"] == 0
        assert line["zero_variance"] == line["one/zero_variance"] == line["two/zero_variance"] == 0
        assert line["one/grad_norm"] > 0


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_the_terminal_shows_the_reward_of_each_policy(lab, tmp_path, capsys, kind):
    members = pool(lab) if kind == "pool" else chain(lab)
    result = groupwise.train(
        **settings(lab, tmp_path, environment=kind, players=members, quiet=False)
    )
    output = " ".join(capsys.readouterr().err.split())
    for line in lines(result):
        rewards = ", ".join(
            f"{each['label']} {line[each['label'] + '/reward']:.3f}" for each in members
        )
        assert f"reward {line['reward']:.3f} ({rewards})" in output
    after = f"after: reward {result.after['reward']:.3g} "
    assert after in output
    assert (f"{after}(one {result.after.get('reward/one', 0):.3f}, two " in output) is (
        kind == "pool"
    )


def test_a_warning_about_a_reward_is_printed_once(lab, tmp_path, capsys):
    def undefined(completions, **_):
        return [math.nan, *[1.0] * (len(completions) - 1)]

    rewards = [lab.ones, undefined]
    config = settings(
        lab, tmp_path, environment="pool", players=pool(lab), rewards=rewards, quiet=False
    )
    groupwise.train(**config)
    output = " ".join(capsys.readouterr().err.split())
    assert output.count("returned NaN") == 1
    assert "warning: reward 'undefined' returned NaN, at the prompt 'question" in output


def test_policies_of_a_pool_have_different_seeds(lab, tmp_path):
    """Two policies with equal weights draw different completions."""
    members = [{"label": label, "policy": lab.Tabular(seed=1)} for label in ("one", "two")]
    batches = []

    def reward(completions, **_):
        batches.append(completions)
        return lab.ones(completions)

    config = settings(
        lab, tmp_path, environment="pool", players=members, rewards=[reward], train={"steps": 1}
    )
    groupwise.train(**{**config, "evaluation": {"prompts": 0}})
    (texts,) = batches
    assert [texts[0:2], texts[4:6]] != [texts[2:4], texts[6:8]]


# ---- chain


def test_the_reward_of_an_earlier_policy_is_the_mean_of_those_it_prompted(lab, tmp_path):
    calls = []

    def reward(prompts, completions, writer, **columns):
        calls.append((prompts, completions, writer, columns["id"]))
        return lab.ones(completions)

    members = chain(lab)
    config = settings(
        lab, tmp_path, environment="chain", players=members, rewards=[reward], train={"steps": 1}
    )
    result = groupwise.train(**{**config, "evaluation": {"prompts": 0}})
    ((prompts, completions, writer, ids),) = calls
    assert len(completions) == 2 * 4 * 3
    assert prompts == [f"question {number}" for number in ids]  # the rows that the writer received
    assert [len(set(writer[n : n + 3])) for n in range(0, 24, 3)] == [1] * 8
    line = lines(result)[0]
    rewards = torch.tensor(lab.ones(completions)).view(2, 4, 3)
    assert line["reward"] == pytest.approx(float(rewards.mean()), abs=1e-4)
    assert line["writer/reward"] == pytest.approx(float(rewards.mean()), abs=1e-4)
    std = rewards.mean(dim=2).std(dim=1).mean()
    assert line["writer/reward_std"] == pytest.approx(float(std), abs=1e-4)
    assert line["painter/reward_std"] == pytest.approx(float(rewards.std(dim=2).mean()), abs=1e-4)
    assert len(set(members[1]["policy"].seeds)) == 24


def test_both_policies_of_a_chain_learn_unless_one_has_learns_false(lab, tmp_path):
    members = chain(lab)
    tables = [member["policy"].table.detach().clone() for member in members]
    groupwise.train(**settings(lab, tmp_path, environment="chain", players=members))
    for member, table in zip(members, tables, strict=True):
        assert not torch.equal(member["policy"].table, table)
    members = chain(lab, learns=False)
    tables = [member["policy"].table.detach().clone() for member in members]
    result = groupwise.train(
        **settings(lab, tmp_path / "frozen", environment="chain", players=members)
    )
    assert torch.equal(members[0]["policy"].table, tables[0])
    assert not torch.equal(members[1]["policy"].table, tables[1])
    assert not (result.folder / "model" / "writer").exists()


def test_completions_that_the_next_policy_skips_have_the_value_of_refused(lab, tmp_path):
    writers = []

    def reward(completions, writer, **_):
        writers.append(writer)
        return [1.0] * len(completions)

    reward.judges = True
    config = settings(
        lab,
        tmp_path,
        environment={"name": "chain", "refused": {"writer": -2.0}},
        players=chain(lab, longest=2),
        rewards=[reward],
        train={"steps": 1},
    )
    result = groupwise.train(**config)
    assert all(len(text) <= 2 for writer in writers for text in writer)
    line = lines(result)[0]
    share = (1 - line["writer/reward"]) / 3  # refused: -2, the others: 1
    assert 0 < share < 1
    samples = [
        json.loads(line)
        for line in (result.folder / "samples" / "before.jsonl").read_text().splitlines()
    ]
    assert len(samples) == 4  # refused ones are samples, too
    for sample in samples:
        if len(sample["shown"]["writer"]) > 2:
            assert sample["refused"] == "painter"
            assert sample["total"] == -2.0
            assert sample["right"] is False
        else:
            assert "refused" not in sample
            assert sample["right"] is True


def test_a_chain_goes_on_if_all_completions_are_refused(lab, tmp_path):
    def reward(completions, **columns):
        return [float(number) for number in columns["id"]]

    config = settings(
        lab, tmp_path, environment="chain", players=chain(lab, longest=-1), rewards=[reward]
    )
    result = groupwise.train(**config)
    assert result.steps == 2
    assert result.after["reward"] == 0.0


def test_a_completion_is_unscored_if_all_that_it_prompted_are_unscored(lab):
    nan = math.nan
    values = torch.tensor([[1.0, nan], [3.0, 2.0], [nan, nan], [nan, nan], [5.0, 1.0], [7.0, 1.0]])
    scores = Scores(
        names=("a", "b"),
        weights=(1.0, 0.5),
        values=values.double(),
        failed=torch.tensor([False, False, False, False, True, True]),
    )
    means = lab.credited(scores, [0, 0, 1, 1, 2, 2], refused=[False] * 3 + [True], value=-1.0)
    expected = torch.tensor([[2.0, 2.0], [nan, nan], [nan, nan], [-1.0, -1.0]]).double()
    assert torch.equal(means.values.nan_to_num(9), expected.nan_to_num(9))
    assert means.failed.tolist() == [False, False, True, False]
    assert means.total[0] == 3.0
    assert means.total[1:3].isnan().all()


def test_a_chain_of_three_policies(lab, tmp_path):
    members = chain(lab)
    members.insert(1, {"label": "editor", "policy": painter_class(lab)(seed=5), "learns": True})
    members[1]["train"] = {"group_size": 2}
    calls = []

    def reward(completions, writer, editor, **_):
        calls.append((completions, writer, editor))
        return lab.ones(completions)

    config = settings(
        lab, tmp_path, environment="chain", players=members, rewards=[reward], train={"steps": 1}
    )
    result = groupwise.train(**{**config, "evaluation": {"prompts": 0}})
    ((completions, writer, editor),) = calls
    assert len(completions) == 2 * 4 * 2 * 3
    assert {"writer/loss", "editor/loss", "painter/loss"} <= lines(result)[0].keys()
    assert [len(set(writer[n : n + 6])) for n in range(0, 48, 6)] == [1] * 8
    assert [len(set(editor[n : n + 3])) for n in range(0, 48, 3)] == [1] * 16


# ---- resuming, and several processes


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_a_resumed_run_of_several_learners_equals_an_uninterrupted_one(lab, tmp_path, kind):
    make = {"pool": pool, "chain": chain}[kind]
    train = {"ema": 0.5, "steps": 4, "checkpoint_every": 2}
    uninterrupted = settings(lab, tmp_path, environment=kind, players=make(lab), train=train)
    first = groupwise.train(**uninterrupted)
    half = settings(
        lab, tmp_path / "half", environment=kind, players=make(lab), train={**train, "steps": 2}
    )
    groupwise.train(**half)
    resumed = settings(lab, tmp_path / "half", environment=kind, players=make(lab), train=train)
    second = groupwise.train(**resumed, resume=True)
    assert second.steps == 4
    for label, policy in first.policies.items():
        assert torch.equal(policy.table, second.policies[label].table)
        files = [
            Checkpoints(run.folder / "checkpoints").last() / f"{label}-kept_average.safetensors"
            for run in (first, second)
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert lines(first)[3]["reward"] == lines(second)[3]["reward"]
    assert dict(first.after) == dict(second.after)


def runs(lab, folder):
    """Final tables and evaluations of a run with a pool and one with a chain, 3 groups a step."""
    results = {}
    for kind, make in (("pool", pool), ("chain", chain)):
        train = {"groups_per_step": 3}
        result = groupwise.train(
            **settings(lab, folder / kind, environment=kind, players=make(lab), train=train)
        )
        tables = {label: p.table.flatten().tolist() for label, p in result.policies.items()}
        results[kind] = {**tables, "after": dict(result.after)}
    return results


def test_two_processes_train_as_one(lab, tmp_path):
    """The second process has fewer groups."""
    one, two = runs(lab, tmp_path / "one"), call(runs, tmp_path, 2)
    for kind in ("pool", "chain"):
        assert one[kind]["after"] == pytest.approx(two[kind].pop("after"))
        for label, table in two[kind].items():
            expected = torch.tensor(one[kind][label])
            assert (torch.tensor(table) - expected).abs().max() < 1e-9


# ---- metrics


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_logged_facts_of_each_policy_are_metrics(lab, tmp_path, kind):
    drawn = {"one": [], "two": []}

    def logging(label, painter):
        class Logging(painter_class(lab) if painter else lab.Tabular):
            logged = frozenset({"sureness"})

            def sample(self, prompts, *, purpose, **options):
                rollouts = super().sample(prompts, purpose=purpose, **options)
                values = [seed % 1000 / 1000 for seed in options["seeds"]]
                if purpose == "train":
                    drawn[label] += zip(values, rollouts.lengths.tolist(), strict=True)
                facts = {**rollouts.facts, "sureness": torch.tensor(values).unbind()}
                return dataclasses.replace(rollouts, facts=facts)

        return Logging(seed=1)

    members = [
        {"label": label, "policy": logging(label, kind == "chain" and label == "two")}
        for label in drawn
    ]
    config = settings(lab, tmp_path, environment=kind, players=members, train={"steps": 1})
    line = lines(groupwise.train(**config))[0]
    for label, pairs in drawn.items():
        assert len(pairs) > 3
        mean = sum(value * length for value, length in pairs) / sum(length for _, length in pairs)
        assert line[f"{label}/sureness"] == pytest.approx(mean)


def test_an_evaluation_of_a_pool_counts_the_failures_of_all_policies(lab, tmp_path):
    class Failing(lab.Tabular):
        def sample(self, prompts, **options):
            rollouts = super().sample(prompts, **options)
            reasons = [f"seed {s}" if s % 2 else None for s in options["seeds"]]
            return dataclasses.replace(rollouts, failures=reasons)

    def sometimes(completions, **_):
        return [None if text.startswith("1") else float(len(text)) for text in completions]

    members = pool(lab)
    members[1]["policy"] = Failing(seed=2)
    config = settings(
        lab, tmp_path, environment="pool", players=members, rewards=[sometimes], train={"steps": 1}
    )
    result = groupwise.train(**{**config, "evaluation": {"prompts": 2, "samples": 16}})
    text = (result.folder / "samples" / "after.jsonl").read_text()
    samples = [s for s in map(json.loads, text.splitlines()) if not s["greedy"]]
    failed = sum("failed" in sample for sample in samples)
    assert result.after["failed"] == failed > 0
    unscored = [s["learner"] for s in samples if s["total"] is None and "failed" not in s]
    assert set(unscored) == {"one", "two"}
    assert result.after["unscored"] == len(unscored)


# ---- what is refused


class Idle(Environment):
    """Calls the first player only."""

    def casts(self, labels):
        return {"": labels[:1]}

    async def play(self, row, players):
        for player in players.values():
            await player(row)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"policy": "a", "players": 2}, "players: a run has a policy, or several players: choose"),
        ({}, "policy: missing, it has no default"),
        ({"players": 1}, "players: expected at least 2 policies, found 1"),
        ({"players": 2, "algorithm": "dapo"}, "algorithm: each of several players has its own"),
        ({"players": 2, "sampler": "vllm"}, "sampler: each of several players has its own"),
        ({"players": 2, "train": {"replay": {}}}, "train.replay: runs of several players do not"),
        ({"players": 2, "train": {"ahead": 1}}, "train.ahead: runs of several players do not"),
    ],
)
def test_sections_that_exclude_each_other_are_refused(sections, problem):
    def listed(count):
        return [{"label": f"number_{n}", "policy": "any"} for n in range(count)]

    sections = {k: listed(v) if isinstance(v, int) else v for k, v in sections.items()}
    with pytest.raises(UserError, match=problem):
        load_config({"prompts": {"name": "rows"}, "rewards": ["x"], **sections})


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        ({"label": "two"}, "players.1.label: another one is labelled 'two'"),
        ({"label": "my policy"}, "players.0.label: "),
        ({"train": {"steps": 3}}, "players.0.train.steps: unknown key"),
        ({"train": {"learning_rate": -1}}, "players.0.train.learning_rate: expected at least 0"),
        ({"refused": 1}, "players.0.refused: unknown key"),
        (
            {"label": "time"},
            "players.0.label: 'time' already names metrics or an argument of rewards",
        ),
        ({"label": "completions"}, "players.0.label: 'completions' already names"),
        ({"label": "x"}, "players.0.label: 'x' already names"),  # the name of the reward
        (
            {"train": {"updates_per_rollout": 3}},
            "players.0.train.updates_per_rollout: 3 updates cannot share 8 groups",
        ),
        ({"learns": False}, "players: none of them learns"),
    ],
)
def test_mistakes_in_the_settings_of_a_learner_name_their_key(first, problem):
    listed = [{"label": "one", "policy": "a", **first}, {"label": "two", "policy": "b"}]
    if "learns" in first:
        listed[1]["learns"] = False
    with pytest.raises(UserError, match=problem):
        load_config({"prompts": {"name": "rows"}, "rewards": ["x"], "players": listed})


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({}, "environment: one policy is called in an episode, and there are 2 players; `pool`"),
        (
            {"environment": "pool", "train": {"group_size": 5}},
            "train.group_size: 2 policies cannot share groups of 5 evenly",
        ),
        (
            {"environment": "pool", "own": {"group_size": 4}},
            "players.0.train.group_size: the players of environment 'pool' share the run's",
        ),
        (
            {"environment": {"name": "chain", "refused": {"writer": 1.0}}},
            r"environment: refused: expected labels of .* before the last \(one\), found 'writer'",
        ),
        (
            {"environment": {"name": "chain", "refused": {"two": 1.0}}},
            r"environment: refused: expected labels of .* before the last \(one\), found 'two'",
        ),
        ({"environment": Idle()}, "players: environment 'Idle' does not call the player 'two'"),
    ],
)
def test_players_that_do_not_fit_the_environment_are_refused(lab, tmp_path, sections, problem):
    players = pool(lab)
    players[0]["train"] = sections.pop("own", {})
    with pytest.raises(UserError, match=problem):
        groupwise.train(**settings(lab, tmp_path, players=players, **sections))
    assert not (tmp_path / "run").exists()


def test_in_a_chain_only_the_last_policy_provides_facts_for_rewards(lab, tmp_path):
    class Costly:
        optional_facts = frozenset({"costly"})

        def prepare(self, *, outputs, facts):
            self.asked_for = facts

    class Writer(Costly, lab.Tabular):
        pass

    class Painter(Costly, painter_class(lab)):
        def sample(self, prompts, **options):
            rollouts = super().sample(prompts, **options)
            return dataclasses.replace(
                rollouts, facts={**rollouts.facts, "costly": [1.0] * len(rollouts)}
            )

    writer, painter = chain(lab, policy=Writer(seed=1))
    painter["policy"] = Painter(seed=2)

    def reward(completions, costly, **_):
        return costly

    groupwise.train(
        **settings(lab, tmp_path, environment="chain", players=[writer, painter], rewards=[reward])
    )
    assert (writer["policy"].asked_for, painter["policy"].asked_for) == (set(), {"costly"})


def test_a_group_of_one_in_a_chain_is_refused(lab, tmp_path):
    listed = chain(lab)
    listed[1]["train"] = {"group_size": 1}
    with pytest.raises(UserError, match=r"players.1.train.group_size: algorithm 'grpo' compares"):
        groupwise.train(**settings(lab, tmp_path, environment="chain", players=listed))


def test_the_last_stage_of_a_chain_that_does_not_learn_may_sample_once(lab, tmp_path):
    listed = chain(lab)
    listed[1] |= {"train": {"group_size": 1}, "learns": False}
    assert groupwise.train(**settings(lab, tmp_path, environment="chain", players=listed)).after


def test_completions_of_different_or_wrong_types_are_refused(lab, tmp_path):
    class Images(lab.Tabular):
        def sample(self, prompts, **options):
            rollouts = super().sample(prompts, **options)
            object.__setattr__(rollouts, "completions", [object() for _ in rollouts.completions])
            return rollouts

    members = pool(lab)
    members[1]["policy"] = Images(seed=2)
    with pytest.raises(UserError, match=r"return different types \('one' str, 'two' object\)"):
        groupwise.train(
            **{
                **settings(lab, tmp_path, environment="pool", players=members),
                "evaluation": {"prompts": 0},
            }
        )
    members = chain(lab)
    members[0]["policy"] = Images(seed=2)
    config = settings(lab, tmp_path / "chain", environment="chain", players=members)
    with pytest.raises(UserError, match=r"expected text from 'writer', .* received object"):
        groupwise.train(**config)


def test_a_chain_refuses_process_rewards(lab, tmp_path):
    def steps(completion_ids, **_):
        return [[1.0] * len(ids) for ids in completion_ids]

    with pytest.raises(UserError, match="process rewards judge the decisions of"):
        groupwise.train(
            **settings(lab, tmp_path, environment="chain", players=chain(lab), rewards=[steps])
        )


def test_a_pool_replaces_groups_without_variance(lab, tmp_path):
    members = [{**member, "algorithm": "dapo"} for member in pool(lab)]
    config = settings(
        lab,
        tmp_path,
        environment="pool",
        players=members,
        train={"max_refills": 2, "group_size": 2},
    )

    def rare(completions, **_):
        return [float(text.startswith("12")) for text in completions]

    result = groupwise.train(**{**config, "rewards": [rare]})
    assert any(line["refilled_groups"] for line in lines(result) if "refilled_groups" in line)


def test_a_chain_replaces_groups_that_teach_none_of_its_policies(lab, tmp_path):
    """All rewards are 1, so only groups of the writer teach that have refused and other ones."""
    players = [{**player, "algorithm": "dapo"} for player in chain(lab, longest=4)]
    config = settings(
        lab,
        tmp_path,
        environment="chain",
        players=players,
        rewards=[equal],
        train={"steps": 6, "max_refills": 1, "groups_per_step": 4, "learning_rate": 0.0},
    )
    steps = lines(groupwise.train(**config))
    assert all(line["painter/zero_variance"] == 1 for line in steps)
    replaced = [line["refilled_groups"] for line in steps]
    assert replaced == [round(4 * line["writer/zero_variance"]) for line in steps]
    assert 0 < sum(replaced) < 6 * 4
    assert all(line["writer/grad_norm"] > 0 for line in steps if line["refilled_groups"] < 4)


def equal(completions, **_):
    return [1.0] * len(completions)
