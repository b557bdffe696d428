"""A language model in environments: its turns in an episode are one rollout, with holes."""

import asyncio
import re
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import yaml
from tests.command_line import call
from tests.llm.conftest import FORGETFUL

from groupwise import Environment, ToolCall
from groupwise.kit.errors import UserError
from groupwise.testing import play_episodes
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Turn

CHAT = [{"prompt": [{"role": "user", "content": content}]} for content in ("12+34=", "Hi", "7-5")]
SHOWING = (
    "{% for tool in tools or [] %}{{ tool['function']['name'] }} {% endfor %}"
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""A chat template that shows the names of tools."""
TEXTS = [{"prompt": text} for text in ("12+34=", "Hi ", "7-5=")]


class Answered(Environment):
    """Three turns with a tool's answer after each; fewer after an answer with an "e"."""

    def columns(self, labels):
        return ["turns"]

    async def play(self, row, players):
        (player,) = players.values()
        messages, turns = [*row["prompt"]], 0
        for turns in (1, 2, 3):
            reply = await player(messages, limit=8)
            if re.search("e", reply.text):
                break
            messages += [
                reply.message,
                {"role": "tool", "content": f"answer {turns}"},
            ]
        return {"turns": turns}


class Written(Environment):
    """The same in a text, which the model goes on with."""

    async def play(self, row, players):
        (player,) = players.values()
        text = row["prompt"]
        for turn in range(3):
            text += (await player(text, limit=20)).text + f" ({turn}) "


def play(policy, environment, rows, *, batch=64):
    return play_episodes(environment, {"policy": policy}, rows, batch=batch, seed=5)


@pytest.mark.parametrize(("environment", "rows"), [(Answered, CHAT), (Written, TEXTS)])
def test_the_turns_of_an_episode_are_one_rollout_with_holes(make, environment, rows, rounding):
    policy = make("llama", max_new_tokens=90)
    episodes = play(policy, environment(), rows)
    rollouts = episodes.rollouts("policy")
    assert len(rollouts) == len(episodes.judged) == 12
    assert rollouts.groups.tolist() == [n for n in range(3) for _ in range(4)]
    holes = [
        bool((~own[: int(extent)]).any())
        for own, extent in zip(rollouts.mask, rollouts.extents, strict=True)
    ]
    several = (
        [int(own) > 1 for own in episodes.judged.facts["turns"]] if rows is CHAT else [True] * 12
    )
    assert holes == several
    assert any(several)
    log_probs = rollouts.sampler_log_probs[rollouts.mask]
    rounding.same(lambda: policy(rollouts).log_probs[rollouts.mask], log_probs)


@pytest.mark.parametrize("batch", [1, 5])
def test_the_batch_changes_no_turn(make, batch):
    policy = make("llama", max_new_tokens=90)
    expected, other = (play(policy, Answered(), CHAT, batch=own) for own in (64, batch))
    assert other.judged.completions == expected.judged.completions
    assert torch.equal(other.rollouts("policy").mask, expected.rollouts("policy").mask)


def test_an_episode_ends_where_no_room_is_left(make):
    policy = make("llama", max_new_tokens=14)
    rollouts = play(policy, Written(), TEXTS).rollouts("policy")
    assert len(rollouts) == 12
    assert int(rollouts.extents.max()) <= 14
    assert rollouts.ended == ["length"] * 12


class Spent(Environment):
    """Two turns, the second without room: `limit` is what is left of a budget."""

    async def play(self, row, players):
        (player,) = players.values()
        text = row["prompt"]
        text += (await player(text, limit=8)).text
        await player(f"{text} more ", limit=0)


def test_no_turn_is_drawn_where_a_limit_leaves_no_room(make):
    rollouts = play(make("llama", max_new_tokens=90), Spent(), TEXTS).rollouts("policy")
    assert len(rollouts) == 12
    assert int(rollouts.extents.max()) <= 8
    assert rollouts.ended == ["length"] * 12


class Both(Environment):
    """Two turns of one rollout, both returned to be judged."""

    async def play(self, row, players):
        (player,) = players.values()
        first = await player(row["prompt"], limit=8)
        second = await player(row["prompt"] + first.text + " more ", limit=8)
        return [(first, {}), (second, {})]


def test_two_turns_of_one_rollout_cannot_both_be_judged(make):
    with pytest.raises(UserError, match="several replies that are turns of one rollout"):
        play(make("llama", max_new_tokens=90), Both(), TEXTS)


def test_a_rollout_holds_its_turns_as_they_were_drawn(make):
    policy = make("llama", max_new_tokens=90)
    with policy.session():
        (context,) = policy.encode(CHAT[:1])
        drawn = []
        for seed in (1, 2, 3):
            (turn,) = policy.draw([context], seeds=[seed], limits=[8])
            drawn.append(turn)
            context = policy.extend(context.with_turn(turn), [{"role": "tool", "content": "5"}])
    rollouts = policy.assemble(CHAT[:1], [context])
    assert policy.holds(rollouts, [drawn]) == [[True, True, True]]
    other = rollouts.trajectory["completion_ids"].clone()
    place = len(drawn[0].ids) + int(rollouts.mask[0, len(drawn[0].ids) :].int().argmax())
    other[0, place] += 1  # the first token of the second turn
    changed = replace(rollouts, trajectory={**rollouts.trajectory, "completion_ids": other})
    assert policy.holds(changed, [drawn]) == [[True, False, True]]
    whole = replace(rollouts, mask=torch.ones_like(rollouts.mask))  # answers count as decisions
    assert policy.holds(whole, [drawn]) == [[False] * 3]


class Changing(Environment):
    """Changes the system message, or its tools, between its turns: in place or by new ones."""

    def __init__(self, what, *, in_place):
        self.what, self.in_place = what, in_place

    async def play(self, row, players):
        (player,) = players.values()
        messages, tools = [{"role": "system", "content": "state 0"}, *row["prompt"]], [tool("key")]
        for turn in (1, 2, 3):
            reply = await player(messages, limit=4, tools=tools)
            messages = [*messages, reply.message, {"role": "user", "content": "go on"}]
            if turn == 2:
                continue  # goes on in the same context
            if not self.in_place:
                messages, tools = deepcopy([messages, tools])
            if self.what == "message":
                messages[0]["content"] = f"state {turn}"
            else:
                tools.append(tool(f"door {turn}"))


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


@pytest.mark.parametrize("what", ["message", "tool"])
def test_the_model_reads_what_an_environment_has_changed_in_place(make, what):
    """As if it had passed new messages or tools: from there on it is another rollout."""
    policy = make("llama", max_new_tokens=90)
    policy.tokenizer.chat_template = SHOWING
    policy.codec = Codec(policy.tokenizer, policy.config, policy.ends, positions=None)
    policy.prompts = policy.codec.prompts
    changed, new = (play(policy, Changing(what, in_place=own), CHAT[:1]) for own in (True, False))
    one, other = changed.rollouts("policy"), new.rollouts("policy")
    assert len(one) == len(other) == 8
    for name in ("prompt_ids", "completion_ids"):
        own = zip(one.trajectory[name], other.trajectory[name], strict=True)
        assert all(torch.equal(*pair) for pair in own)


@pytest.mark.parametrize(
    ("text", "resembles"),
    [
        ('<tool_call>\n{"name": "add"', True),
        ('[TOOL_CALLS] [{"name": "add"}]', True),
        ('{"name": "add", "arguments": {"a": 1}}', True),
        ("<function=add>", True),
        ("The answer is <b>36</b> (by a tool).", False),
        ("", False),
    ],
)
def test_text_that_looks_like_a_call_is_noticed(make, text, resembles):
    assert make("llama").resembles_call(text) is resembles


SHOWING = (
    "{% if tools %}tools:{{ tools | map(attribute='function.name') | join(',') }}"
    "{% endif %}{% for m in messages %}{{ m['role'] + ':' + m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c.function | tojson }}</tool_call>"
    "{% endfor %}<|turn|>{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
ADD, NOW = ({"type": "function", "function": {"name": name}} for name in ("add", "now"))
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class Calls(Environment):
    """Two calls of a tool, then other tools."""

    def __init__(self):
        self.replies = []

    async def play(self, row, players):
        (player,) = players.values()
        messages = [*row["prompt"]]
        for tools in ([ADD], None, [ADD], [NOW]):
            reply = await player(messages, tools=tools)
            self.replies.append(reply)
            answers = [{"role": "tool", "content": "2"} for _ in reply.calls]
            messages += [reply.message, *answers]


@pytest.fixture
def calling(make, monkeypatch):
    """A policy whose every turn is a call after a word, and whose template shows tools."""

    def build(template=SHOWING, **settings):
        policy = make("llama", **settings)
        policy.tokenizer.chat_template = template
        own = policy.config.model_copy(update={"max_new_tokens": 400})
        policy.codec = Codec(policy.tokenizer, own, policy.ends, positions=None)
        ids = tuple(policy.tokenizer("So " + CALL)["input_ids"])
        turn = Turn(ids=ids, text="So " + CALL, ended="stop", log_probs=(0.0,) * len(ids))
        monkeypatch.setattr(policy, "draw", lambda contexts, **_: [turn] * len(contexts))
        return policy

    return build


def test_calls_of_tools_in_an_episode(calling):
    environment = Calls()
    episodes = play(calling(), environment, CHAT[:1])
    assert all(reply.calls == (ToolCall("add", {"a": 1}),) for reply in environment.replies)
    rollouts = episodes.rollouts("policy")
    assert len(rollouts) == 8  # three turns go on, other tools begin anew
    decode = calling().tokenizer.decode
    prompts = [decode(ids) for ids in rollouts.trajectory["prompt_ids"]]
    assert [prompt.startswith("tools:add") for prompt in prompts] == [True, False] * 4
    assert [prompt.startswith("tools:now") for prompt in prompts] == [False, True] * 4
    assert prompts[1].count(CALL) == 3
    completion, last = rollouts.completions[:2]
    assert [message["role"] for message in completion] == ["assistant", "tool"] * 2 + ["assistant"]
    for message in (*completion[::2], *last):
        assert message == {**environment.replies[0].message}
        assert message["content"] == "So"
        assert message["tool_calls"] == [ToolCall("add", {"a": 1}).chat]
    assert rollouts.mask[0].sum() == 3 * len("So " + CALL)


def test_tools_that_the_template_does_not_show_end_the_run(calling):
    with pytest.raises(UserError, match="chat template does not show tools to the model"):
        play(calling(SHOWING.replace("if tools", "if false")), Calls(), CHAT[:1])


class Tagged(Environment):
    """A call in a string."""

    def __init__(self):
        self.calls = []

    async def play(self, row, players):
        (player,) = players.values()
        reply = await player(row["prompt"])
        self.calls += reply.calls
        await player(row["prompt"] + reply.text + "\n2\n")


def test_calls_by_tags_in_strings(calling):
    tags = {"format": "tags", "begin": "<tool_call>", "end": "</tool_call>"}
    environment = Tagged()
    rollouts = play(calling(tool_calls=tags), environment, TEXTS[:1]).rollouts("policy")
    assert environment.calls == [ToolCall("add", {"a": 1})] * 4
    assert rollouts.completions == [f"So {CALL}\n2\nSo {CALL}"] * 4


class Cuts(Environment):
    """Texts that are cut to some of the player's tokens."""

    def __init__(self):
        self.texts = []

    async def play(self, row, players):
        (player,) = players.values()
        self.texts = [await player.shortened("äbc", most) for most in (9, 3, 2, 1, 0)]
        await player(row)


def test_a_text_is_cut_to_tokens_of_the_player(make):
    environment = Cuts()
    play(make("llama", max_new_tokens=4), environment, TEXTS[:1])
    cut = " [... cut]"  # tokens are bytes, and "ä" has two
    assert environment.texts == ["äbc", f"äb{cut}", f"ä{cut}", cut, cut]


def test_a_model_of_text_reads_that_it_cannot_see_a_picture(make):
    picture = pytest.importorskip("PIL.Image").new("RGB", (48, 32))
    parts = [{"type": "image", "image": picture}, {"type": "text", "text": "closer"}]
    policy = make("llama", max_new_tokens=4)
    said = "[here is a picture that you cannot see: [picture 48x32]]\ncloser"
    assert policy.shortened(parts, 200) == said
    assert policy.shortened(parts, 4) == "[her [... cut]"


class Halves(Environment):
    """Answers with half of a surrogate pair, which is no character."""

    def __init__(self):
        self.text = ""

    async def play(self, row, players):
        (player,) = players.values()
        self.text = await player.shortened("\ud83d", 3)
        reply = await player(row["prompt"], limit=2)
        if isinstance(row["prompt"], str):
            await player(row["prompt"] + reply.text + "\ud83d", limit=2)
        else:
            answer = {"role": "tool", "content": "\ud83d"}
            await player([*row["prompt"], reply.message, answer], limit=2)


@pytest.mark.parametrize("rows", [CHAT[:1], TEXTS[:1]])
def test_answers_of_any_characters_are_encoded(make, rows):
    environment = Halves()
    policy = make("llama", max_new_tokens=40)
    episodes = play(policy, environment, rows)
    assert environment.text == "\ufffd"
    tokens = policy.tokenizer("\ufffd", add_special_tokens=False)["input_ids"]
    rollouts = episodes.rollouts("policy")
    assert len(rollouts) == 4
    for ids, mask in zip(rollouts.trajectory["completion_ids"], rollouts.mask, strict=True):
        assert tokens[0] in ids[~mask].tolist()


class Alternates(Environment):
    """Sends messages that the template refuses, and goes on."""

    def __init__(self):
        self.errors = []

    async def play(self, row, players):
        (player,) = players.values()
        try:
            await player([{"role": "user", "content": [{"type": "image_url"}]}])
        except UserError as error:
            self.errors.append(str(error))
        await player(row["prompt"])


def test_messages_that_a_policy_cannot_take_are_an_error_of_their_call(make):
    environment = Alternates()
    episodes = play(make("llama", max_new_tokens=4), environment, CHAT[:1])
    assert len(episodes.rollouts("policy")) == len(environment.errors) == 4
    assert "reads text alone" in environment.errors[0]


@pytest.mark.parametrize(("environment", "said"), [(f"{__name__}:Answered", 1), ("single", 0)])
def test_check_says_what_the_template_does_with_earlier_turns(make, tmp_path, environment, said):
    policy = make("llama", model={"template": FORGETFUL})
    config = {
        "policy": {"name": "language_model", "model": policy.config.model, "max_new_tokens": 60},
        "prompts": {"name": "rows", "rows": CHAT},
        "rewards": [{"name": "tag_count"}],
        "environment": environment,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    result = call("check", tmp_path / "config.yaml")
    assert result.exit_code == 0
    output = " ".join(result.output.split())
    (note,) = policy.turn_notes()
    assert output.count(note) == said


class Branches(Environment):
    """Candidates of a first turn, of which each goes on in a branch of its own."""

    async def play(self, row, players):
        (player,) = players.values()
        firsts = await player.group(row["prompt"], limit=3)

        async def last(number, first):
            more = [first.message, {"role": "user", "content": f"branch {number}"}]
            return await player([*row["prompt"], *more], after=first, limit=3), {}

        return await asyncio.gather(*(last(number, each) for number, each in enumerate(firsts)))


def test_branches_go_on_from_their_own_first_turn_also_where_these_are_equal(make):
    policy = make("llama", max_new_tokens=90, temperature=1e-3)
    turns = play(policy, Branches(), CHAT).rollouts_of("policy")
    assert len(turns) == 3 * 4 * 4
    for own in turns:
        first, second = own.calls
        assert second.goes_on_from is first is second.parent
