"""A helper of an author's own with the name of a method of the contract is refused."""

import pytest

import groupwise
from groupwise import Algorithm, Callback, Environment, Policy
from groupwise.kit.errors import UserError
from groupwise.plugins.overrides import problem_of
from groupwise.sampler import Sampler, TurnSampler
from groupwise.testing import check_environment


def environment_with(**members):
    async def play(self, row, players):
        (player,) = players.values()
        await player(row)

    return type("Mine", (Environment,), {"play": play, **members})()


@pytest.mark.parametrize(
    ("members", "own"),
    [
        ({"columns": lambda self, table: []}, "`Mine.columns(table)`"),
        ({"columns": lambda self: []}, "`Mine.columns()`"),
        ({"refused": lambda self, label, reply: 0}, "`Mine.refused(label, reply)`"),
        ({"shown": staticmethod(lambda text: text)}, "`Mine.shown(text)`"),
        ({"opening": lambda self, *, row: row}, "`Mine.opening(*, row)`"),
        ({"logged": ["won"]}, "`Mine.logged` is ['won']"),
        ({"judged": property(lambda self: ["a"])}, "`Mine.judged` is ['a']"),
    ],
)
def test_a_helper_with_the_name_of_a_method_is_refused_with_both_signatures(members, own):
    (name,) = members
    problem = problem_of(environment_with(**members), Environment)
    assert own in problem
    assert f"`Environment.{name}({'row' if name == 'opening' else 'label'}" in problem


def test_an_async_helper_is_refused():
    async def columns(self, labels):
        """The columns of a server's table."""

    problem = problem_of(environment_with(columns=columns), Environment)
    assert "`Mine.columns` is async and overrides `Environment.columns(labels" in problem


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"columns": lambda self, labels: ["won"]},
        {"columns": lambda self, _labels: ["won"]},
        {"columns": lambda self, labels, cached=True: ["won"]},
        {"columns": lambda self, *labels, **options: ["won"]},
        {"columns": classmethod(lambda cls, labels: ["won"])},
        {"helper": lambda self, table: []},
        {"_columns": lambda self, table: []},
    ],
)
def test_a_method_that_takes_the_same_fits(members):
    assert problem_of(environment_with(**members), Environment) is None


def test_an_abstract_method_may_name_its_arguments_otherwise():
    class Renamed(Environment):
        async def play(self, example, agents, seed=0):
            """Nobody defines `play` by accident."""

    class Short(Environment):
        async def play(self, row):
            """Lacks the players."""

    assert problem_of(Renamed(), Environment) is None
    assert "`Short.play(row)` overrides `Environment.play(row" in problem_of(Short(), Environment)


def test_other_parts_are_held_to_their_classes_and_to_those_beside_them():
    def of(base, **members):
        made = type("Mine", (base,), members)
        made.__abstractmethods__ = frozenset()
        return object.__new__(made)

    assert "`Callback.on_step" in problem_of(of(Callback, on_step=lambda self, s: 0), Callback)
    warns = of(Algorithm, warning=lambda self, text, why: 0)
    assert "`Algorithm.warning" in problem_of(warns, Algorithm)
    assert "`Policy.begin" in problem_of(of(Policy, begin=lambda self: 0), Policy)
    assert problem_of(of(Callback, on_step=lambda self, done, m: 0), Callback) is None
    draws = of(TurnSampler, room=lambda self: 3)
    assert "`TurnSampler.room" in problem_of(draws, Sampler)
    assert problem_of(of(TurnSampler, room=lambda self, context: 3), Sampler) is None


def test_a_run_and_the_laws_refuse_it(lab, tmp_path):
    environment = environment_with(shown=lambda self, text: text[:10])
    with pytest.raises(
        UserError, match=r"environment: `Mine.shown\(text\)` overrides `Env.*rename"
    ):
        groupwise.train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[lab.ones],
            environment=environment,
            output=tmp_path / "run",
        )
    rows = [{"prompt": "one"}, {"prompt": "two"}]
    with pytest.raises(AssertionError, match="needs another name"):
        check_environment(environment, rows, lambda prompt, random: "yes")
