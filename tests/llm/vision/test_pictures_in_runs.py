"""Pictures in runs: samples, the page, `check`, tools that return pictures, the saved model."""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tests.command_line import call
from tests.llm.vision.standins import folder, picture

import groupwise
from groupwise.environment import Environment
from groupwise.episodes.calls import row_of
from groupwise.kit.errors import UserError
from groupwise.prompts.draws import Prompts
from groupwise.storage.samples import read_samples
from groupwise.testing import play_episodes
from groupwise_llm.vision.picture import BEYOND
from groupwise_llm.vision.settings import VisionSettings
from groupwise_llm.vision_language_model import VisionLanguageModel

MODEL = "qwen2_5_vl"


def question(*parts):
    return [{"role": "user", "content": [*parts] if len(parts) > 1 else parts[0]}]


def rows(count=8):
    return [{"prompt": question("How many?"), "image": picture(48, 32, n)} for n in range(count)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on pictures, and what its reward received."""
    received = []

    def reward(completions, image, **_):
        received.extend(image)
        return [float(len(completion[-1]["content"])) for completion in completions]

    result = groupwise.train(
        policy={"name": "vision_language_model", "model": str(folder(MODEL)), "max_new_tokens": 4},
        prompts=rows(),
        rewards=[reward],
        train={"steps": 1, "groups_per_step": 1, "group_size": 2},
        evaluation={"prompts": 2, "samples": 1, "greedy": False},
        output=tmp_path_factory.mktemp("pictures") / "run",
        quiet=True,
        **{"prompts.held_out": 0.5},
    )
    return result, received


def test_rewards_receive_pictures_as_rows_have_them(run):
    _, received = run
    assert {image.size for image in received} == {(48, 32)}


def test_samples_and_the_page_show_pictures(run):
    result, _ = run
    samples = read_samples(result.folder / "samples" / "after.jsonl")
    names = {name for sample in samples for name in sample["images"]}
    assert len(names) == 2
    assert (result.folder / "report.html").read_text().count("<img") == 4  # also in the table


def test_the_card_loads_the_saved_model_beside_its_processor(run):
    result, _ = run
    card = (result.folder / "model" / "README.md").read_text()
    assert "pipeline_tag: image-text-to-text" in card
    loaded = {}
    exec(card.partition("```python\n")[2].partition("```")[0], loaded)
    inputs = loaded["processor"].apply_chat_template(
        question({"type": "image", "image": picture(48, 32)}, {"type": "text", "text": "?"}),
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    assert loaded["model"].generate(**inputs, max_new_tokens=2).shape[0] == 1


# ---- check


def config(data, **policy):
    return {
        "policy": {"max_new_tokens": 4, **policy},
        "prompts": {"name": "dataset", "path": str(data), "held_out": 0},
        "rewards": [{"name": "exact_answer"}],
        "train": {"steps": 1, "groups_per_step": 1, "group_size": 2},
        "evaluation": {"prompts": 0},
        "output": "run",
    }


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        picture(48, 32, number).save(tmp_path / f"{number}.png")
    lines = [
        {"prompt": question("How many?"), "image": f"{n}.png", "answer": "1"} for n in range(4)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def checked(data, model=None, **policy):
    model = str(model or folder(MODEL))
    Path("run.yaml").write_text(yaml.safe_dump(config(data, model=model, **policy)))
    return call("check", "run.yaml")


@pytest.mark.slow
def test_check_shows_pictures_with_their_size_and_tokens(data):
    result = checked(data, name="vision_language_model")
    assert result.exit_code == 0, result.output
    shown = [line for line in result.output.splitlines() if line.startswith("  |")]
    assert any("[picture 48x32: 12 tokens]<|vision_end|>How many?" in line for line in shown), shown
    assert "0x" not in "".join(shown).replace("48x32", "")


def test_check_names_the_row_of_a_picture_that_cannot_be_opened(data):
    (data.parent / "2.png").write_text("words")
    result = checked(data, name="vision_language_model")
    assert result.exit_code != 0
    assert "prompts, row 2, column 'image': " in result.output
    assert "2.png is not a picture" in result.output


@pytest.mark.slow
def test_check_says_that_a_model_of_text_sees_no_pictures(data):
    model = Path(groupwise.__file__).parents[2] / "examples" / "arithmetic" / "base"
    result = checked(data, name="language_model", model=model)
    assert result.exit_code == 0, result.output
    assert "the rows have pictures (columns image or images), which this policy" in result.output
    block = {"type": "image", "image": "0.png"}
    line = {"prompt": question(block, {"type": "text", "text": "?"}), "answer": "1"}
    data.write_text(json.dumps(line) + "\n")
    result = checked(data, name="language_model", model=model)
    assert result.exit_code != 0
    assert "reads text alone" in result.output
    assert "a policy vision_language_model reads pictures, too" in result.output


# ---- tools


class Zoom(Environment):
    """Each turn is answered by a picture; keeps what the player left of it."""

    def __init__(self, content):
        self.content, self.seen = content, []

    async def play(self, row, players):
        (player,) = players.values()
        messages = [*row["prompt"]]
        for _ in range(2):
            reply = await player(messages, limit=2)
            content = await player.shortened(self.content, 20)
            self.seen.append(content)
            messages += [reply.message, {"role": "tool", "name": "zoom", "content": content}]
        await player(messages, limit=2)


def placed(kind, settings, **options):
    policy = kind(settings(model=str(folder(MODEL)), max_new_tokens=200, **options))
    policy.place(torch.device("cpu"))
    return policy


@pytest.fixture(scope="module")
def policy():
    return placed(VisionLanguageModel, VisionSettings)


SMALL = {"type": "image", "image": picture(48, 32, 1)}
WORDS = {"type": "text", "text": "closer"}


def test_pictures_of_tools_are_seen_trained_around_and_given_to_rewards(policy, rounding):
    episodes = play_episodes(Zoom([SMALL, WORDS]), {"policy": policy}, rows(1))
    rollouts = episodes.judged
    tools = [own for own in rollouts.completions[0] if own["role"] == "tool"]
    assert [own["content"] for own in tools] == [[SMALL, WORDS]] * 2
    assert SMALL["image"] is not tools[0]["content"][0]["image"]  # it may be drawn on
    whole = episodes.rollouts("policy")
    drawn = whole.mask
    rounding.same(lambda: policy(whole).log_probs[drawn], whole.sampler_log_probs[drawn])
    ids = whole.tensor("completion_ids")[0]
    assert int((ids >= BEYOND).sum()) == 2 * len(policy.codec.reader.album.picture(SMALL["image"]))


class Screen(Environment):
    """Each turn shows the screen, in a context of its own or after the earlier ones.

    picture: makes one of pixels; same: it is one object, which is drawn on.
    """

    def __init__(self, picture, *, again, same=False):
        self.picture, self.again, self.same = picture, again, same

    async def play(self, row, players):
        (player,) = players.values()
        messages, canvas = [], Image.new("RGB", (48, 32))
        for level in (50, 150, 250):
            pixels = np.full((32, 48, 3), level, dtype=np.uint8)
            screen = canvas if self.same else self.picture(pixels)
            if self.same:
                canvas.paste((level,) * 3, (0, 0, 48, 32))
            shown = {"role": "user", "content": [{"type": "image", "image": screen}, WORDS]}
            messages = [*messages, shown] if self.again else [shown]
            reply = await player(messages, limit=3)
            messages.append(reply.message)
            if self.again:  # as an agent that holds no objects sends it anew
                messages = deepcopy(messages) if not self.same else messages


@pytest.mark.parametrize("again", [True, False])
def test_pixels_of_an_array_are_a_picture_in_every_turn(policy, again):
    of_arrays, of_images = (
        play_episodes(Screen(make, again=again), {"policy": policy}, [{"prompt": "go"}], size=2)
        for make in (np.asarray, Image.fromarray)
    )
    assert not of_arrays.failures
    one, other = of_arrays.rollouts("policy"), of_images.rollouts("policy")
    assert len(one) == len(other) == (2 if again else 6)
    assert torch.equal(one.tensor("completion_ids"), other.tensor("completion_ids"))


def test_a_screen_that_is_drawn_on_stays_as_the_model_saw_it(policy):
    same, fresh = (
        play_episodes(
            Screen(Image.fromarray, again=True, same=own), {"policy": policy}, [{"prompt": "go"}]
        )
        for own in (True, False)
    )
    tokens = [own.rollouts("policy").tensor("completion_ids") for own in (same, fresh)]
    assert torch.equal(*tokens)
    assert same.judged.completions == fresh.judged.completions


def test_a_picture_that_does_not_fit_or_open_becomes_words_for_the_model(policy, tmp_path):
    large, broken = {"type": "image", "image": picture(96, 96)}, {"type": "image", "image": b"x"}
    picture(48, 32).save(tmp_path / "own.png")
    private = {"type": "image", "image": str(tmp_path / "own.png")}
    missing = {"type": "image", "image": str(tmp_path / "none.png")}
    zoom = Zoom([SMALL, large, broken, private, missing, WORDS])
    play_episodes(zoom, {"policy": policy}, rows(1))
    first, second, *others, last = zoom.seen[0]
    assert first == SMALL
    assert "is left out: the most are 8" in second["text"]
    words = {"type": "text", "text": "[a picture that cannot be shown]"}
    assert others == [words] * 3  # without a word about what is on the run's machine
    assert last["type"] == "text"


def test_a_picture_that_is_cut_off_is_named_with_its_row_where_that_is_drawn(policy, tmp_path):
    file = tmp_path / "cut.png"
    picture(48, 32).save(file)
    file.write_bytes(file.read_bytes()[:-40])
    source = Prompts([{"prompt": question("?"), "image": str(file)}], fraction=0)
    policy.check_prompts(source.rows())
    (draw,) = source.take(1)
    for row in (draw.row, row_of(question("Which?"), draw.row, None)):
        with pytest.raises(
            UserError, match=r"^prompts, row 0, column 'image': .* cannot be opened"
        ):
            policy.encode([row])


SILENT = (
    "{% for message in messages %}"
    "{% if message.content is string %}{{ message.content }}{% elif message.role == ROLE %}"
    "{% for block in message.content if block.type == 'image' %}<|image_pad|>{% endfor %}"
    "{% endif %}<|im_end|>{% endfor %}"
)


def with_template(role):
    """A policy whose template writes the pictures in messages of this role alone."""
    template = {"chat_template": SILENT.replace("ROLE", repr(role))}
    return placed(VisionLanguageModel, VisionSettings, chat_template=template)


def test_a_template_that_leaves_out_pictures_is_refused():
    with pytest.raises(UserError, match="writes 0 of 1 pictures of these messages"):
        with_template("tool").encode(rows(1))
    policy = with_template("user")
    (context,) = policy.encode(rows(1))
    (turn,) = policy.draw([context], seeds=[0], limits=[2])
    answer = [{"role": "tool", "content": [SMALL]}]
    with pytest.raises(UserError, match="writes 0 of 1 pictures of these messages"):
        policy.extend(policy.with_turn(context, turn), answer)
