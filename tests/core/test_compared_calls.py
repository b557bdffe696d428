"""Comparisons, seeds, weights and counts of what single environments ask."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from PIL import Image
from tests.core.numbered import Record, Single, Turns, number_of
from tests.core.played import (
    SIZE,
    Played,
    comparisons_of,
    episodes_of,
    first_rows,
    judged_texts,
    rollouts_of,
    rows_by_decision,
    sampled_decisions,
    together,
    valued,
    weighed_as,
    weights_of,
)
from tests.core.programs import Again, Ask, Asks, Either, Program, rows

import groupwise
from groupwise_algorithms.rae import RAE


def test_candidates_of_a_context_that_goes_on_are_compared_with_each_other(lab):
    noted = []

    async def play(row, player):
        draft = await player(row)
        candidates = await player.group(f"{row['prompt']}{draft.text} go on,")
        noted.append((draft, candidates))

    episodes, _ = episodes_of(play, Turns)
    draft, candidates = noted[0]
    right = candidates[0].text
    batch, advantages = valued(lab, episodes, lambda text: float(right in text))
    own = first_rows(batch.rollouts, candidates)
    assert [advantages[row] for row in own] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    (row,) = first_rows(batch.rollouts, [draft])
    assert float(batch.scores.total[row]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("names_after", [False, True])
def test_a_tree_of_candidates_judges_each_and_goes_on_with_the_best(lab, names_after):
    noted = []

    async def play(row, player):
        prompt, best, judged = row["prompt"], None, []
        for _ in range(2):
            named = {"after": best} if names_after and best else {}
            candidates = await player.group(prompt, **named)
            best = candidates[1]
            prompt += f"{best.text} go on,"
            judged += candidates
        noted.append(judged)
        return [(reply, {}) for reply in judged]

    episodes, record = episodes_of(play, Turns, size=3)
    assert len(judged_texts(episodes)) == 18
    right = {own[at].text for own in noted for at in (0, 5)}
    batch, advantages = valued(
        lab, episodes, lambda text: float(any(text.endswith(each) for each in right))
    )
    expected = [2 / 3, -1 / 3, -1 / 3, -1 / 3, -1 / 3, 2 / 3]
    for own in noted:
        found = [advantages[row] for row in first_rows(batch.rollouts, own)]
        assert found == pytest.approx(expected)
    assert len(rows_by_decision(batch.rollouts)) == record.count


def test_the_best_candidate_is_followed_by_what_goes_on_in_its_context(lab):
    """Also where `after` does not say so."""
    values = []
    for names_after in (False, True):
        noted = []

        async def play(row, player, names_after=names_after, noted=noted):
            candidates = await player.group(row)
            best = candidates[0]
            after = {"after": best} if names_after else {}
            last = await player(f"{row['prompt']}{best.text} go on,", **after)
            noted.append((candidates, last))

        episodes, _ = episodes_of(play, Turns)
        ends = {last.text for _, last in noted}
        batch, advantages = valued(
            lab, episodes, lambda text, ends=ends: float(any(text.endswith(end) for end in ends))
        )
        for candidates, _ in noted:
            own = [advantages[row] for row in first_rows(batch.rollouts, candidates)]
            assert own == pytest.approx([2 / 3, -1 / 3, -1 / 3])
        values.append(batch.scores.total.tolist())
    assert values[0] == values[1]


def test_no_candidate_has_what_followed_all_of_them(lab):
    """Without turns nothing says which one the next call goes on from, unless `after` does."""
    noted = []

    async def play(row, player):
        candidates = await player.group(row)
        noted.append((candidates, await player(f"{row['prompt']} go on,")))

    episodes, _ = episodes_of(play, Single)
    ends = {last.text for _, last in noted}
    batch, _ = valued(lab, episodes, lambda text: float(text in ends))
    for candidates, _ in noted:
        own = [float(batch.scores.total[row]) for row in first_rows(batch.rollouts, candidates)]
        assert len({*own}) == 1


@pytest.mark.parametrize("kind", [Single, Turns])
@pytest.mark.parametrize("grouped", [False, True])
def test_contexts_at_the_same_time_are_not_compared(lab, kind, grouped):
    """The reward depends on the question alone, so nothing is to be learned."""
    easy = set()

    async def play(row, player):
        ask = player.group if grouped else player
        one, two = await asyncio.gather(ask("easy,"), ask("hard,"))
        one, two = (each if grouped else [each] for each in (one, two))
        easy.update(reply.text for reply in one)
        return [(reply, {}) for reply in (*one, *two)]

    episodes, _ = episodes_of(play, kind, count=2)
    batch, advantages = valued(lab, episodes, lambda text: float(text in easy))
    assert advantages == [0.0] * len(batch.rollouts)
    if grouped:  # and count as episodes of their own
        assert len({*weighed_as(batch.rollouts)}) == len(batch.rollouts)


def test_candidates_are_not_compared_with_those_of_other_draws():
    async def play(row, player):
        await (player.group(row) if row["id"] % 2 else player(row))

    episodes, _ = episodes_of(play, Single, count=6)
    rollouts = rollouts_of(episodes, "0")
    pairs = {
        (key, row["id"])
        for key, row in zip(comparisons_of(rollouts), rollouts.prompts, strict=True)
    }
    assert len(pairs) == len({key for key, _ in pairs}) == 3 + 3 * SIZE


async def by_after(row, writer, critic, _):
    drafts = [await writer(row), await writer(row)]
    return [await critic(row, after=draft) for draft in drafts]


async def by_context(row, writer, critic, _):
    drafts = [await writer(row), await writer(row)]
    return [await critic(draft) for draft in drafts]


async def by_task(row, writer, critic, other):
    async def side(player):
        await player(row)
        return await critic(row)

    return await asyncio.gather(side(writer), side(other))


@pytest.mark.parametrize(
    "comments",
    [by_after, by_context, by_task],
)
def test_comments_on_different_replies_have_seeds_of_their_own(comments):
    noted = []

    async def play(row, *players):
        noted.append([reply.text for reply in await comments(row, *players)])

    _, record = episodes_of(play, Single, Single, Single, count=4)
    seeds = [[record.seeds[number_of(text)] for text in own] for own in noted]
    assert len(noted) == 4 * SIZE
    assert all(one != two for one, two in seeds)
    assert len({*record.seeds.values()}) == len(record.seeds)


def test_a_summary_is_compared_with_summaries_after_however_many_turns():
    """A conversation of one or two turns, then a fresh context."""
    played = Played((Again((Ask(on=0),)), Ask()), rows(4))
    last = [row for row in played.rows if row.calls[0].place == "/1"]
    before = Counter(call.play for call in played.program.asked)
    assert len({*before.values()}) > 1
    assert [len(own) for own in together(last, lambda row: row.comparison)] == [SIZE] * 4


@pytest.mark.parametrize("credit", ["outcome", "gigpo"])
def test_prompts_count_alike_in_an_update_whatever_their_turns(lab, credit):
    steps = (Either(True, (Ask(),), (Ask(), Ask(), Ask())),)
    for count in (1, 2, 4):
        updates, program = weights_of(lab, steps, Single, credit, count)
        draw_of = {call.play: call.draw for call in program.asked}
        for own in updates:
            shares = Counter()
            for play, weight in own.items():
                shares[draw_of[play]] += weight
            assert len(shares) == 4 // count
            assert [*shares.values()] == pytest.approx([count / 4] * len(shares))


@pytest.mark.parametrize("credit", ["outcome", "gigpo"])
def test_a_draw_with_candidates_is_not_split_over_updates(lab, credit):
    steps = (Ask(), Ask(grouped=True, after=0))
    updates, program = weights_of(lab, steps, Single, credit, 4)
    draw_of = {call.play: call.draw for call in program.asked}
    draws = [sorted({draw_of[play] for play in own}) for own in updates]
    assert sorted(draws) == [[0], [1], [2], [3]]


def test_decisions_of_all_rollouts_are_counted_as_sampled(lab):
    record = Record()
    trainer = lab.trainer(
        Single(record),
        source=[*rows(4).values()],
        held_out=0.0,
        objects={("environment",): Program((Ask(), Ask(), Ask()))},
        sections={"environment": "program"},
    )
    assert sampled_decisions(trainer) == record.count


def test_the_average_of_a_role_moves_once_for_each_episode(lab):
    right = set()

    async def play(row, player):
        for _ in range(1 if row["id"] % 2 else 6):
            reply = await player(row)
        if row["id"] == 0:
            right.add(reply.text)
        return {"role": "walker"}

    episodes, _ = episodes_of(play, Single, count=2, size=1)
    batch, _ = valued(lab, episodes, lambda text: float(text in right))
    algorithm = RAE(RAE.Config(decay=0.5))
    algorithm.observe(batch.scores, batch.rollouts)
    algorithm.end_step(None, 1)
    assert algorithm.averages == {"walker": pytest.approx(0.25)}


@pytest.mark.parametrize("judges", [["0"], ["0", "1"]])
def test_a_side_comment_leaves_the_conversation_as_it_is(lab, judges):
    noted = []

    async def play(row, writer, critic):
        draft = await writer(row)
        await critic("comment,", after=draft)
        noted.append(await writer(f"{row['prompt']}{draft.text} again,", after=draft))

    episodes, _ = episodes_of(play, Turns, Turns, judges=judges)
    ends = {reply.text for reply in noted}
    batch, _ = valued(lab, episodes, lambda text: float(any(text.endswith(end) for end in ends)))
    assert batch.scores.total.tolist() == [1.0] * SIZE


@pytest.mark.parametrize("changes", ["in place", "a new message"])
def test_a_player_reads_messages_as_they_were_passed(changes):
    passed = []

    async def play(row, player):
        messages = [{"role": "system", "content": "state 0"}, {"role": "user", "content": "go"}]
        for turn in (1, 2):
            reply = await player(messages)
            passed.append((reply.text, [each["content"] for each in messages]))
            messages += [reply.message, {"role": "user", "content": "go on"}]
            if changes == "in place":
                messages[0]["content"] = f"state {turn}"
            else:
                messages[0] = {"role": "system", "content": f"state {turn}"}

    _, record = episodes_of(play, Turns)
    assert len(passed) == 2 * SIZE
    for text, contents in passed:
        assert [*record.read[number_of(text)]] == contents


def test_a_player_reads_messages_as_they_were_when_it_was_asked():
    noted = []

    async def play(row, player):
        messages = [{"role": "user", "content": "before"}]
        reply = await player(messages)
        messages += [reply.message, {"role": "user", "content": "then"}]
        answer = asyncio.create_task(player(messages))
        await asyncio.sleep(0)
        messages[-1]["content"] = messages[0]["content"] = "later"
        noted.append((await answer).text)

    _, record = episodes_of(play, Turns)
    reads = [record.read[number_of(text)] for text in noted]
    assert {(first, last) for first, _, last in reads} == {("before", "then")}


@pytest.mark.parametrize("changes", ["the list", "a tool", "nothing in place"])
def test_a_player_reads_tools_as_they_were_passed(changes):
    passed = []

    def tool(name):
        return {"type": "function", "function": {"name": name, "parameters": {}}}

    async def play(row, player):
        messages, tools = [{"role": "user", "content": "go"}], [tool("key")]
        for _ in range(2):
            reply = await player(messages, tools=tools)
            names = [each["function"]["name"] for each in tools]
            passed.append((reply.text, (*names, "go")))
            messages += [reply.message, {"role": "user", "content": "go on"}]
            match changes:
                case "the list":
                    tools.append(tool("door"))
                case "a tool":
                    tools[0]["function"]["name"] = "door"
                case _:
                    tools = [*tools, tool("door")]

    _, record = episodes_of(play, Turns)
    assert {names for _, names in passed} > {("key", "go")}
    for text, names in passed:
        assert record.read[number_of(text)][: len(names)] == names


class Painter(Single):
    """Its completions are pictures whose colour is the number of their first decision."""

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        colours = [divmod(number_of(text), 256) for text in rollouts.completions]
        pictures = [Image.new("RGB", (2, 2), (*colour, 0)) for colour in colours]
        return replace(rollouts, completions=pictures)


def colour_of(picture: Image.Image) -> float:
    high, low, _ = picture.getpixel((0, 0))
    return 256.0 * high + low


def colours(completions, **_):
    return [colour_of(each) for each in completions]


async def paints_twice(row, player):
    return [(await player(row), {}), (await player(row), {})]


@pytest.mark.parametrize("several", [False, True])
def test_the_picture_of_a_sample_is_the_one_that_was_scored(tmp_path, several):
    record = Record()
    sections = {"policy": Painter(record), "environment": Asks(paints_twice)}
    if several:
        kinds = {"writer": Single, "painter": Painter}
        players = [{"label": label, "policy": kind(record)} for label, kind in kinds.items()]
        sections = {"players": players, "environment": "chain"}
    groupwise.train(
        **sections,
        prompts={"name": [*rows(8).values()], "held_out": 0.4},
        rewards=[colours],
        evaluation={"prompts": 2, "samples": 2},
        train={"steps": 2, "groups_per_step": 2, "group_size": 4},
        output=tmp_path,
        reports=[],
        quiet=True,
    )
    for name in ("training", "after"):
        lines = (tmp_path / "samples" / f"{name}.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        shown = [Image.open(tmp_path / sample["image"]) for sample in samples]
        assert [colour_of(each) for each in shown] == [sample["total"] for sample in samples]


def test_what_several_policies_of_a_pool_draw_is_compared():
    played = Played((Ask(0),), rows(2, 7), apart=True)
    for same in together(played.rows, lambda row: row.calls[0].draw):
        assert {row.label for row in same} == {"turns", "single"}
        assert len({row.comparison[1] for row in same}) == 1
