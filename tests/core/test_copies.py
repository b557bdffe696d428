"""Copies: rewards, environments, callbacks and watches cannot change each other's world."""

import asyncio
import io
import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import groupwise
from groupwise.callback import Callback
from groupwise.environment import Environment, Reply
from groupwise.kit.copies import copied, equal, kept
from groupwise.prompt_source import PlacedRow
from groupwise.storage.samples import read_samples

RED = (200, 10, 10)


def opened(image, form, **options):
    """An image as it is read from a file of this format."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return Image.open(file)


def picture(kind="new"):
    new = Image.new("RGB", (16, 16), RED)
    match kind:
        case "palette":
            return new.convert("P")
        case "animated":
            return opened(new, "GIF", save_all=True, append_images=[new.rotate(9), new.rotate(18)])
        case "new":
            return new
    return opened(new, kind)


CHANGES = {
    "thumbnail": lambda image: image.thumbnail((4, 4)),
    "paste": lambda image: image.paste(3, (0, 0, 9, 9)),
    "putpixel": lambda image: image.putpixel((0, 0), 1),
    "ImageDraw": lambda image: ImageDraw.Draw(image).rectangle((0, 0, 9, 9), fill=1),
    "putalpha": lambda image: image.putalpha(3),
    "palette": lambda image: image.mode == "P" and image.putpalette([1, 2, 3] * 256),
    "info": lambda image: image.info.update(changed=True),
    "frames": lambda image: [image.seek(n) for n in range(getattr(image, "n_frames", 1))],
}


def content(image):
    return image.mode, image.size, image.convert("RGB").tobytes(), "changed" in image.info


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["new", "PNG", "JPEG", "palette", "animated"])
def test_a_copied_picture_is_changed_alone(kind, change):
    image = picture(kind)
    before = content(image)
    CHANGES[change](copied(image))
    assert content(image) == before


def test_a_copied_picture_has_the_same_pixels_and_the_name_of_its_file(tmp_path):
    picture().save(tmp_path / "red.png")
    image = Image.open(tmp_path / "red.png")
    own = copied(image)
    assert own is not image
    assert own.im is image.im
    assert own.filename == image.filename
    with pytest.raises(ValueError, match="readonly"):
        own.load()[0, 0] = RED


def test_a_picture_that_is_kept_follows_no_pen_of_its_owner():
    image = picture()
    pen = ImageDraw.Draw(image)
    own = kept({"screens": [image]})["screens"][0]
    pen.rectangle((0, 0, 16, 16), fill=(0, 0, 0))
    assert own.getpixel((3, 3)) == RED
    image.load()[0, 0] = RED  # the owner's is as it was


def test_a_damaged_picture_is_left_to_who_opens_it(tmp_path):
    picture().save(tmp_path / "cut.png")
    data = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[:50])
    with Image.open(tmp_path / "cut.png") as image:
        assert copied([image])[0] is image
    assert copied(picture("PNG"), pictures=False).tile  # not read from its file


def test_containers_are_copied_at_every_depth_and_leaves_are_shared():
    array, tensor, thing = np.ones(2), torch.ones(2), object()
    row = {"deep": [{"list": [1, (2, [3])]}], "leaves": [array, tensor, thing, "text", None]}
    placed = PlacedRow(row, "prompts, row 3")
    own = copied(placed)
    assert own == row
    assert own.place == "prompts, row 3"
    assert all(one is other for one, other in zip(own["leaves"], row["leaves"], strict=True))
    spoil(own)
    assert row == {
        "deep": [{"list": [1, (2, [3])]}],
        "leaves": [array, tensor, thing, "text", None],
    }


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([{"a": 1}], [{"a": 1}], True),
        ([{"a": 1}], [{"a": 2}], False),
        ([{"a": 1}], [{"b": 1}], False),
        ([1], [1, 2], False),
        ([np.zeros((4, 4))], [np.zeros((4, 4))], True),
        ([np.zeros((4, 4))], [np.eye(4)], False),
        ([np.zeros(4)], [np.zeros(5)], False),
        ([np.zeros(4)], ["text"], False),
        (torch.ones(2), torch.ones(2), True),
        (picture(), copied(picture()), True),
        (picture(), picture("palette"), False),
        (picture(), Image.new("RGB", (16, 16)), False),
    ],
)
def test_messages_are_equal_by_their_content(one, other, same):
    assert equal(one, other) is same


# ---- a run whose every guest changes whatever it can reach

HELD = []
"""What guests have kept."""


def spoil(value):
    """Change everything that can be reached."""
    HELD.append(value)
    match value:
        case Image.Image():
            value.thumbnail((1, 1))
            value.paste(3, (0, 0, 1, 1))
        case dict():
            for inner in [*value.values()]:
                spoil(inner)
            value.clear()
            value["spoilt"] = True
        case list() | tuple():
            for inner in value:
                spoil(inner)
            if isinstance(value, list):
                value[:] = ["spoilt"]
        case Reply():
            spoil(value.completion)
            spoil([call.arguments for call in value.calls])


def rows():
    return [
        {
            "prompt": [{"role": "user", "content": f"question {number}"}],
            "id": number,
            "facts": {"tags": ["a", "b"]},
            "image": picture(),
        }
        for number in range(8)
    ]


def readable(prompts, completions, facts, image=None, **_):
    """The share of each row that is as it was, before this reward changes it."""
    values = []
    for number, prompt in enumerate(prompts):
        own = image and image[number]
        fine = [
            len(prompt) == 1 and prompt[0]["content"].startswith("question"),
            own is None or (own.size == (16, 16) and own.getpixel((0, 0)) == RED),
            facts[number] == {"tags": ["a", "b"]},
            set(completions[number]) <= set("012"),
        ]
        values.append(sum(fine) / len(fine))
        prompt.append({"role": "assistant", "content": completions[number]})
        prompt[0]["content"] = "another"
        facts[number]["tags"].append(completions[number])
        spoil([own, facts[number]])
    spoil([prompts, completions, image, facts])
    return values


async def awaited(prompts, completions, **columns):
    return readable(prompts, completions, **columns)


def trls(prompts, completions, completion_ids, trainer_state, log_extra, **columns):
    spoil(trainer_state.log_history)
    values = readable(prompts, completions, **columns)
    lists = [[value] for value in values]
    log_extra("logged", lists)
    HELD.append(lists)
    spoil([completion_ids, columns])
    return values


class Compares:
    """A reward that compares."""

    relative = True

    def __call__(self, prompts, completions, references, **columns):
        fine = [all(set(text) <= set("012") for text in each) for each in references]
        spoil(references)
        values = readable(prompts, completions, **columns)
        return [value * ok for value, ok in zip(values, fine, strict=True)]


class Learns:
    """A reward that is trained during the run."""

    def __call__(self, prompts, completions, **columns):
        return readable(prompts, completions, **columns)

    def refresh(self, rollouts, scores):
        spoil([*rollouts.prompts, rollouts.prompts, rollouts.completions, dict(rollouts.facts)])


class Spoils(Callback):
    def on_open(self, run):
        spoil(dict(run.settings))

    def on_samples(self, step, samples):
        spoil(samples)

    def on_step(self, step, metrics):
        spoil(metrics)
        for value in [*HELD]:  # what rewards have kept since
            spoil(value)

    def on_evaluation(self, step, evaluation):
        spoil([evaluation.samples, evaluation.metrics, evaluation.alarms])

    def on_end(self, result):
        spoil(result)


def fine(completions, **_):
    """What rewards return that find all as it was."""
    return [1.0] * len(completions)


GUESTS = {
    "sync": {"name": readable},
    "async": {"name": awaited},
    "isolated": {"name": readable, "isolate": True},
    "trl": {"name": trls},
    "relative": {"name": Compares()},
    "learned": {"name": Learns()},
}


MEASURED = ("time/", "reward_time/", "memory/", "decisions_per_second")


def train(lab, folder, prompts, guests, *, first=None, **options):
    """The metrics and the samples of a run with these rewards beside `ones`, or another one."""
    HELD.clear()
    groupwise.train(
        prompts={"name": prompts, "held_out": 0.4} if isinstance(prompts, list) else prompts,
        rewards=[first or lab.ones, *({**own, "label": f"r{n}"} for n, own in enumerate(guests))],
        train={"steps": 3, "groups_per_step": 4, "group_size": 4, "learning_rate": 0.1},
        evaluation={"prompts": 3, "samples": 2, "every": 1},
        output=folder,
        quiet=True,
        reports=[],
        **{"policy": lab.Tabular(), **options},
    )
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    metrics = [{k: v for k, v in each.items() if not k.startswith(MEASURED)} for each in lines]
    names = ("before", "after", "training")
    samples = [each for n in names for each in read_samples(folder / f"samples/{n}.jsonl")]
    return metrics, [{k: v for k, v in each.items() if k != "extra"} for each in samples]


@pytest.fixture(scope="module")
def clean(lab, tmp_path_factory):
    """A run whose rewards change nothing."""
    watch = [{"name": fine, "label": "w"}]
    folder = tmp_path_factory.mktemp("clean") / "run"
    return train(lab, folder, rows(), [{"name": fine}] * 2, watch=watch)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kind", GUESTS)
def test_what_rewards_watches_and_callbacks_change_changes_nothing_else(lab, tmp_path, clean, kind):
    """The members of a group and the later rewards, steps, samples and evaluations are as in a run
    without them, whatever they change and keep."""
    data = rows()
    guests = [GUESTS[kind], {"name": readable}]
    options = {"watch": [{"name": readable, "label": "w"}], "callbacks": [Spoils()]}
    metrics, samples = train(lab, tmp_path / "run", data, guests, **options)
    assert equal(data, rows())
    assert {each["rewards"][name] for each in samples for name in ("r0", "r1")} == {1.0}
    assert samples == clean[1]
    assert metrics == clean[0]


def test_the_same_of_prompts_from_a_file(lab, tmp_path):
    lines = [json.dumps({k: v for k, v in row.items() if k != "image"}) for row in rows()]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    prompts = {"name": "dataset", "path": str(tmp_path / "rows.jsonl"), "held_out": 0.4}
    run = train(lab, tmp_path / "run", prompts, [{"name": readable}, {"name": trls}])
    assert run == train(lab, tmp_path / "clean", prompts, [{"name": fine}] * 2)


class Speaks:
    """Makes a policy's completions messages, with a call of a tool."""

    def sample(self, prompts, **options):
        rollouts = super().sample(prompts, **options)
        call = {"function": {"name": "move", "arguments": {"to": [1]}}}
        spoken = [
            [{"role": "assistant", "content": text, "tool_calls": [deepcopy(call)]}]
            for text in rollouts.completions
        ]
        return replace(rollouts, completions=spoken)


class Guest(Environment):
    """Two completions; `spoils`: it changes all that it was passed and has passed, and goes on to
    change what it has kept."""

    def __init__(self, *, spoils):
        self.spoils = spoils

    def columns(self, labels):
        return ["screen", "log"]

    def opening(self, row):
        if self.spoils:
            row["prompt"].append("spoilt")
        return {**row, "prompt": rows()[row["id"]]["prompt"]}

    async def play(self, row, players):
        (player,) = players.values()
        first = await player(row)
        assert equal(row, rows()[row["id"]])
        messages = [*deepcopy(row["prompt"]), first.message]
        screen, log = picture(), [{"calls": deepcopy(first.calls[0].arguments)}]
        if self.spoils:
            spoil([row, first])
        tools = [{"type": "function", "function": {"name": "move"}}]
        last = await player(messages, tools=tools)
        columns = {"screen": screen, "log": log, "ended": "over"}
        if self.spoils:
            spoil([messages, tools, last])
            asyncio.get_running_loop().call_soon(spoil, [columns, *HELD[-50:]])
        return columns


def judge(prompts, completions, screen, log, **columns):
    """Whether all is as it was."""
    each = zip(prompts, completions, screen, log, columns["id"], strict=True)
    return [
        float(
            prompt == rows()[number]["prompt"]
            and completion[0]["tool_calls"][0]["function"]["arguments"] == {"to": [1]}
            and set(completion[0]["content"]) <= set("012")
            and (shown.size, shown.getpixel((0, 0))) == ((16, 16), RED)
            and noted == [{"calls": {"to": [1]}}]
        )
        for prompt, completion, shown, noted, number in each
    ]


def spoken_ones(completions, **_):
    return [completion[0]["content"].count("1") for completion in completions]


def test_an_environment_that_changes_what_it_holds_changes_nothing_else(lab, tmp_path):
    policy = type("Speaking", (Speaks, lab.Tabular), {})
    runs = []
    for spoils in (True, False):
        data, own = rows(), {"name": judge, "label": "r0"}
        options = {"policy": policy(), "environment": Guest(spoils=spoils)}
        run = train(lab, tmp_path / str(spoils), data, [own], first=spoken_ones, **options)
        assert equal(data, rows())
        assert {sample["rewards"]["r0"] for sample in run[1]} == {1.0}
        runs.append(run)
    assert runs[0] == runs[1]
