"""Damaged files and folders of a run: every command ends with an error of one sentence."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.command_line import call

from groupwise import Callback, train
from groupwise.storage.disk import reason

from . import projects

FILES = (
    "config.yaml",
    "run.json",
    "metrics.jsonl",
    "result.json",
    "samples/before.json",
    "samples/before.jsonl",
    "checkpoints/step_3/files.json",
    "checkpoints/step_3/state.json",
    "checkpoints/step_3/weights.safetensors",
    "checkpoints/step_3/optimizer.safetensors",
)
FOLDERS = ("samples", "checkpoints", "checkpoints/step_3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    home = projects.make(tmp_path_factory.mktemp("trained"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert call("train", "run.yaml", "--quiet").exit_code == 0
    return home


@pytest.fixture
def project(trained, tmp_path, monkeypatch) -> Path:
    """A copy of a project with a run of three steps and the checkpoints of the last two."""
    return copied(trained, tmp_path / "project", monkeypatch)


def copied(trained: Path, home: Path, monkeypatch) -> Path:
    monkeypatch.chdir(projects.copied(trained, home))
    return home


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


def remove(path: Path) -> None:
    path.unlink()


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def become_a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def become_a_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to(os.devnull)


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def invalid_utf8(path: Path) -> None:
    path.write_bytes(b"\xff\xfe" + path.read_bytes())


def replace_by_a_list(path: Path) -> None:
    path.write_text("[1, 2]")


def deep_json(path: Path) -> None:
    path.write_text("[" * 50_000 + "]" * 50_000)


def wrong_types(path: Path) -> None:
    path.write_text('{"step": "x", "config_folder": 7, "before": [1], "groupwise": null}')


def long_number(path: Path) -> None:
    path.write_text('{"step": ' + "9" * 6_000 + ', "reward": 1e999}\n')


DAMAGES = (
    *(
        empty,
        cut_in_half,
        scramble,
        remove,
        replace_by_a_folder,
        link_to_nothing,
        link_to_itself,
        invalid_utf8,
    ),
    *(replace_by_a_list, deep_json, wrong_types, long_number),
)
COMMANDS = {
    "resume": ("resume", "run", "train.steps=4", "--quiet"),
    "eval": ("eval", "run"),
    "report": ("report", "run"),
    "train": ("train", "run/config.yaml", "--resume", "train.steps=4", "--quiet"),
    "overwrite": ("train", "run.yaml", "--overwrite", "--quiet"),
}


def assert_one_sentence(result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 2), result.output
    if result.exit_code == 2:
        message = result.stderr[result.stderr.index("error: ") :]
        assert len(message) < 700, message
        assert "run" in message


@pytest.mark.attack(
    "A damaged file of a run ends a command with an error of one sentence, never a traceback",
    "10 files x 12 damages (cut, empty, scrambled, links, deep JSON, ...) x 5 commands",
)
def test_any_damage_to_any_file_gives_one_sentence(trained, tmp_path, monkeypatch, tries, full):
    cases = [(file, damage, name) for file in FILES for damage in DAMAGES for name in COMMANDS]
    for number, (file, damage, name) in enumerate(cases if full else cases[::23]):
        home = copied(trained, tmp_path / str(number), monkeypatch)
        damage(home / "run" / file)
        try:
            assert_one_sentence(call(*COMMANDS[name]))
        except BaseException as error:
            error.add_note(f"{file} {damage.__name__}, then {name}")
            raise
        shutil.rmtree(home)
        tries()


class LateError(BaseException):
    """No Exception, so that nothing handles it before the test fails."""


@contextmanager
def within(seconds: float):
    """Raises LateError in a call that takes longer, also in one that waits for a pipe."""

    def late(*_):
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


NO_FILES = [
    *(("metrics.jsonl", damage) for damage in (become_a_socket, link_to_a_device)),
    *((file, become_a_pipe) for file in (*FILES, "run.lock", "report.html", "result.json.new")),
]


@pytest.mark.parametrize(("file", "damage"), NO_FILES)
@pytest.mark.parametrize("name", ["resume", "report"])
def test_no_command_waits_for_a_pipe(project, file, damage, name):
    damage(project / "run" / file)
    with within(60):
        assert_one_sentence(call(*COMMANDS[name]))


@pytest.mark.parametrize("kind", [become_a_pipe, become_a_socket, replace_by_a_folder])
def test_metrics_are_written_to_a_file_alone(project, kind):
    """What takes the place of the file during a run is neither waited for nor replaced."""

    class Replacing(Callback):
        def on_step(self, step, metrics):
            kind(Path("run/metrics.jsonl"))

    with within(60), pytest.raises(OSError, match=r"metrics\.jsonl") as error:
        train("run.yaml", callbacks=[Replacing()], overwrite=True, quiet=True)
    assert re.match(r"expected a file, found a .*: /.*/metrics.jsonl", reason(error.value))


@pytest.mark.attack(
    "A damaged file of a run ends a command with an error of one sentence, never a traceback",
    "folders of a run removed, or replaced by files and links",
)
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("damage", ["missing", "a file", "dangling"])
def test_damaged_folders_give_one_sentence(project, folder, damage, tries):
    path = project / "run" / folder
    shutil.rmtree(path)
    if damage == "a file":
        path.write_text("no folder")
    elif damage == "dangling":
        path.symlink_to("/nowhere/at/all")
    for command in COMMANDS.values():
        assert_one_sentence(call(*command))
        tries()


def update_checksums(folder: Path) -> None:
    """Writes valid sizes and checksums of the files of a forged checkpoint."""
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in folder.iterdir()
        if path.name != "files.json"
    }
    (folder / "files.json").write_text(json.dumps(files))


def change_tensors(file: str, change: Callable) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / f"{file}.safetensors")
        change(tensors)
        save_file(tensors, folder / f"{file}.safetensors")

    return damage


def change_state(**values) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps(state | values))

    return damage


def set_one_value(value: float) -> Callable:
    return lambda tensors: tensors[max(tensors)].view(-1)[0].fill_(value)


FORGED = {
    "NaN weights": change_tensors("weights", set_one_value(float("nan"))),
    "infinite weights": change_tensors("weights", set_one_value(float("inf"))),
    "a NaN in the optimizer": change_tensors("optimizer", set_one_value(float("nan"))),
    "a negative step": change_state(step=-5),
    "a step of a thousand million": change_state(step=10**9),
    "a step that is a text": change_state(step="3"),
    "another run": change_state(run="another"),
    "no prompts": change_state(prompts=None),
    "no position in the prompts": change_state(prompts={}),
    "an endless position": change_state(prompts={"position": 3, "drawn": 10**30, "skipped": 0}),
    "negative seconds": change_state(seconds=-1.0),
    "a negative position": change_state(prompts={"position": -1, "drawn": 3, "skipped": 0}),
    "NaN seconds": change_state(seconds=float("nan")),
    "alarms that are a list": change_state(alarms=[1]),
    "rewards that are a list": change_state(rewards=[1]),
    "an optimizer that is a number": change_state(
        learners={"policy": {"updates": 1, "optimizer": 3}}
    ),
    "a tensor that is not there": change_state(rewards={"letters": {"<tensor>": "7"}}),
    "no names": change_state(names=None),
    "no weights": lambda folder: (folder / "weights.safetensors").unlink(),
    "no state": lambda folder: (folder / "state.json").unlink(),
}


@pytest.mark.attack(
    "A damaged checkpoint is skipped for the one before it, and a note gives the reason",
    "20 forged checkpoints with valid checksums (NaN, steps of -5 and 1e9, ...)",
)
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_skipped(project, name, tries):
    folder = project / "run" / "checkpoints" / "step_3"
    FORGED[name](folder)
    update_checksums(folder)
    result = call("resume", "run", "train.steps=4")
    text = " ".join(result.stderr.split())
    if name == "no weights":
        assert result.exit_code == 2
        assert "no weights" in text
    else:
        assert result.exit_code == 0, text
        assert "step_3 is damaged and was skipped: " in text
        assert json.loads((project / "run" / "result.json").read_text())["steps"] == 4
        names = {path.name for path in (project / "run" / "checkpoints").iterdir()}
        assert names == {"step_3", "step_4"}
    tries()


@pytest.mark.attack(
    "A damaged checkpoint is skipped for the one before it, and a note gives the reason",
    "one bit of its weights flipped, at 5 positions",
)
def test_a_checkpoint_with_a_flipped_bit_is_skipped(trained, tmp_path, monkeypatch, tries):
    weights = trained / "run" / "checkpoints" / "step_3" / "weights.safetensors"
    size = weights.stat().st_size
    for position in (8, 100, size // 3, 2 * size // 3, size - 1):
        home = copied(trained, tmp_path / str(position), monkeypatch)
        path = home / "run" / "checkpoints" / "step_3" / "weights.safetensors"
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)
        result = call("resume", "run", "train.steps=4")
        assert result.exit_code == 0
        assert "weights.safetensors has another checksum" in " ".join(result.stderr.split())
        metrics = projects.outcome(home / "run")[0]
        assert [line["step"] for line in metrics if "reward" in line] == [1, 2, 3, 4]
        tries()


def change_list(**files) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        listed = json.loads((folder / "files.json").read_text())
        (folder / "files.json").write_text(json.dumps(listed | files))

    return damage


FORGED_LISTS = {
    "an endless file": change_list(**{"state.json": {"bytes": float("inf"), "sha256": ""}}),
    "a device": change_list(**{"/dev/zero": {"bytes": 0, "sha256": ""}}),
    "a file elsewhere": change_list(**{"../../config.yaml": {"bytes": 9, "sha256": ""}}),
    "a name of nothing": change_list(**{"a\0b": {"bytes": 0, "sha256": ""}}),
    "a long name": change_list(**{"a" * 300: {"bytes": 0, "sha256": ""}}),
}


@pytest.mark.attack(
    "A damaged checkpoint is skipped for the one before it, and a note gives the reason",
    "5 forged lists of files (a device, a file outside the folder, infinite sizes)",
)
@pytest.mark.parametrize("name", FORGED_LISTS)
def test_a_checkpoint_with_a_forged_list_of_files_is_skipped(project, name, tries):
    FORGED_LISTS[name](project / "run" / "checkpoints" / "step_3")
    result = call("resume", "run", "train.steps=4")
    assert result.exit_code == 0, result.output
    assert "step_3 is damaged and was skipped: " in " ".join(result.stderr.split())
    tries()


def test_a_users_files_beside_checkpoints_are_kept(project, tmp_path):
    checkpoints = project / "run" / "checkpoints"
    for name in ("step_02", "step_3_best", "step_3.bak"):
        shutil.copytree(checkpoints / "step_3", checkpoints / name)
    (checkpoints / "step_9").write_text("mine")
    # An older checkpoint that was moved to another disk and linked.
    (checkpoints / "step_2").rename(tmp_path / "step_2")
    (checkpoints / "step_2").symlink_to(tmp_path / "step_2")
    assert call("resume", "run", "train.steps=4").exit_code == 0
    names = {path.name for path in checkpoints.iterdir()}
    assert names == {"step_02", "step_3_best", "step_3.bak", "step_9", "step_3", "step_4"}
    assert {path.name for path in (tmp_path / "step_2").iterdir()} == {
        path.name for path in (checkpoints / "step_02").iterdir()
    }


def test_an_unpaired_surrogate_in_the_configuration_is_escaped(project):
    """YAML can contain one; a model card cannot."""
    text = (project / "run.yaml").read_text()
    section = '{name: "letters:letters", label: "a \\ud800"}'
    (project / "run.yaml").write_text(text.replace("letters:letters", section))
    result = call("train", "run.yaml", "output=other")
    assert result.exit_code == 0, result.output
    assert "a \\ud800" in (project / "other" / "model" / "README.md").read_text()


def test_an_optimizer_of_other_shapes_is_refused(project):
    folder = project / "run" / "checkpoints" / "step_3"
    path = folder / "optimizer.safetensors"
    tensors = {name: t if t.dim() == 0 else torch.zeros(2) for name, t in load_file(path).items()}
    save_file(tensors, path)
    update_checksums(folder)
    result = call("resume", "run", "train.steps=4")
    assert result.exit_code == 2
    assert "the optimizer's state in the checkpoint is of another model" in result.stderr


def test_without_any_readable_checkpoint_the_error_names_all(project):
    for folder in (project / "run" / "checkpoints").iterdir():
        scramble(folder / "state.json")
    result = call("resume", "run", "train.steps=4")
    assert result.exit_code == 2
    assert "can be read: " in result.stderr
    assert "step_2" in result.stderr
    assert "step_3" in result.stderr


def test_with_a_damaged_first_evaluation_a_run_resumes_without_the_comparison(project):
    (project / "run" / "samples" / "before.jsonl").write_text('{"prompt": "1')
    result = call("resume", "run", "train.steps=4")
    assert result.exit_code == 0
    text = " ".join(result.stderr.split())
    assert "note: there is no first evaluation to compare with: " in text
    path = project / "run" / "samples" / "before.jsonl"
    # Without blanks, since a narrow terminal breaks lines.
    assert f"{path}isdamaged" in text.replace(" ", "")


def test_unreadable_lines_of_metrics_are_counted(project):
    with (project / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": "x"}\n\xff\xfe\n{"step": 2, "rew')
    result = call("resume", "run", "train.steps=4")
    assert result.exit_code == 0
    path = project / "run" / "metrics.jsonl"
    assert f"note:2linesof{path}aredamaged" in "".join(result.stderr.split())
    assert len((project / "run" / "metrics.jsonl").read_text().splitlines()) >= 4


def test_a_folder_without_permission_to_write_is_refused(project, monkeypatch):
    """Simulated, since tests may run as root."""

    opened = os.open

    def refused(path, flags, *rest, **more):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    result = call("resume", "run", "train.steps=4")
    assert result.exit_code == 2
    assert "error: output: cannot write to run: no permission" in result.stderr
