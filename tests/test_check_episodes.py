"""`groupwise check` shows an episode as the model reads it, and fails for nothing but mistakes."""

import sys
from pathlib import Path

import pytest
import yaml
from tests.command_line import call

BASE = Path(__file__).parent.parent / "examples" / "arithmetic" / "base"
TEMPLATE = (
    "{% for tool in tools or [] %}({{ tool['function']['name'] }}){% endfor %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
ENVIRONMENTS = f'''
from groupwise import Environment

TOOL = {TOOL!r}


class Tools(Environment):
    def columns(self, labels):
        return ["calls"]

    async def play(self, row, players):
        (player,) = players.values()
        reply = await player([{{"role": "user", "content": row["prompt"]}}], tools=[TOOL])
        return {{"calls": len(reply.calls), "ended": "done"}}


class Asks(Environment):
    """A user who answers."""

    async def play(self, row, players):
        (player,) = players.values()
        messages = [{{"role": "user", "content": row["prompt"]}}]
        reply = await player(messages)
        await player([*messages, reply.message, {{"role": "user", "content": "6*7"}}])


class Draws(Environment):
    """Returns a picture and many words beside the reply."""

    def columns(self, labels):
        return ["picture", "words"]

    async def play(self, row, players):
        from PIL import Image

        (player,) = players.values()
        reply = await player([{{"role": "user", "content": row["prompt"]}}])
        return [(reply, {{"picture": Image.new("RGB", (4, 4)), "words": "many " * 30}})]


class Opens(Environment):
    def opening(self, row):
        return {{**row, "prompt": row["prompt"] * 99}} if row["answer"] == "1" else row

    async def play(self, row, players):
        (player,) = players.values()
        await player(self.opening(row))


class Breaks(Environment):
    async def play(self, row, players):
        (player,) = players.values()
        await player([{{"role": "user", "content": row["prompt"]}}])
        raise ConnectionError("no server")


class Closed(Environment):
    async def close(self):
        raise ConnectionError("not open")

    async def play(self, row, players):
        (player,) = players.values()
        await player([{{"role": "user", "content": row["prompt"]}}])
'''


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("worlds", None)
    Path("worlds.py").write_text(ENVIRONMENTS)

    def run(environment=None, template=TEMPLATE, prompt="{} + 1 =", **settings):
        policy = {"name": "language_model", "model": str(BASE), "max_new_tokens": 40, **settings}
        rows = [{"prompt": prompt.format(n), "answer": str(n + 1)} for n in range(8)]
        config = {
            "policy": {**policy, "chat_template": {"chat_template": template}},
            "prompts": {"name": "rows", "rows": rows, "held_out": 0.0},
            "rewards": [{"name": "numeric_answer"}],
            "evaluation": {"prompts": 0},
            "train": {"steps": 1, "groups_per_step": 4, "group_size": 4},
            **({"environment": f"worlds:{environment}"} if environment else {}),
        }
        Path("run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        return call("check", "run.yaml")

    return run


def shown(result):
    assert result.exit_code == 0, result.output
    return [line.removeprefix("  | ") for line in result.stdout.splitlines() if "  | " in line]


def test_a_completion_is_shown_after_its_prompt(check):
    result = check()
    assert shown(result) == ["0 + 1 =[what the model writes]<|end|>"]
    assert "as the model reads it" in result.stdout
    assert "it ended" not in result.stdout


def test_an_episode_is_shown_with_its_tools_and_an_answer(check):
    result = check("Tools")
    (line,) = shown(result)
    assert line == (
        "(add)<user>0 + 1 =<|end|><assistant>[what the model writes]<|end|>"
        "<tool>[what the tool answers]<|end|><assistant>"
    )
    assert "it ended: done; calls 0" in result.stdout


def test_a_template_without_the_role_of_tools_is_no_mistake(check):
    # The environment may answer as a user.
    refusal = "{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    loop = "{% for message in messages %}"
    (line,) = shown(check("Tools", template=TEMPLATE.replace(loop, loop + refusal)))
    assert line == "(add)<user>0 + 1 =<|end|><assistant>[what the model writes]<|end|>"


def test_an_episode_is_shown_of_a_row_whose_opening_has_room(check):
    result = check("Opens", max_prompt_tokens=20, long_prompts="skip")
    assert shown(result) == ["1 + 1 =[what the model writes]<|end|>"]


def test_an_episode_of_several_turns_is_shown(check):
    (line,) = shown(check("Asks"))
    assert line == (
        "<user>0 + 1 =<|end|><assistant>[what the model writes]<|end|>"
        "<user>6*7<|end|><assistant>[what the model writes]<|end|>"
    )


def test_what_an_episode_returned_is_named_in_a_line(check):
    result = check("Draws")
    ended = result.stdout.partition("it ended: ")[2].partition("\n")[0]
    assert (
        ended.partition("; ")[2] == f"picture [picture of 4 x 4]; words '{('many ' * 30)[:39]}..."
    )


def test_a_template_that_cannot_show_the_tools_is_refused(check):
    bare = TEMPLATE[TEMPLATE.index("{% for message") :]
    result = check("Tools", template=bare)
    assert result.exit_code == 2
    assert "its chat template does not show tools" in result.stderr.replace("\n", " ")


def test_what_goes_wrong_in_an_environment_is_a_note(check):
    result = check("Breaks")
    assert shown(result)
    assert "the environment raised ConnectionError: no server" in result.stdout
    assert "note: with placeholders for what the model writes, a completion failed" in result.stdout
    result = check("Closed")
    assert result.exit_code == 0
    assert "not open" in result.output


def test_of_a_long_episode_the_middle_is_left_out(check, monkeypatch):
    monkeypatch.setattr("groupwise.cli.preview.MOST", 80)
    result = check(prompt="{} + " + "1 + " * 100 + "1 =")
    assert shown(result) == [
        "0 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + ",
        "[357 characters left out]",
        " + 1 + 1 =[what the model writes]<|end|>",
    ]
