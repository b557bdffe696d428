"""Samplers whose draws run at the same time: no episode waits for another one, and nothing but
time differs from draws in batches."""

import asyncio
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from tests.core.launching import call

import groupwise
from groupwise import Environment
from groupwise.episodes.loop_thread import LoopThread
from groupwise.kit.errors import UserError
from groupwise.sampler import TurnSampler

END = 0
LIMIT = 3
"""Symbols of a turn."""


@dataclass(frozen=True)
class Context:
    """symbols: all after the prompt; drawn: for each whether the policy drew it."""

    row: int
    symbols: tuple = ()
    drawn: tuple = ()
    ended: str | None = None


class Turns(TurnSampler):
    """Draws symbols up to END, at most LIMIT of them; each draw first calls `delay(context)`.

    crowds: draws of training wait until as many run as may, however busy the machine is.
    """

    def __init__(self, lab, policy, *, concurrency=1, delay=lambda context: None, crowds=False):
        self.lab, self.policy, self.delay, self.concurrency = lab, policy, delay, concurrency
        self.crowds, self.crowded = crowds, threading.Event()
        self.running = self.most = 0
        self.lock, self.sessions = threading.Lock(), 0

    def follow(self, policy, name, version):
        assert not self.sessions
        self.table, self.version = policy.table.detach().clone(), version

    def sample(self, *args, **options):
        raise AssertionError("episodes of several turns are drawn turn by turn")

    def turn_notes(self):
        return ["turns stay"]

    def encode(self, rows):
        return [Context(row["id"]) for row in rows]

    def extend(self, context, replies):
        symbols = tuple(map(int, replies))
        drawn = (False,) * len(symbols)
        return Context(context.row, context.symbols + symbols, context.drawn + drawn)

    def room(self, context):
        return self.policy.max_decisions - len(context.symbols)

    @contextmanager
    def session(self):
        with self.lock:
            self.sessions += 1
        yield
        with self.lock:  # with `ahead` there is one for each group
            self.sessions -= 1
            assert self.sessions or not self.running

    def draw(self, contexts, *, seeds, limits, purpose="train"):
        assert self.sessions
        assert not torch.is_grad_enabled()
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            if self.most == self.concurrency:
                self.crowded.set()
        if self.crowds and purpose == "train":
            assert self.crowded.wait(60)
        try:
            for context in contexts:
                self.delay(context)
            pairs = zip(contexts, seeds, limits, strict=True)
            return [self._turn(context, seed, min(limit, LIMIT)) for context, seed, limit in pairs]
        finally:
            with self.lock:
                self.running -= 1

    def _turn(self, context, seed, limit):
        generator = torch.Generator().manual_seed(seed)
        symbols = [*context.symbols]
        for _ in range(limit):
            previous = symbols[-1] if symbols else self.policy.symbols
            weights = self.table[context.row, len(symbols), previous].softmax(0)
            symbols.append(int(weights.multinomial(1, generator=generator)))
            if symbols[-1] == END:
                break
        own = tuple(symbols[len(context.symbols) :])
        ended = "stop" if own[-1] == END else "length"
        return SimpleNamespace(symbols=own, text="".join(map(str, own)), ended=ended)

    def with_turn(self, context, turn):
        symbols, drawn = context.symbols + turn.symbols, (True,) * len(turn.symbols)
        return Context(context.row, symbols, context.drawn + drawn, turn.ended)

    def assemble(self, rows, contexts, *, groups=None):
        rollouts = self.lab.build(rows, [own.symbols for own in contexts])
        mask = rollouts.mask.clone()
        for row, own in enumerate(contexts):
            mask[row, : len(own.drawn)] = torch.tensor(own.drawn)
        with torch.no_grad():
            log_probs = self.policy(rollouts).log_probs
        return replace(
            rollouts,
            mask=mask,
            truncated=torch.tensor([own.ended == "length" for own in contexts]),
            groups=torch.tensor(groups),
            versions=torch.full((len(rows),), self.version),
            sampler_log_probs=log_probs,
        )


class Answered(Environment):
    """Up to three turns with an answer after each, then two second thoughts at the same time."""

    def __init__(self, wait=0.0):
        self.wait = wait

    def columns(self, labels):
        return ["thoughts"]

    async def play(self, row, players):
        (player,) = players.values()
        text, ended = row["prompt"], "turns"
        for _ in range(3):
            reply = await player(text)
            text += reply.text + "1"
            await asyncio.sleep(random.random() * self.wait)
            if reply.text.startswith("2"):
                ended = None
                break
        thoughts = await asyncio.gather(*(player(f"again {number}") for number in range(2)))
        return [(reply, {"thoughts": text, "ended": ended}) for reply in thoughts]


def train(lab, folder, environment, *, rewards=None, quiet=True, **options):
    """A run with a `Turns` of these options; returns its sampler and its result."""
    policy = lab.Tabular(length=14)
    known = {"steps": 2, "groups_per_step": 3, "group_size": 4, "learning_rate": 0.05}
    settings = {**known, **options.pop("train", {})}
    sampler = Turns(lab, policy, **options)
    result = groupwise.train(
        policy=policy,
        sampler=sampler,
        environment=environment,
        prompts={"name": lab.rows(), "held_out": 0.4},
        rewards=rewards or [lab.ones],
        train=settings,
        evaluation={"prompts": 2, "samples": 2, "greedy": False},
        output=folder,
        reports=[],
        quiet=quiet,
    )
    return sampler, result


def metrics_of(folder):
    """All that a run measured, without times."""
    timed = ("time/", "reward_time/", "seconds", "decisions_per_second", "memory/")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]


def record(folder, result):
    """All that a run measured, sampled and learned."""
    samples = (folder / "samples" / "after.jsonl").read_text()
    return metrics_of(folder), samples, result.policies["policy"].table.tolist()


def waits(context):
    time.sleep(random.random() * 0.004)


def test_draws_at_the_same_time_are_those_of_batches(lab, tmp_path):
    _, result = train(lab, tmp_path / "batches", Answered())
    expected = record(tmp_path / "batches", result)
    shares = [line for line in expected[0] if "ended/turns" in line]
    assert any(0 < line["ended/turns"] < 1 for line in shares)
    for number, concurrency in enumerate((2, 8)):
        folder, options = tmp_path / f"run-{number}", {"delay": waits, "crowds": True}
        environment = Answered(wait=0.004)
        sampler, result = train(lab, folder, environment, concurrency=concurrency, **options)
        assert record(folder, result) == expected
        assert sampler.most == concurrency


def test_groups_drawn_ahead_share_the_calls_at_the_same_time(lab, tmp_path):
    options = {"delay": waits, "crowds": True, "train": {"ahead": 2}}
    sampler, _ = train(lab, tmp_path / "run", Answered(wait=0.004), concurrency=3, **options)
    assert sampler.most == 3
    assert any(line.get("staleness/max", 0) > 0 for line in metrics_of(tmp_path / "run"))


def test_a_run_says_what_is_to_be_known_of_turns(lab, tmp_path, capsys):
    train(lab, tmp_path / "run", Answered(), quiet=False)
    assert capsys.readouterr().err.count("note: turns stay") == 1


class Branches(Environment):
    """Two conversations at the same time, then a third one that follows both."""

    def __init__(self, wait=0.0):
        self.wait = wait

    async def play(self, row, players):
        (player,) = players.values()

        async def talk(name):
            text = f"{row['prompt']} {name}"
            for _ in range(2):
                reply = await player(text)
                text += reply.text + "1"
                await asyncio.sleep(random.random() * self.wait)
            return reply

        replies = await asyncio.gather(talk("left"), talk("right"))
        last = await talk("after both")
        return [(reply, {}) for reply in (*replies, last)]


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.slow(after=1)
def test_conversations_of_an_episode_at_the_same_time_do_not_depend_on_time(
    lab, tmp_path, concurrency
):
    _, result = train(lab, tmp_path / "still", Branches())
    expected = record(tmp_path / "still", result)
    for number in range(2):
        folder, options = tmp_path / f"run-{number}", {"concurrency": concurrency, "delay": waits}
        _, result = train(lab, folder, Branches(wait=0.004), **options)
        assert record(folder, result) == expected


class Three(Environment):
    """Three turns; `order`: the rows of the episodes that began last, in order."""

    def __init__(self):
        self.order = []

    async def play(self, row, players):
        (player,) = players.values()
        self.order.append(row["id"])
        text = row["prompt"]
        for _ in range(3):
            text += (await player(text)).text + "1"


def test_an_episode_waits_for_no_other_one_and_is_scored_meanwhile(lab, tmp_path):
    """The first replies of the last prompt are outstanding until the others' three turns are drawn
    and scored."""
    environment, scored, scorings = Three(), threading.Event(), []

    def delay(context):
        if context.row == environment.order[-1] and not context.symbols:
            assert scored.wait(30), "the other episodes waited"

    def reward(completions, prompts):
        scorings.append({*prompts})
        if f"question {environment.order[-1]}" in prompts:
            scored.clear()
        else:
            scored.set()
        return [0.0] * len(completions)

    settings = {"steps": 1, "groups_per_step": 3}
    train(
        lab,
        tmp_path / "run",
        environment,
        rewards=[reward],
        concurrency=64,
        delay=delay,
        train=settings,
    )
    assert len(scorings) >= 2 * 3  # two evaluations and a step, each in two parts or more


class Stubborn(Environment):
    """Goes on whatever its player raises."""

    async def play(self, row, players):
        (player,) = players.values()
        for number in range(3):
            try:
                await player(f"{row['prompt']} {number}")
            except Exception:
                continue


@pytest.mark.parametrize("error", [UserError("the server is gone"), KeyError("choices")])
def test_an_error_of_a_sampler_ends_the_run_and_all_draws(lab, tmp_path, error):
    calls = []

    def delay(context):
        calls.append(context)
        if len(calls) == 5:
            raise error
        waits(context)

    before = threading.active_count()
    with pytest.raises(type(error), match=str(error)):
        train(lab, tmp_path / "run", Stubborn(), concurrency=3, delay=delay)
    assert len(calls) < 12
    assert threading.active_count() <= before + 1


def test_a_context_without_room_ends_the_rollout(lab, tmp_path):
    class Endless(Environment):
        async def play(self, row, players):
            (player,) = players.values()
            text = row["prompt"]
            while True:
                text += (await player(text)).text + "1"

    for concurrency in (1, 8):
        folder = tmp_path / f"run-{concurrency}"
        train(lab, folder, Endless(), concurrency=concurrency)
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        (*steps,) = (line for line in lines if "reward" in line)
        assert all(line["ended/length"] == line["truncated"] == 1.0 for line in steps)


def test_a_call_that_an_episode_does_not_wait_for_is_dropped(lab, tmp_path):
    class Hurries(Environment):
        async def play(self, row, players):
            (player,) = players.values()
            reply = await player(row)
            late = asyncio.create_task(player("late"))
            await asyncio.sleep(0)
            del late
            return [(reply, {})]

    _, result = train(lab, tmp_path / "run", Hurries(), concurrency=4, delay=waits)
    assert result.steps == 2


def runs(lab, folder):
    """What two processes learn with draws at the same time."""
    _, result = train(lab, folder / "run", Answered(wait=0.002), concurrency=4, delay=waits)
    return result.policies["policy"].table.flatten().tolist()


@pytest.mark.slow
def test_two_processes_with_draws_at_the_same_time_learn_as_one(lab, tmp_path):
    one, two = runs(lab, tmp_path / "one"), call(runs, tmp_path, 2)
    assert torch.tensor(one).sub(torch.tensor(two)).abs().max() < 1e-9


class Talk(Environment):
    """A writer, whose draws are at the same time, and a critic, whose draws are batches."""

    async def play(self, row, players):
        for number in range(3):
            reply = await players["writer"](f"{row['prompt']} {number}")
            await asyncio.sleep(random.random() * 0.004)
            if not reply.text.startswith("2"):
                await players["critic"](reply)


@pytest.mark.slow
def test_a_player_in_process_is_sampled_in_batches_when_no_draw_is_left(lab, tmp_path):
    sizes = []

    class Critic(lab.Tabular):
        def sample(self, *args, **options):
            rollouts = super().sample(*args, **options)
            sizes[-1].append(len(rollouts))
            return rollouts

    def talk(concurrency):
        policy, folder = lab.Tabular(length=14), tmp_path / f"run-{concurrency}"
        turns = Turns(lab, policy, concurrency=concurrency, delay=waits)
        sizes.append([])
        result = groupwise.train(
            environment=Talk(),
            players=[
                {"label": "writer", "policy": policy, "sampler": turns},
                {"label": "critic", "policy": Critic(seed=2)},
            ],
            prompts={"name": lab.rows(), "held_out": 0.4},
            rewards=[lab.ones],
            train={"steps": 2, "groups_per_step": 3, "group_size": 4, "learning_rate": 0.05},
            evaluation={"prompts": 2, "samples": 2, "greedy": False},
            output=folder,
            reports=[],
            quiet=True,
        )
        tables = {label: own.table.tolist() for label, own in result.policies.items()}
        return metrics_of(folder), tables

    assert talk(1) == talk(2) == talk(8)
    _, two, eight = sizes
    assert two == eight  # not by timing
    assert max(two) > 4


def test_groups_in_flight_that_begin_at_the_same_time_share_one_loop(monkeypatch):
    made = asyncio.new_event_loop

    def slowly():
        time.sleep(0.05)
        return made()

    async def own():
        return asyncio.get_running_loop()

    monkeypatch.setattr(asyncio, "new_event_loop", slowly)
    loops = LoopThread(deadline=60.0, place=str)
    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(lambda _: loops.run(own()), range(4))}) == 1
    loops.close()
