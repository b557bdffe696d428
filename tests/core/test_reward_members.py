"""What a reward may have besides being callable: it is read once, and mistakes are named."""

import asyncio
import functools

import pytest
from torch import nn

from groupwise import train
from groupwise.kit.errors import UserError
from groupwise.rewards import Members, Reward
from groupwise.rewards.errors import MissingColumnError
from groupwise.scoring.scorer import Scorer


def reward_with(**members):
    """An object with these attributes and methods."""
    body = {"__call__": lambda self, completions: [0.0] * len(completions), **members}
    return type("Mine", (), body)()


def built(**members):
    return Reward(name="mine", function=reward_with(**members)).members


def nothing(self, *arguments):
    """A method that takes any arguments."""


def test_a_function_has_no_members():
    assert Members.of(lambda completions: []) == Members()


def test_members_are_attributes_methods_and_properties_of_functions_objects_and_partials():
    class Learns:
        judges, every = False, 3

        @property
        def labels(self):
            return "verifier"

        def refresh(self, rollouts, scores):
            return {}

        def __call__(self, completions, size):
            return [size] * len(completions)

    members = Members.of(functools.partial(Learns(), size=1))
    assert (members.judges, members.labels, members.every) == (False, "verifier", 3)
    assert members.refresh(None, None) == {}

    def function(completions):
        return [0.0] * len(completions)

    function.judges = True
    assert Members.of(function).judges is True


def test_members_are_read_once():
    mine = reward_with(judges=True)
    reward = Reward(name="mine", function=mine)
    mine.judges = False
    assert reward.members.judges is True


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"judges": "yes"}, "`judges` is 'yes'; expected True or False"),
        ({"relative": 1}, "`relative` is 1; expected True or False"),
        (
            {"load": "weights.pt"},
            r"`load` is 'weights.pt'; expected a method, called as `load\(\)`",
        ),
        (
            {"load": lambda self, path: None},
            r"`load` is `<lambda>\(path\)`; expected a method, called as `load\(\)`",
        ),
        (
            {"refresh": lambda self, rollouts: None},
            r"`refresh` is `<lambda>\(rollouts\)`; .*called as `refresh\(rollouts, scores\)`",
        ),
        ({"refresh": nothing, "labels": ["a"]}, r"`labels` is \['a'\]; expected the label of a"),
        ({"refresh": nothing, "every": -1}, "`every` is -1; expected a number of steps, or 0"),
        ({"refresh": nothing, "every": True}, "`every` is True; expected a number of steps"),
        ({"required_columns": ["a"]}, r"`required_columns` is \['a'\]; expected names of columns"),
        ({"required_columns": {"gold": ()}}, "of a tuple it needs one"),
        ({"required_columns": {"gold": ("a", 3)}}, "of a tuple it needs one"),
        ({"required_columns": {3: "a"}}, "expected names of columns by the option"),
        ({"state_dict": nothing}, "has `state_dict` without `load_state_dict`"),
        ({"load_state_dict": nothing}, "has `load_state_dict` without `state_dict`"),
        (
            {"judge": True},
            "`judge` is no member of rewards, did you mean `judges`.*call it `_judge`",
        ),
        ({"relativ": True}, "did you mean `relative`"),
        ({"laod": nothing}, "did you mean `load`"),
        ({"refresch": nothing}, "did you mean `refresh`"),
        ({"refresh": nothing, "label": "verifier"}, "did you mean `labels`"),
    ],
)
def test_a_misspelt_or_wrongly_typed_member_is_named(members, message):
    with pytest.raises(UserError, match=f"reward 'mine': .*{message}"):
        built(**members)


NEEDS = {"gold": "answer", "": ("tests", "solution")}


@pytest.mark.parametrize(
    ("columns", "option", "message"),
    [
        (["answer", "solution"], None, ""),
        (["answer", "tests", "solution"], None, ""),
        (["answr", "tests"], "gold", "needs the column 'answer', did you mean 'answr'"),
        (
            ["answer", "test"],
            "",
            "needs one of the columns 'tests', 'solution'; the dataset has answer, test",
        ),
    ],
)
def test_of_several_columns_a_reward_may_need_one(columns, option, message):
    reward = Reward(name="mine", function=reward_with(required_columns=NEEDS))
    if option is None:
        reward.check_columns(dict.fromkeys(columns))
        return
    with pytest.raises(MissingColumnError, match=message) as raised:
        reward.check_columns(dict.fromkeys(columns))
    assert raised.value.option == option


def test_an_async_load_is_refused():
    async def load(self):
        """Never awaited."""

    with pytest.raises(UserError, match="`load` is async; expected a plain method"):
        built(load=load)


def test_attributes_of_the_authors_own_are_left_alone():
    """They are no members: of another type or form, further off, without `refresh`, or private."""

    class Mine:
        label, labels, every = "good", ["good", "bad"], "day"
        judge = nn.Identity()
        closed = False
        _judge = True

        @property
        def loads(self):
            raise AssertionError("properties are not read")

        def reload(self):
            """Two letters off `load`."""

        def loaded(self, path):
            """Takes what `load` does not."""

        def __call__(self, completions):
            return [0.0] * len(completions)

    assert Members.of(Mine()) == Members()


def test_the_state_of_a_module_is_saved_only_if_it_learns():
    class Frozen(nn.Linear):
        def __call__(self, completions):
            return [0.0] * len(completions)

    class Learns(Frozen):
        def refresh(self, rollouts, scores):
            """Trains."""

    assert Members.of(Frozen(1, 1)).state_dict is None
    assert Members.of(Learns(1, 1)).state_dict is not None


def test_a_mistake_is_reported_before_the_run_with_the_place_of_the_reward(lab, tmp_path):
    with pytest.raises(UserError, match=r"rewards\.0: reward 'Mine': .*did you mean `judges`"):
        train(
            policy=lab.Tabular(),
            prompts=lab.rows(),
            rewards=[reward_with(judge=True)],
            output=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


# ---- close


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_loaded_is_closed_once_at_the_end_of_the_run(lab, tmp_path, waits):
    calls = []

    class Client:
        def load(self):
            calls.append("load")

        if waits:

            async def close(self):
                await asyncio.sleep(0)
                calls.append("close")
        else:

            def close(self):
                calls.append("close")

        def __call__(self, completions):
            calls.append("call")
            return [float(len(text)) for text in completions]

    train(
        policy=lab.Tabular(),
        prompts=lab.rows(),
        rewards=[Client()],
        train={"steps": 2, "groups_per_step": 2, "group_size": 2},
        output=tmp_path / "run",
        quiet=True,
    )
    assert calls[0] == "load"
    assert calls[-1] == "close"
    assert calls.count("close") == 1


def test_an_async_client_is_closed_in_the_loop_that_it_was_made_in(lab):
    loops = []

    class Client:
        async def close(self):
            loops.append(asyncio.get_running_loop())

        async def __call__(self, completions):
            loops.append(asyncio.get_running_loop())
            return [0.0] * len(completions)

    scorer = Scorer([Reward(name="client", function=Client())])
    scorer.load()
    scorer(lab.build(lab.rows(1), [[1, 0]]))
    scorer.close()
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_a_reward_that_was_not_loaded_is_not_closed_and_one_that_fails_is_noted(capsys):
    calls = []

    class Fails:
        def close(self):
            calls.append("close")
            raise OSError("the server is gone")

        def __call__(self, completions):
            return [0.0] * len(completions)

    scorer = Scorer([Reward(name="fails", function=Fails())])
    scorer.close()
    assert not calls
    scorer.load()
    scorer.close()
    assert calls == ["close"]
    note = "note: reward 'fails' cannot be closed: the server is gone"
    assert note in capsys.readouterr().err
