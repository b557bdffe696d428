"""Trackers: metrics and samples sent, resumed runs, failures.

TensorBoard and Trackio are real, and their files are read; a stand-in replaces the others.
"""

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

import groupwise
from groupwise.callback import RunContext
from groupwise.evaluation import Evaluation
from groupwise.kit.errors import UserError
from groupwise.registry import installed
from groupwise.run.evaluate import evaluate_run
from groupwise_trackers import settings
from groupwise_trackers.samples import LONGEST, shown, words
from groupwise_trackers.tracker import FAILURES


def train(lab, folder, tracking, *, steps=2, **sections):
    defaults = {
        "policy": lab.Tabular(),
        "prompts": {"name": "rows", "rows": lab.rows(8), "held_out": 0.5},
        "rewards": lab.ones,
        "train": {"steps": steps, "groups_per_step": 4, "learning_rate": 0.1},
        "evaluation": {"every": 1, "samples": 2},
        "tracking": tracking,
        "output": folder / "run",
        "quiet": True,
    }
    return groupwise.train(**defaults | sections)


def sample(draw, completion, **fields):
    row = {"prompt": f"question {draw}", "completion": completion, "total": 0.5 * draw}
    row |= {"right": bool(draw % 2), "rewards": {"correct": 0.5}, "greedy": True, "index": 0}
    return {**row, "draw": draw, **fields}


def open_tracker(folder, name, *, step=0, **options):
    """An open tracker, and the list of its warnings."""
    PartialState()
    folder.mkdir(exist_ok=True)
    warnings: list[str] = []
    kind = installed().load("trackers", name)
    tracker = kind(kind.Config(**options))
    context = RunContext(
        folder=folder, settings={"train.steps": 100}, step=step, say=warnings.append
    )
    tracker.on_open(context)
    return tracker, warnings


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# ---- what is sent


def test_pictures_of_prompts_are_words_in_a_table():
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 48))
    block, text = {"type": "image", "image": image}, {"type": "text", "text": "What?"}
    chat = [{"role": "user", "content": [block, {"type": "image"}, text]}]
    table = shown([sample(0, "a", images=[image]), sample(1, chat, prompt=chat)], 2)
    assert table.rows[0][0] == "[picture 64x48]\nquestion 0"
    assert table.rows[1][0] == table.rows[1][1] == "user: [picture 64x48]\n[image]\nWhat?"


def test_an_edited_picture_is_sent_beside_its_source():
    image = pytest.importorskip("PIL.Image")
    source, result = image.new("RGB", (8, 4), "red"), image.new("RGB", (6, 6), "blue")
    (sent,) = shown([sample(0, result, images=[source])], 1).images.values()
    assert sent.size == (12 + 6, 6)
    assert (sent.getpixel((11, 3)), sent.getpixel((12, 3))) == ((255, 0, 0), (0, 0, 255))
    (alone,) = shown([sample(0, result, images=["gone.png"])], 1).images.values()
    assert alone is result


def test_one_completion_is_sent_for_each_prompt():
    samples = [
        sample(3, "c", greedy=False, index=1),
        sample(3, "b", greedy=False),
        sample(1, "x", greedy=False, learner="one", rewards={"format": 1.0}),
        sample(1, "y", learner="one"),
        sample(1, "z", learner="two", right=None),
        sample(7, "w"),
    ]
    table = shown(samples, 2)
    assert table.columns == [
        "prompt", "completion", "reward", "right", "correct", "policy"
    ]  # fmt: skip
    assert table.rows == [
        ["question 3", "b", 1.5, True, 0.5, ""],
        ["question 1", "y", 0.5, True, 0.5, "one"],
        ["question 1", "z", 0.5, None, 0.5, "two"],
    ]
    assert table.names == ["prompt 3", "prompt 1/one", "prompt 1/two"]
    assert shown(samples, 0).rows == []


def test_messages_become_text_and_long_ones_keep_their_end():
    assert words([{"role": "user", "content": "a"}, {"role": "tool"}]) == "user: a\ntool: "
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "to": "b"}}}
    called = [{"role": "assistant", "content": "so", "tool_calls": [call, call]}]
    arrow = "\N{RIGHTWARDS ARROW}"
    assert words(called) == f'assistant: so\n{arrow} add(a=1, to="b")\n{arrow} add(a=1, to="b")'
    assert words(None) == ""
    long = words("x" * 50_000 + "the answer")
    assert len(long) < LONGEST + 50
    assert "[40,010 characters left out]" in long
    assert long.endswith("the answer")


# ---- TensorBoard and Trackio


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    return events


def text(events, tag, step):
    (tensor,) = (e.tensor_proto for e in events.Tensors(f"{tag}/text_summary") if e.step == step)
    return tensor.string_val[0].decode()


def check_scalars(folder):
    """TensorBoard has each number of metrics.jsonl once, and no other."""
    events = read_events(folder)
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in
               events.Tags()["scalars"]}  # fmt: skip
    expected: dict[str, list] = {}
    for line in sorted(lines_of(folder), key=lambda line: line["step"]):
        for key, value in line.items():
            if key != "step" and value is not None:
                expected.setdefault(key, []).append((line["step"], pytest.approx(value, rel=1e-5)))
    assert scalars == expected
    return events


@pytest.mark.slow
def test_tensorboard_has_each_value_of_metrics_jsonl_once_also_after_resuming(lab, tmp_path):
    settings = {"tracking": ["tensorboard"], "evaluation": {"every": 2, "samples": 2}}
    result = train(lab, tmp_path, settings["tracking"], steps=3)
    events = check_scalars(result.folder)
    assert "train.steps: 3" in text(events, "configuration", 0)
    table = text(events, "samples", 3).splitlines()
    assert table[0] == "| prompt | completion | reward | right | ones |"
    assert len(table) == 2 + 3  # held-out prompts
    # A killed run had sent a step after its checkpoint; the resumed run repeats it.
    checkpoint = result.folder / "checkpoints" / "step_3"
    assert checkpoint.is_dir()
    killed, _ = open_tracker(result.folder, "tensorboard", step=3)
    killed.on_step(4, {"reward": 77.0})
    killed.on_close()
    train(lab, tmp_path, settings["tracking"], steps=5, resume=True)
    check_scalars(result.folder)


def test_tensorboard_shows_the_image_of_a_prompt_over_the_steps(tmp_path):
    image = pytest.importorskip("PIL.Image")
    tracker, warnings = open_tracker(tmp_path / "run", "tensorboard")
    for step, blue in ((0, 10), (5, 200)):
        picture = image.new("RGB", (4, 2), (1, 2, blue))
        tracker.on_evaluation(step, Evaluation({"reward": 1.0}, [sample(6, picture)]))
    tracker.on_close()
    events = read_events(tmp_path / "run")
    images = events.Images("images/prompt 6")
    assert [(event.step, event.width, event.height) for event in images] == [(0, 4, 2), (5, 4, 2)]
    import io

    pixels = [np.asarray(image.open(io.BytesIO(event.encoded_image_string))) for event in images]
    assert [p[0, 0].tolist() for p in pixels] == [[1, 2, 10], [1, 2, 200]]
    assert warnings == []


def film(*greys):
    videos = pytest.importorskip("groupwise_messages.video")
    frames = np.full((len(greys), 2, 4, 3), 0, np.uint8)
    frames[:] = np.reshape(greys, (-1, 1, 1, 1))
    return videos.Video(frames, 4)


def frames_of(gif):
    from PIL import Image

    with Image.open(gif) as animation:
        return animation.format, getattr(animation, "n_frames", 1), animation.info["duration"]


def test_tensorboard_shows_the_video_of_a_prompt(tmp_path):
    import io

    tracker, warnings = open_tracker(tmp_path / "run", "tensorboard")
    tracker.on_evaluation(3, Evaluation({"reward": 1.0}, [sample(6, film(0, 90, 200))]))
    tracker.on_close()
    (event,) = read_events(tmp_path / "run").Images("videos/prompt 6")
    assert (event.step, event.width, event.height) == (3, 4, 2)
    assert frames_of(io.BytesIO(event.encoded_image_string)) == ("GIF", 3, 250)
    assert warnings == []


@pytest.fixture(scope="module")
def trackio():
    return pytest.importorskip("trackio")


def test_trackio_has_metrics_and_samples_of_a_resumed_run_in_one_run(lab, tmp_path, trackio):
    """Takes about 4 s, mostly the import of trackio."""
    from trackio.sqlite_storage import SQLiteStorage as Storage

    options = {"auto_log_cpu": False, "auto_log_gpu": False}
    section = {"name": "trackio", "project": "p", "run": "r", "offline": True, **options}
    result = train(lab, tmp_path, [section], steps=2)
    train(lab, tmp_path, [section], steps=3, resume=True)
    assert Storage.get_runs("p") == ["r"]
    logs = Storage.get_logs("p", "r")
    for line in lines_of(result.folder):
        sent = [log for log in logs if log["step"] == line["step"]]
        for key in line.keys() - {"step"}:
            values = [log[key] for log in sent if log.get(key) is not None]
            assert values == ([] if line[key] is None else [pytest.approx(line[key], rel=1e-5)])
    tables = [log["samples"]["_value"] for log in logs if log.get("samples")]
    assert len(tables) == 4  # before, at step 1, after; and after the resumed run
    assert [*tables[0][0]] == ["prompt", "completion", "reward", "right", "ones"]
    assert len(tables[0]) == 3  # held-out prompts
    assert Storage.get_run_config("p", "r")["train.groups_per_step"] == 4


def test_trackio_shows_images_in_the_table(tmp_path, trackio):
    from PIL import Image
    from trackio.sqlite_storage import SQLiteStorage as Storage

    options = {"auto_log_cpu": False, "auto_log_gpu": False}
    tracker, _ = open_tracker(tmp_path / "drawn", "trackio", project="q", **options)
    image_sample = sample(1, Image.new("RGB", (3, 3), (9, 8, 7)))
    samples = [image_sample, sample(2, None), sample(3, film(0, 200))]
    tracker.on_evaluation(0, Evaluation({"reward": 1.0}, samples))
    tracker.on_close()
    (table,) = [
        log["samples"]["_value"] for log in Storage.get_logs("q", "drawn") if "samples" in log
    ]
    cell = table[0]["completion"]
    assert cell["_type"] == "trackio.image"
    file = trackio.utils.MEDIA_DIR / cell["file_path"]
    assert Image.open(file).convert("RGB").getpixel((0, 0)) == (9, 8, 7)
    assert table[1]["completion"] == ""
    moving = trackio.utils.MEDIA_DIR / table[2]["completion"]["file_path"]
    assert frames_of(moving) == ("GIF", 2, 250)


# ---- other trackers


class StandIn(GeneralTracker):
    """A tracker of accelerate that records what it is sent and fails at the steps in `broken`."""

    name, requires_logging_directory = "stand_in", False
    opened: ClassVar[list] = []
    broken: frozenset[int] = frozenset()

    def __init__(self, run_name=None, **options) -> None:
        super().__init__()
        self.project, self.options = run_name, options
        self.logged: list = []
        self.tables: list = []
        self.images: list = []
        self.settings = None
        self.closed = False
        StandIn.opened.append(self)

    @property
    def tracker(self):
        return SimpleNamespace(id="the-id", name="n", info=SimpleNamespace(run_id="the-id"))

    def store_init_configuration(self, values) -> None:
        self.settings = values

    def log(self, values, step=None, **_) -> None:
        if step in StandIn.broken:
            raise ConnectionError("no route to host")
        self.logged.append((step, values))

    def log_table(self, name, columns, data, step) -> None:
        self.tables.append((name, columns, data, step))

    def log_images(self, values, step) -> None:
        self.images.append((step, values))

    def finish(self) -> None:
        self.closed = True


@pytest.fixture
def stand_in(monkeypatch):
    """Replaces wandb, swanlab and mlflow; `opened` has all open trackers, the newest last."""
    monkeypatch.setattr(StandIn, "opened", [])
    monkeypatch.setattr(StandIn, "broken", frozenset())
    installed = lambda: ["wandb", "swanlab", "mlflow", "tensorboard", "trackio"]  # noqa: E731
    monkeypatch.setattr(settings, "get_available_trackers", installed)
    calls: list = []

    def call(name):
        return lambda *args, **options: calls.append((name, args, options))

    for name in ("wandb", "swanlab", "mlflow"):
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, StandIn)
        module = ModuleType(name)
        for kind in ("Image", "Text"):
            setattr(module, kind, lambda value, caption=None, kind=kind: (kind, value, caption))
        module.Video = lambda value, caption=None, **_: ("Video", frames_of(value), caption)
        for function in ("set_tracking_uri", "log_table", "log_image"):
            setattr(module, function, call(function))
        module.log_artifact = lambda path, folder: calls.append((frames_of(path), folder))
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(kind=StandIn, opened=StandIn.opened, calls=calls)


class Drawing:
    """An image, recognised by its method `save`."""

    def save(self, path) -> None:
        raise AssertionError


def evaluation_of(*completions):
    samples = [sample(n, completion) for n, completion in enumerate(completions)]
    return Evaluation({"reward": 0.25, "accuracy": float("nan")}, samples)


def test_wandb_has_a_table_and_images(tmp_path, stand_in):
    options = {"project": "p", "entity": "team", "offline": True, "samples": 2}
    tracker, _ = open_tracker(tmp_path / "folder", "wandb", **options)
    (wandb,) = stand_in.opened
    assert wandb.project == "p"
    assert wandb.options.pop("config")["train.steps"] == 100
    assert wandb.options == {
        "name": "folder", "dir": str(tmp_path / "folder"), "mode": "offline", "entity": "team"
    }  # fmt: skip
    drawing = Drawing()
    tracker.on_evaluation(3, evaluation_of("", drawing, "cut off by samples"))
    tracker.on_step(3, {"evaluation/reward": 0.25, "kl": 0.1, "nothing": None, "word": "x"})
    tracker.on_close()
    assert wandb.logged == [(3, {"evaluation/reward": 0.25}), (3, {"kl": 0.1})]
    ((name, columns, rows, step),) = wandb.tables
    assert (name, step) == ("samples", 3)
    assert columns == ["prompt", "completion", "reward", "right", "correct"]
    assert rows[0][:2] == ["question 0", None]  # a failed sample: a text would be another type
    assert rows[1][:2] == ["question 1", ("Image", drawing, None)]
    assert len(rows) == 2
    assert wandb.images == [(3, {"images": [drawing]})]
    assert wandb.closed


def test_completions_of_training_are_a_table_of_their_own(tmp_path, stand_in):
    tracker, _ = open_tracker(tmp_path / "run", "wandb", training_samples=5)
    (wandb,) = stand_in.opened
    drawing = Drawing()
    kept = [
        {**sample(1, drawing), "chosen": ["best", "first"], "advantage": 0.5},
        {**sample(2, "text"), "chosen": ["longest"], "advantage": None},
    ]
    for step in (1, 2, 4, 5):
        tracker.on_samples(step, kept)
    assert [(name, step) for name, _, _, step in wandb.tables] == [
        ("training_samples", 1),
        ("training_samples", 5),
    ]
    _, columns, rows, _ = wandb.tables[0]
    assert columns == ["chosen", "prompt", "completion", "reward", "right", "correct", "advantage"]
    assert [rows[0][0], rows[0][2], rows[0][-1]] == ["best, first", "", 0.5]  # it is in the panel
    assert [rows[1][0], rows[1][2], rows[1][-1]] == ["longest", "text", None]
    assert wandb.images[0] == (1, {"training_images": [drawing]})
    tracker.on_close()


def test_swanlab_has_captions(tmp_path, stand_in):
    tracker, _ = open_tracker(tmp_path / "run", "swanlab", run="mine")
    (swanlab,) = stand_in.opened
    assert swanlab.options["experiment_name"] == "mine"
    assert "mode" not in swanlab.options
    drawing = Drawing()
    tracker.on_evaluation(0, evaluation_of("a", drawing))
    values = swanlab.logged[1][1]
    assert values["samples"] == [("Text", "a", "prompt 0, reward 0.0: question 0")]
    assert values["images"] == [("Image", drawing, "prompt 1, reward 0.5: question 1")]


def test_mlflow_has_valid_names_and_parameters_once(tmp_path, stand_in):
    address = {"tracking_uri": "http://127.0.0.1:9", "run": "r"}
    tracker, _ = open_tracker(tmp_path / "run", "mlflow", **address)
    (mlflow,) = stand_in.opened
    assert stand_in.calls == [("set_tracking_uri", ("http://127.0.0.1:9",), {})]
    assert mlflow.settings["train.steps"] == 100
    assert "tracking_uri" not in mlflow.options
    tracker.on_step(1, {"rewards/50% right!": 0.5, "writer/kl": 0.25})
    assert mlflow.logged == [(1, {"rewards/50_ right_": 0.5, "writer/kl": 0.25})]
    drawing = Drawing()
    tracker.on_evaluation(2, evaluation_of("a", drawing))
    (_, (table, file), _), (_, (image,), key) = stand_in.calls[1:]
    assert (table["completion"], file) == (["a", ""], "samples/step_2.json")
    assert (image, key) == (drawing, {"key": "prompt 1", "step": 2})
    tracker.on_close()
    resumed, _ = open_tracker(tmp_path / "run", "mlflow", step=2, **address)
    assert stand_in.opened[-1].options["run_id"] == "the-id"
    assert stand_in.opened[-1].settings is None
    resumed.on_close()
    open_tracker(tmp_path / "off", "mlflow", offline=True)
    database = tmp_path / "off" / "mlflow" / "mlflow.db"
    assert stand_in.calls[-1] == ("set_tracking_uri", (f"sqlite:///{database}",), {})


def test_videos_are_sent_as_gifs(tmp_path, stand_in):
    evaluation = evaluation_of("a", film(0, 90, 200))
    moving = "GIF", 3, 250
    for name in ("wandb", "swanlab", "mlflow"):
        tracker, warnings = open_tracker(tmp_path / name, name)
        tracker.on_evaluation(2, evaluation)
        assert warnings == []
    wandb, swanlab, _ = stand_in.opened
    ((_, _, rows, _),) = wandb.tables
    assert [row[1] for row in rows] == ["a", ""]  # a column of wandb's has one type
    assert wandb.logged[1] == (2, {"videos": [("Video", moving, None)]})
    values = swanlab.logged[1][1]
    assert values["videos"] == [("Video", moving, "prompt 1, reward 0.5: question 1")]
    assert "images" not in values
    assert stand_in.calls[-1] == (moving, "videos/step_2/prompt 1")


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_resumed_run_continues_the_same_run_of_the_tracker(lab, tmp_path, stand_in, name):
    train(lab, tmp_path, [name], steps=1)
    train(lab, tmp_path, [name], steps=2, resume=True)
    first, second = (opened_tracker.options for opened_tracker in stand_in.opened)
    assert "id" not in first
    assert (second["id"], second["resume"]) == ("the-id", "allow")
    assert {step for step, _ in stand_in.opened[1].logged} == {2}
    train(lab, tmp_path, [name], steps=1, overwrite=True)  # a new run is also new in the tracker
    assert "id" not in stand_in.opened[2].options


def test_metrics_of_a_pool_keep_the_labels_of_its_policies(lab, tmp_path, stand_in):
    players = [{"label": label, "policy": lab.Tabular(seed=n)} for n, label in enumerate("ab")]
    pool = {"policy": None, "environment": "pool", "players": players}
    train(lab, tmp_path, ["wandb"], steps=1, **pool)
    names = {name for _, values in stand_in.opened[0].logged for name in values}
    assert {"a/reward", "b/reward", "evaluation/reward/a", "reward"} <= names
    assert stand_in.opened[0].tables[0][1][-1] == "policy"


# ---- failures


def test_a_failing_tracker_loses_no_step_and_warns_once(lab, tmp_path, stand_in, capsys):
    stand_in.kind.broken = frozenset({1, 2})
    train(lab, tmp_path, ["wandb"], steps=4, evaluation={"prompts": 0}, quiet=False)
    output = capsys.readouterr().err.replace("\n", " ")
    assert output.count("tracker wandb failed at step 1: no route to host") == 1
    assert output.count("warning: tracker") == 1
    assert [step for step, _ in stand_in.opened[0].logged] == [3, 4]
    assert len(lines_of(tmp_path / "run")) == 4


def test_a_tracker_that_keeps_failing_is_no_longer_used(tmp_path, stand_in):
    tracker, warnings = open_tracker(tmp_path / "run", "wandb")
    stand_in.kind.broken = frozenset(range(1, 1 + FAILURES))
    (wandb,) = stand_in.opened
    for step in range(1, FAILURES + 3):
        tracker.on_step(step, {"reward": 1.0})
    first, last = warnings
    assert first.startswith("warning: tracker wandb failed at step 1: no route to host; the run")
    assert last == f"warning: tracker wandb failed {FAILURES} times in a row and is left off"
    tracker.on_close()
    assert (wandb.logged, wandb.closed) == ([], False)


def test_trackers_are_closed_when_the_run_fails(lab, tmp_path, stand_in):
    def failing(completions):
        raise ZeroDivisionError

    with pytest.raises(ValueError, match="ZeroDivisionError"):
        train(lab, tmp_path, ["wandb"], rewards=failing)
    assert stand_in.opened[0].closed


def test_a_tracker_that_cannot_be_opened_ends_the_run_before_its_first_step(lab, tmp_path):
    message = r"tracking\.0: tensorboard could not be opened: .*unexpected keyword .*'color'"
    with pytest.raises(UserError, match=message):
        train(lab, tmp_path, [{"name": "tensorboard", "color": 1}])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (["wandb"], r"tracking\.0: wandb is not installed: pip install 'groupwise\[wandb\]'"),
        (["tensorboard", {"name": "tensorboard"}], r"tracking\.1: tensorboard is named twice"),
        (
            [{"name": "trackio", "offline": True, "space_id": "me/x"}],
            r"tracking\.0: offline sends nothing to a server, and space_id names one",
        ),
        ([{"name": "tensorboard", "api_key": "${NO_SUCH}"}], "no environment variable NO_SUCH"),
        (["tensorbord"], r"tracking\.0\.name: .*'tensorboard'"),
    ],
)
def test_wrong_sections_are_refused_before_anything_is_loaded(
    lab, tmp_path, monkeypatch, sections, message
):
    installed = [name for name in map(str, settings.get_available_trackers()) if name != "wandb"]
    monkeypatch.setattr(settings, "get_available_trackers", lambda: installed)
    with pytest.raises(UserError, match=message):
        train(lab, tmp_path, sections, policy=lambda: pytest.fail("a policy was built"))
    assert not (tmp_path / "run").exists()


def test_a_tracker_is_closed_if_another_one_cannot_be_opened(lab, tmp_path, stand_in):
    sections = ["wandb", {"name": "tensorboard", "color": 1}]
    with pytest.raises(UserError, match=r"tracking\.1: tensorboard could not be opened"):
        train(lab, tmp_path, sections)
    assert stand_in.opened[0].closed


def test_local_files_of_trackers_are_replaced_with_the_run(lab, tmp_path):
    train(lab, tmp_path, ["tensorboard"], steps=1)
    (tmp_path / "run" / "wandb").mkdir()  # no tracker of this run wrote it
    train(lab, tmp_path, [], steps=1, overwrite=True)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert not (tmp_path / "run" / "tracking.json").exists()
    assert [path.name for path in (tmp_path / "run.replaced").iterdir()] == ["wandb"]


def test_secrets_are_sent_to_the_tracker_but_are_in_no_settings(
    lab, tmp_path, stand_in, monkeypatch
):
    monkeypatch.setenv("MY_KEY", "key-of-the-environment")
    section = {"name": "wandb", "api_key": "${MY_KEY}", "hf_token": "key-in-the-file"}
    train(lab, tmp_path, [section], steps=1)
    options = stand_in.opened[0].options
    assert options["api_key"] == "key-of-the-environment"
    assert options["hf_token"] == "key-in-the-file"
    assert "key-" not in str(options["config"])
    for file in ("tracking.json", "config.yaml", "run.json"):
        assert "key-" not in (tmp_path / "run" / file).read_text()


def test_a_run_is_evaluated_again_without_its_trackers(lab, tmp_path, stand_in, monkeypatch):
    monkeypatch.setenv("MY_KEY", "key-of-the-environment")
    section = {"name": "wandb", "api_key": "${MY_KEY}", "hf_token": "key-in-the-file"}
    run = train(lab, tmp_path, [section], steps=1).folder
    monkeypatch.delenv("MY_KEY")
    monkeypatch.setattr(settings, "get_available_trackers", list)
    objects = {("policy",): lab.Tabular(), ("rewards", 0): lab.ones}
    folder = evaluate_run(run, objects=objects).folder
    config = (folder / "config.yaml").read_text()
    assert "${MY_KEY}" in config
    assert "key-in-the-file" not in config
    assert len(stand_in.opened) == 1


@pytest.mark.slow
def test_importing_groupwise_imports_no_tracker():
    names = ["wandb", "tensorboard", "torch.utils.tensorboard", "trackio", "mlflow", "swanlab"]
    code = (
        "import sys, groupwise, groupwise.run.train, groupwise_trackers.wandb\n"
        f"print([name for name in {names} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
