"""Who is compared with whom, with which seed and weight, for whatever an environment asks.

Random programs of environments are played; what samplers were asked for, and what `Rollouts` say,
is compared with what the program did.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tests.core.launching import call
from tests.core.numbered import Record, Single, Turns
from tests.core.played import SIZE, Played, Row, judged_texts, together, weights_of
from tests.core.programs import (
    ANY,
    IN_TURN,
    Again,
    Ask,
    Asks,
    Either,
    Program,
    Together,
    rows,
)

import groupwise
from groupwise.kit.errors import UserError
from groupwise.record import Comparison

# ---- the law

random_programs = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate],  # not made shorter, since they are short
    suppress_health_check=[*HealthCheck],
)
COMMENTS = (Ask(), Ask(), Ask(1, on=1), Ask(1, on=1))
AT_ONCE = (Together(((Ask(),), (Ask(),))),)
CANDIDATES = (Ask(), Ask(grouped=True, on=0))
CANDIDATES_AT_ONCE = (Together(((Ask(grouped=True),), (Ask(grouped=True),))),)
SUMMARY = (Again((Ask(on=0),)), Ask())
LENGTHS = (Either(True, (Ask(),), (Ask(), Ask(), Ask())),)
BY_ROW = (Either(True, (Ask(1),), (Ask(1, grouped=True),)),)
BEST = (Ask(grouped=True), Ask(on=2))
BRANCHES = (Together(((Ask(grouped=True), Ask()), (Ask(1),), (Ask(grouped=True), Ask()))), Ask(1))
PROGRAMS = given(
    steps=ANY | IN_TURN, apart=st.booleans(), first=st.sampled_from([0, 7]), count=st.integers(1, 2)
)


@random_programs
@example(steps=COMMENTS, apart=False, first=0, count=3)
@PROGRAMS
def test_no_two_calls_have_one_seed(steps, apart, first, count):
    record = Played(steps, rows(count, first), apart=apart).record
    assert len({*record.seeds.values()}) == len(record.seeds)


@random_programs
@example(steps=AT_ONCE, apart=False, first=0, count=3)
@PROGRAMS
def test_a_comparison_has_one_draw_and_one_row_of_each_episode(steps, apart, first, count):
    for compared in Played(steps, rows(count, first), apart=apart).compared:
        assert len({call.draw for row in compared for call in row.calls}) == 1
        firsts = [row.calls[0] for row in compared if not row.calls[0].grouped]
        plain = [(call.play, call.candidates) for call in firsts]
        assert len({*plain}) == len(plain)


def test_unequal_comparisons_have_unequal_numbers():
    """But first rollouts of a player have that of the draw: a batch is of one player."""
    places = ((1,), (2,), (1, "fork"))
    unequal = [Comparison(draw, who, place) for draw in (0, 7) for who in "ab" for place in places]
    assert len({each.number for each in unequal}) == len(unequal)
    assert Comparison(7, "a").number == Comparison(7, "b").number == 7


@random_programs
@example(steps=CANDIDATES, apart=False, first=0, count=3)
@PROGRAMS
def test_candidates_are_compared_with_all_candidates_of_their_context_alone(
    steps, apart, first, count
):
    played = Played(steps, rows(count, first), apart=apart)
    for compared in played.compared:
        (*contexts,) = {row.calls[0] for row in compared}
        if any(call.grouped for call in contexts):
            assert len(contexts) == 1
            assert len(compared) == SIZE
    for row in played.rows:  # none is a turn of another row
        assert not any(call.grouped for call in row.calls if call is not row.calls[0])


@random_programs
@example(steps=SUMMARY, apart=False, first=0)
@given(steps=IN_TURN, apart=st.booleans(), first=st.sampled_from([0, 7]))
def test_a_fresh_context_is_compared_with_those_of_its_number(steps, apart, first):
    played = Played(steps, rows(3, first), apart=apart)
    row_of = {call: row for row in played.rows for call in row.calls[:1]}
    for of_draw in together(played.program.asked, lambda call: (call.draw, call.label)):
        expected = [
            (number, call)
            for of_play in together(of_draw, lambda call: call.play)
            for number, call in enumerate(call for call in of_play if call in row_of)
        ]
        for same in together(expected, lambda pair: pair[0]):
            assert len({row_of[call].comparison for _, call in same}) == 1


@random_programs
@example(steps=CANDIDATES, apart=False, first=0, count=3)
@PROGRAMS
def test_the_same_call_of_equal_episodes_is_compared(steps, apart, first, count):
    played = Played(steps, rows(count, first), apart=apart)
    row_of = {call: row for row in played.rows for call in row.calls[:1] if not call.grouped}
    plays = together(played.program.asked, lambda call: call.play)
    for same in together(
        plays, lambda calls: (calls[0].draw, *((c.label, c.place) for c in calls))
    ):
        for calls in zip(*same, strict=True):
            own = [row_of[call] for call in calls if call in row_of]
            assert len({row.comparison for row in own}) <= 1


@random_programs
@example(steps=CANDIDATES, apart=False, first=0, count=3)
@PROGRAMS
def test_each_decision_is_trained_in_one_row(steps, apart, first, count):
    played = Played(steps, rows(count, first), apart=apart)
    trained = Counter(number for row in played.rows for number in row.numbers)
    assert trained == Counter(range(played.record.count))


@random_programs
@example(steps=CANDIDATES_AT_ONCE, apart=False, first=0, count=3)
@PROGRAMS
def test_every_candidate_counts_as_an_episode_of_its_own(steps, apart, first, count):
    for same in together(Played(steps, rows(count, first), apart=apart).rows, lambda r: r.episode):
        assert len({call.play for row in same for call in row.calls}) == 1
        assert len([row for row in same if row.calls[0].grouped]) <= 1


@random_programs
@example(steps=BY_ROW, apart=False, first=0, count=3)
@PROGRAMS
def test_what_a_comparison_shares_is_drawn_by_its_key(steps, apart, first, count):
    played = Played(steps, rows(count, first), apart=apart)
    of_player = [row for row in played.rows if row.label == "single"]
    pairs = {(row.comparison, played.record.group_seeds[row.numbers[0]]) for row in of_player}
    assert len({key for key, _ in pairs}) == len(pairs) == len({seed for _, seed in pairs})


def picture(played: Played) -> Any:
    """All that was sampled and who is compared with whom, whatever the order of time."""
    draw_of = {call.play: call.draw for call in played.program.asked}
    index = {
        play: n
        for same in together(sorted(draw_of), draw_of.__getitem__)
        for n, play in enumerate(same)
    }
    names = {
        number: (call.draw, index[call.play], call.label, call.place, candidate)
        for call in played.program.asked
        for candidate, number in enumerate(call.numbers)
    }
    row_names = {id(row): tuple(names[n] for n in row.numbers if n in names) for row in played.rows}

    def partition(key: Callable[[Row], Hashable]) -> set[frozenset[Any]]:
        return {frozenset(row_names[id(row)] for row in own) for own in together(played.rows, key)}

    return (
        {row_names[id(row)]: row.symbols for row in played.rows},
        {names[number]: seed for number, seed in played.record.seeds.items()},
        {names[number]: seed for number, seed in played.record.group_seeds.items()},
        partition(lambda row: row.comparison),
        partition(lambda row: row.episode),
    )


@random_programs
@example(steps=BRANCHES, apart=True, first=0, count=1)
@PROGRAMS
def test_draws_that_are_played_apart_are_compared_as_those_of_one_process(
    steps, apart, first, count
):
    own = rows(count + 1, first)
    shares = ({n: own[n] for n in [*own][rank::2]} for rank in range(2))
    whole = picture(Played(steps, own, apart=apart))
    assert picture(Played(steps, *shares, apart=apart, batch=2)) == whole


@settings(random_programs, max_examples=6)
@example(steps=LENGTHS, kind=Single, credit="outcome", count=2)
@given(
    steps=ANY,
    kind=st.sampled_from([Single, Turns]),
    credit=st.sampled_from(["outcome", "gigpo"]),
    count=st.sampled_from([2, 4]),
)
def test_episodes_have_the_same_share_of_an_update_however_many_there_are(
    lab, steps, kind, credit, count
):
    (once,), program = weights_of(lab, steps, kind, credit, 1)
    draw_of = {call.play: call.draw for call in program.asked}
    assert sum(once.values()) == pytest.approx(1)
    updates, _ = weights_of(lab, steps, kind, credit, count)
    for own in updates:
        share = sum(once[play] for play in own)
        assert own == pytest.approx({play: once[play] / share for play in own})
    draws = [{draw_of[play] for play in own} for own in updates]
    assert [len(own) for own in draws] == [4 // count] * count
    assert len(set.union(*draws)) == 4
    branching = {call.play for call in program.asked if call.grouped or call.parallel}
    plain = [weight for play, weight in once.items() if play not in branching]
    assert plain == pytest.approx([max(plain, default=0)] * len(plain))


@random_programs
@example(steps=BEST, apart=False, first=0, count=3)
@PROGRAMS
def test_replies_that_nothing_follows_are_judged_whatever_was_asked(steps, apart, first, count):
    for part in Played(steps, rows(count, first), apart=apart, judges_last=False).episodes:
        assert len(judged_texts(part)) >= count * SIZE


# ---- several processes


def ones(completions, **_):
    """The number of 1s among the symbols, which are not numbered alike on all processes."""
    return [re.sub("#[0-9]*;", "", text).count("1") for text in completions]


async def lost(row, player):
    if row["id"] == 1:
        raise ConnectionError("no server for this task")
    await player(row)


RUNS = {
    "turns": lambda: (Turns, Program((Again((Ask(on=0),)), Ask(grouped=True)), talkers=["policy"])),
    "single": lambda: (
        Single,
        Program((Either(True, (Ask(),), (Ask(), Ask())), Ask(grouped=True))),
    ),
    "lost": lambda: (Single, Asks(lost)),
}


def runs(lab, folder):
    """The weights after each of these runs, and how many completions failed; or its error."""
    results = {}
    for name, parts in RUNS.items():
        kind, environment = parts()
        try:
            result = groupwise.train(
                policy=kind(Record()),
                environment=environment,
                prompts={"name": [*rows(4).values()], "held_out": 0.0},
                rewards=[ones],
                evaluation={"prompts": 0},
                train={"steps": 2, "groups_per_step": 2, "group_size": SIZE, "learning_rate": 0.05},
                output=folder / name,
                reports=[],
                quiet=True,
            )
        except UserError as error:
            results[name] = str(error)
            continue
        lines = map(json.loads, (result.folder / "metrics.jsonl").read_text().splitlines())
        failed = [line["failed"] for line in lines if "failed" in line]
        results[name] = [*result.policies["policy"].logits.tolist(), *failed]
    return results


@pytest.fixture(scope="module")
def by_processes(lab, tmp_path_factory):
    """What one process and two do."""
    folder = tmp_path_factory.mktemp("processes")
    return runs(lab, folder / "one"), call(runs, folder, 2)


@pytest.mark.parametrize("name", ["turns", "single", "lost"])
def test_two_processes_learn_as_one(by_processes, name):
    one, two = (own[name] for own in by_processes)
    assert max(map(abs, one[:3])) > 1e-3
    assert two == pytest.approx(one)
