"""Environments: episodes of several calls and players give the same rows whatever the timing."""

import asyncio
import json
import random
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from tests.core.launching import call

import groupwise
from groupwise import Rollouts
from groupwise.algorithms.grpo import GRPO
from groupwise.environment import ContextRefused, Environment, EpisodeEnded
from groupwise.episodes.episode_sampler import EpisodeSampler
from groupwise.episodes.player_sampler import _further
from groupwise.episodes.sampling import Sampling
from groupwise.experience.replay import Replay
from groupwise.experience.step import Step
from groupwise.kit.errors import UserError
from groupwise.record import Group
from groupwise.storage.samples import read_samples
from groupwise.testing import play_episodes


class Talk(Environment):
    """A writer and a critic in turns, with a wait of random length after each."""

    def __init__(self, turns=2, wait=0.0):
        self.turns, self.wait = turns, wait

    def columns(self, labels):
        return ["drafts"]

    async def play(self, row, players):
        drafts, context = [], row
        for _ in range(self.turns):
            reply = await players["writer"](context)
            drafts.append(reply.text)
            await asyncio.sleep(random.random() * self.wait)
            if reply.text.startswith("1"):
                break  # episodes of different length
            context = (await players["critic"](reply)).text
        return {"drafts": drafts}


def play(lab, environment, *, batch=64, size=4, draws=4, labels=("writer", "critic")):
    """All episodes of some draws."""
    policies = {label: lab.Tabular(prompts=8, seed=number) for number, label in enumerate(labels)}
    return play_episodes(environment, policies, lab.rows(8)[:draws], size=size, batch=batch, seed=3)


def record(episodes):
    """What was sampled, by player."""
    rows = {label: episodes.rollouts(label) for label in episodes.labels}
    return {
        label: (own.completions, own.groups.tolist(), log_probs(own)) for label, own in rows.items()
    } | {"judged": (episodes.judged.completions, episodes.judged.facts["drafts"])}


def log_probs(rollouts):
    """Of each completion, rounded, as sums over paddings of different lengths are."""
    return [
        round(value, 9) for value in (rollouts.sampler_log_probs * rollouts.mask).sum(1).tolist()
    ]


def test_neither_timing_nor_batches_change_a_sample(lab):
    expected = record(play(lab, Talk(turns=3)))
    for batch, wait in ((64, 0.01), (1, 0.0), (3, 0.005)):
        assert record(play(lab, Talk(turns=3, wait=wait), batch=batch)) == expected


def test_a_turn_is_compared_with_the_same_turn_of_other_episodes(lab):
    episodes = play(lab, Talk(turns=3))
    for label in ("writer", "critic"):
        groups = episodes.rollouts(label).groups
        draws = torch.tensor([own.draw for own in episodes.rollouts_of(label)])
        assert len(groups) > 16
        for group in groups.unique():
            of_group = draws[groups == group]
            assert len(of_group.unique()) == 1  # never of two prompts
            assert len(of_group) <= 4  # at most one of each episode


def test_the_last_reply_is_judged_as_a_completion_of_the_row(lab):
    episodes = play(lab, Talk(turns=2))
    assert len(episodes.judged) == 16
    assert episodes.judged.groups.tolist() == [n for n in range(4) for _ in range(4)]
    assert [row["id"] for row in episodes.judged.prompts] == episodes.judged.groups.tolist()
    assert all(1 <= len(drafts) <= 2 for drafts in episodes.judged.facts["drafts"])


def test_rows_that_are_not_judged_have_the_reward_of_what_followed(lab):
    episodes = play(lab, Talk(turns=3))
    scores = lab.scores_of(torch.arange(16.0))
    values = {
        own.first: value
        for label, of_label in lab.score(episodes, scores).items()
        for own, value in zip(episodes.rollouts_of(label), of_label.total.tolist(), strict=True)
    }
    judged = {call: float(place) for place, call in enumerate(episodes.judged_calls)}
    assert len(values) > len(judged) == 16
    for own, value in values.items():
        following = [each for each in values if each.parent is own]
        assert value == (judged[own] if own in judged else values[following[0]])


def test_episodes_count_alike_however_many_turns_they_have(lab):
    episodes = play(lab, Talk(turns=3))
    for label, scores in lab.score(episodes, lab.scores_of(torch.arange(16.0))).items():
        rollouts = episodes.rollouts(label)
        targets = GRPO().targets(scores, rollouts, {})
        sums = {}
        for number, weights in zip(rollouts.episodes.tolist(), targets["weights"], strict=True):
            sums[number] = sums.get(number, 0.0) + float(weights.sum())
        assert len(sums) < len(rollouts), label
        assert list(sums.values()) == pytest.approx([1 / len(sums)] * len(sums))


class Chance(Environment):
    """Answers with its own seed."""

    def columns(self, labels):
        return ["drafts"]

    async def play(self, row, players, seed=0):
        await players["writer"](row)
        return {"drafts": seed}


def test_episodes_that_are_compared_share_a_seed_that_no_other_draw_has(lab):
    seeds = play(lab, Chance(), labels=("writer",)).judged.facts["drafts"]
    of_draws = [{*seeds[start : start + 4]} for start in range(0, 16, 4)]
    assert [len(own) for own in of_draws] == [1] * 4
    assert len({*seeds}) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert play(lab, Chance(), labels=("writer",), batch=1).judged.facts["drafts"] == seeds


class Fails(Environment):
    async def play(self, row, players):
        await players["writer"](row)
        if row["id"] == 1:
            raise ConnectionError("the server is gone")


def test_an_exception_fails_the_episode_and_nothing_else(lab):
    episodes = play(lab, Fails(), labels=("writer",))
    assert episodes.judged.failed.tolist() == [row["id"] == 1 for row in episodes.judged.prompts]
    line = Fails.play.__code__.co_firstlineno + 3
    assert episodes.failures == {
        "/writer": "a completion of 'writer' failed: the environment raised ConnectionError: the "
        f"server is gone (line {line} of test_environments.py), at the prompt 'question 1'"
    }


class Unreachable(Environment):
    """Fails before any player is called."""

    def __init__(self, fails=lambda row: True):
        self.fails = fails

    async def play(self, row, players):
        if self.fails(row):
            raise ConnectionError("no server")
        for player in players.values():
            await player(row)


def arguments(lab, tmp_path, **sections):
    """Of `groupwise.train`, for a short run."""
    return {
        "policy": lab.Tabular(),
        "prompts": {"name": lab.rows(), "held_out": 0.4},
        "rewards": [lab.ones],
        "train": {"steps": 2, "groups_per_step": 4, "group_size": 4},
        "evaluation": {"prompts": 2, "samples": 2, "greedy": False},
        "output": tmp_path / "run",
        "quiet": True,
    } | sections


@pytest.mark.parametrize("several", [False, True])
def test_episodes_that_fail_before_any_reply_are_counted_and_shown(lab, tmp_path, capsys, several):
    sections = {"environment": Unreachable(lambda row: row["id"] % 3 == 1), "quiet": False}
    if several:
        players = [{"label": name, "policy": lab.Tabular(seed=n)} for n, name in enumerate("ab")]
        sections |= {"policy": None, "players": players}
    result = groupwise.train(**arguments(lab, tmp_path, **sections))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "reward" in row]
    assert sum(row["failed"] for row in steps) > 0
    assert all(row["failed"] % 4 == 0 for row in steps)  # whole groups
    line = Unreachable.play.__code__.co_firstlineno + 2
    why = f"the environment raised ConnectionError: no server (line {line} of test_environments.py)"
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count(f"warning: an episode failed: {why}, at the prompt 'question ") == 1
    samples = (tmp_path / "run" / "samples" / "after.jsonl").read_text().splitlines()
    failed = [row for row in map(json.loads, samples) if "failed" in row]
    assert all(int(row["prompt"].split()[1]) % 3 == 1 for row in failed)
    assert all(row["failed"] == why and row["total"] is None for row in failed)
    assert result.after["failed"] == len(failed) > 0


def test_a_run_ends_if_no_episode_can_be_played(lab, tmp_path):
    sections = arguments(lab, tmp_path, environment=Unreachable())
    with pytest.raises(UserError, match=r"16 of 16 completions failed.*\n  an episode failed: the"):
        groupwise.train(**sections)


class Uncalled(Environment):
    """Forgot an `await`: no player is called."""

    async def play(self, row, players):
        players["writer"]


def test_an_episode_without_a_call_of_a_player_fails(lab):
    episodes = play(lab, Uncalled(), labels=("writer",))
    assert sum(own.is_lost for group in episodes.groups for own in group.episodes) == 16
    assert "`play` called no player (is an `await` missing?)" in episodes.failures["/"]


@pytest.mark.parametrize("returned", [lambda reply: reply, lambda reply: [(reply, 1.0)]])
def test_what_play_must_return_is_said_where_it_returns_something_else(lab, returned):
    class Returns(Environment):
        async def play(self, row, players):
            return returned(await players["writer"](row))

    with pytest.raises(UserError, match=r"`play` returned .*, expected a mapping with columns, "):
        play(lab, Returns(), labels=("writer",))


class Misuse(Environment):
    async def play(self, row, players):
        await players["writer"](row)
        raise UserError("a file is missing")


@pytest.mark.parametrize(("reply", "further"), [("", None), ("ab", ""), ("a", "b")])
def test_a_prompt_goes_on_from_a_reply_that_it_has(reply, further):
    """After an empty reply the same prompt is another question, not a continuation."""
    earlier = SimpleNamespace(row={"prompt": "Q"}, reply=SimpleNamespace(text=reply))
    assert _further(earlier, "Qab" if reply else "Q") == further


def test_a_users_error_ends_the_run(lab):
    with pytest.raises(UserError, match="a file is missing"):
        play(lab, Misuse(), labels=("writer",))


class Branches(Environment):
    """Best of three continuations of a draft, asked for at the same time."""

    async def play(self, row, players):
        draft = await players["writer"](row)
        replies = await asyncio.gather(*(players["critic"](draft) for _ in range(3)))
        return [(max(replies, key=lambda reply: len(reply.text)), {})]


def test_calls_at_the_same_time_are_one_batch_with_seeds_of_their_own(lab):
    episodes = play(lab, Branches())
    critic = episodes.rollouts("critic")
    assert len(critic) == 48
    assert len(episodes.judged) == 16
    drawn = torch.tensor(log_probs(critic)).reshape(16, 3)
    assert sum(len(set(row)) > 1 for row in drawn.tolist()) > 8
    scores = lab.scores_of(torch.ones(16))
    totals = lab.score(episodes, scores)["critic"].total
    assert int(totals.isnan().sum()) == 32  # those that are not judged have no reward


class Stops(Environment):
    async def play(self, row, players):
        async def late():
            await players["critic"](row)

        async def ends():
            raise EpisodeEnded("enough")

        await players["writer"](row)
        await asyncio.gather(late(), ends())


def test_calls_of_an_episode_that_is_over_are_dropped(lab):
    episodes = play(lab, Stops())
    assert len(episodes.rollouts("writer")) == 16
    assert len(episodes.rollouts("critic")) == 0


def test_an_episode_ends_where_a_context_is_refused(lab, monkeypatch):
    monkeypatch.setattr(lab.Tabular, "skips", lambda self, row: "refuse" in row["prompt"])

    class Refuses(Environment):
        async def play(self, row, players):
            await players["writer"](row)
            with pytest.raises(ContextRefused, match="'critic' cannot take this context"):
                await players["critic"]("refuse this")
            await players["critic"]("refuse that")

    episodes = play(lab, Refuses())
    assert len(episodes.judged) == 16
    assert len(episodes.rollouts("critic")) == 0


def train(lab, folder, **settings):
    """A run of two steps; returns its metrics by line, and its last samples."""
    groupwise.train(
        environment=Talk(turns=3, wait=0.001),
        players=[
            {"label": label, "policy": lab.Tabular(prompts=8, seed=number)}
            for number, label in enumerate(("writer", "critic"))
        ],
        prompts={"name": lab.rows(), "held_out": 0.4},
        rewards=[short],
        evaluation={"prompts": 2, "samples": 2, "every": 1},
        output=folder,
        quiet=True,
        train={
            "steps": 2,
            "groups_per_step": 3,
            "group_size": 4,
            "learning_rate": 0.05,
            **settings,
        },
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("time/", "reward_time/", "seconds", "decisions_per_second", "memory/")
    metrics = [
        {name: value for name, value in line.items() if not name.startswith(timed)}
        for line in lines
    ]
    return metrics, read_samples(folder / "samples" / "after.jsonl")


class Holds(Environment):
    """Returns an object, and what lasts as long as the episode's rollout."""

    def columns(self, labels):
        return ["environments", "drafts"]

    async def play(self, row, players):
        (writer,) = players.values()
        return {"drafts": (await writer(row)).text, "environments": self, "_lease": object()}


def test_rewards_receive_the_object_of_an_episode_and_samples_do_not_show_it(lab, tmp_path):
    received = []

    def reward(environments, drafts, **columns):
        received.append((environments, [*columns]))
        return [1.0] * len(drafts)

    environment = Holds()
    groupwise.train(
        environment=environment,
        policy=lab.Tabular(),
        prompts={"name": lab.rows(), "held_out": 0.4},
        rewards=[reward],
        evaluation={"prompts": 2, "samples": 2},
        output=tmp_path / "run",
        quiet=True,
        train={"steps": 1, "groups_per_step": 2, "group_size": 2},
    )
    assert {each for own, _ in received for each in own} == {environment}
    assert "_lease" not in {name for _, names in received for name in names}
    samples = read_samples(tmp_path / "run" / "samples" / "after.jsonl")
    assert {tuple(sample["extra"]) for sample in samples} == {("drafts",)}


def short(completions, drafts, **_):
    return [1.0 / (1 + len(text) + len(own)) for text, own in zip(completions, drafts, strict=True)]


def test_a_run_trains_both_players_and_shows_what_play_returned(lab, tmp_path):
    metrics, samples = train(lab, tmp_path / "run")
    last = metrics[-2]
    assert {"writer/reward", "critic/reward", "writer/grad_norm", "critic/grad_norm"} <= {*last}
    assert last["writer/grad_norm"] > 0
    assert last["critic/grad_norm"] > 0
    assert all(1 <= len(sample["extra"]["drafts"].split(",")) <= 3 for sample in samples)
    assert train(lab, tmp_path / "again", sample_batch=1)[0] == metrics


class Again(Environment):
    """One player, with a second completion in the later draws."""

    async def play(self, row, players):
        (player,) = players.values()
        await player(row)
        if row["id"] >= 4:
            await player(row)


def test_draws_with_one_turn_and_with_several_are_trained_on_together(lab):
    together = play(lab, Again(), labels=("writer",), draws=8, size=2)
    apart = play(lab, Again(), labels=("writer",), draws=8, size=2, batch=1)
    for episodes in (together, apart):
        rows = episodes.rollouts("writer")
        calls = [own.first for own in episodes.rollouts_of("writer")]
        assert len(rows) == len(calls) > len(episodes.judged) == 16
        scores = lab.scores_of(torch.arange(16.0))
        (of_writer,) = lab.score(episodes, scores).values()
        values = dict(zip(calls, of_writer.total.tolist(), strict=True))
        assert [values[call] for call in episodes.judged_calls] == [*range(16)]
        assert all(values[call] == values[call.parent] for call in calls if call.parent)
    assert together.rollouts("writer").completions == apart.rollouts("writer").completions


class Twice(Again):
    """Two casts of one player each, which is called twice in an episode."""

    def casts(self, labels):
        return {label: [label] for label in labels}

    async def play(self, row, players):
        (player,) = players.values()
        await player(row)
        await player(row)


def test_a_learner_is_compared_with_all_judged_completions_of_other_casts(lab):
    policies = {name: lab.Tabular(prompts=8, seed=n) for n, name in enumerate(("one", "other"))}
    samplings = {
        name: Sampling(policy, policy, seed=3, batch=64) for name, policy in policies.items()
    }
    with closing(EpisodeSampler(Twice(), samplings, dict.fromkeys(samplings, 2))) as sampler:
        sampler.begin(0)
        sampler.follow({}, 0)
        groups = [Group(number, row) for number, row in enumerate(lab.rows(8)[:4])]
        groups = [group for part in sampler.draw(groups) for group in part]
        step = Step(groups=groups, scores=lab.scores_of(torch.zeros(0)), sampler=sampler)
        for label in policies:
            others = [call.rollout for call in step.judged if call.label != label]
            assert len(step.rollouts_of(label)) == 16
            assert step.rest(label) == others
            assert len(others) == 8


def runs(lab, folder):
    """Final weights and evaluations of runs with several turns, 3 groups a step."""
    results = {}
    for environment, labels in ((Again(), ("policy",)), (Talk(), ("writer", "critic"))):
        policies = {label: lab.Tabular(seed=n) for n, label in enumerate(labels)}
        several = [{"label": label, "policy": policy} for label, policy in policies.items()]
        sections = {"players": several, "policy": None} if len(several) > 1 else several[0]
        sections = {key: value for key, value in sections.items() if key != "label"}
        train = {"steps": 2, "groups_per_step": 3, "group_size": 4, "learning_rate": 0.05}
        name = type(environment).__name__
        result = groupwise.train(
            **arguments(lab, folder / name, environment=environment, train=train, **sections)
        )
        tables = {label: p.table.flatten().tolist() for label, p in result.policies.items()}
        results[name] = {**tables, "after": dict(result.after)}
    return results


def test_two_processes_play_and_train_as_one(lab, tmp_path):
    one, two = runs(lab, tmp_path / "one"), call(runs, tmp_path, 2)
    for name, result in two.items():
        assert one[name]["after"] == pytest.approx(result.pop("after"))
        for number, (label, table) in enumerate(result.items()):
            difference = torch.tensor(table) - torch.tensor(one[name][label])
            assert difference.abs().max() < 1e-9
            initial = lab.Tabular(seed=number).table.flatten()
            assert (torch.tensor(table) - initial).abs().max() > 1e-3  # it learns


class Ends(Environment):
    """Ends in another way for each row of `WAYS`."""

    WAYS = ("stop", "turns", "length", "environment", "refused", "failed")

    async def play(self, row, players):
        (player,) = players.values()
        await player(row)
        await player(row)
        match self.WAYS[row["id"] % len(self.WAYS)]:
            case "environment":
                raise EpisodeEnded("enough")
            case "refused":
                raise ContextRefused("too long")
            case "failed":
                raise ConnectionError("no server")
            case "stop":
                return None
            case word:
                return {"ended": word}


def cut(ended):
    """A reward that knows how the episode ended."""
    return [1.0 if word == "length" else 0.0 for word in ended]


def test_each_rollout_says_why_its_episode_ended(lab):
    episodes = play(lab, Ends(), labels=("writer",), draws=6)
    cut_itself = [text[-1] != "0" for text in episodes.judged.completions]
    expected = [
        "length" if cut_off and word not in ("failed", "turns") else word
        for row, cut_off in zip(episodes.judged.prompts, cut_itself, strict=True)
        for word in [Ends.WAYS[row["id"]]]
    ]
    judged = episodes.judged
    assert judged.ended == expected
    assert {*expected} == {*Ends.WAYS}
    truncated = (judged.truncated & ~judged.failed).tolist()
    assert truncated == [word == "length" for word in expected]
    assert judged.failed.tolist() == [word == "failed" for word in expected]
    own = episodes.rollouts("writer")  # of a policy that draws no turns: the last of two is judged
    assert own.ended[1::2] == expected
    assert "ended" not in judged.facts
    assert Rollouts.concat([judged.select([1]), judged.select([5])]).ended == [
        expected[1],
        expected[5],
    ]


def test_rewards_metrics_samples_and_the_report_say_why_episodes_ended(lab, tmp_path):
    sections = {"environment": Ends(), "rewards": [cut], "reports": ["html"]}
    result = groupwise.train(**arguments(lab, tmp_path, **sections))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "reward" in row]
    for row in steps:
        ended = {name: value for name, value in row.items() if name.startswith("ended/")}
        assert ended["ended/length"] == row["truncated"] == row["reward"]
        assert {*ended} <= {f"ended/{word}" for word in Ends.WAYS} - {"ended/failed", "ended/stop"}
    assert len({name for row in steps for name in row if name.startswith("ended/")}) > 1
    samples = read_samples(tmp_path / "run" / "samples" / "after.jsonl")
    assert all(s["truncated"] == (s["ended"] == "length") for s in samples if "failed" not in s)
    shares = {name: value for name, value in result.after.items() if name.startswith("ended/")}
    known = [s["ended"] for s in samples if "failed" not in s]
    assert shares == {
        f"ended/{word}": pytest.approx(known.count(word) / len(known))
        for word in {*known, "length"} - {"stop"}
    }
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Why episodes ended" in page
    words = {s["ended"] for s in samples} - {"stop", "length", "failed", "refused"}
    assert words
    assert all(f"ended: {word}" in page for word in words)


@pytest.mark.parametrize("environment", ["single", Unreachable(lambda row: False)])
def test_only_environments_of_several_turns_have_shares_of_ends(lab, tmp_path, environment):
    several = environment != "single"
    groupwise.train(**arguments(lab, tmp_path, environment=environment))
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    samples = read_samples(tmp_path / "run" / "samples" / "after.jsonl")
    assert ("ended/" in metrics) == all("ended" in sample for sample in samples) == several


@pytest.mark.parametrize("word", ["failed", 3, ""])
def test_a_reason_that_is_not_a_word_ends_the_run(lab, word):
    class Says(Environment):
        async def play(self, row, players):
            await players["writer"](row)
            return {"ended": word}

    with pytest.raises(UserError, match=f"returned {word!r} as why the episode ended"):
        play(lab, Says(), labels=("writer",))


@pytest.mark.parametrize("kind", ["pool", "chain"])
def test_an_environment_of_several_policies_refuses_a_single_one(lab, tmp_path, kind):
    with pytest.raises(UserError, match=r"environment: .* there is one policy; list two or more"):
        groupwise.train(**arguments(lab, tmp_path, environment=kind))


def test_replay_leaves_episodes_with_several_rollouts_as_they_are(lab, tmp_path):
    """Those of rows from 4 on have two; of the others some wrong ones are replaced."""
    places, fill = [], Replay.fill

    def noted(self, rollouts, *others):
        filled, metrics = fill(self, rollouts, *others)
        places.extend(own.episode.group.row["id"] for own in filled if own.is_replayed)
        return filled, metrics

    def rare(completions, **_):
        return [float(text.startswith("2")) for text in completions]

    rare.judges = True
    settings = {"steps": 12, "groups_per_step": 4, "group_size": 4, "replay": {}}
    sections = {"environment": Again(), "train": settings, "rewards": [rare]}
    sections["policy"] = lab.Tabular(prompts=8)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Replay, "fill", noted)
        groupwise.train(**arguments(lab, tmp_path, **sections))
    assert places
    assert max(places) < 4
