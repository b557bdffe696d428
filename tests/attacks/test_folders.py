"""The folder of a run: which files may be replaced, when, and by which process."""

import json
import os
import pkgutil
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from tests import command_line
from tests.core.launching import Job

import groupwise
from groupwise.config.load import load_config
from groupwise.kit.errors import UserError
from groupwise.storage.run_folder import RunFolder

from . import projects

NEVER_REMOVED = "A folder that no run wrote is never removed, with --overwrite or without"
KEPT_UNTIL_FIRST_STEP = "A replaced run is kept until the new one has made its first step"
ONE_PROCESS = "Two processes never write to one run: the second is refused with the id of the first"

FAILS_ALWAYS = "def letters(completions, **columns):\n    raise RuntimeError('broken')\n"
FAILS_IN_TRAINING = (
    "def letters(completions, trainer_state, **columns):\n"
    "    if len(completions) > 1: {what}\n"
    "    return [1.0] * len(completions)\n"
)


def call(*arguments: str):
    sys.modules.pop("letters", None)  # several projects have a module of this name
    return command_line.call(*arguments)


def start_training(folder: Path, *arguments: str) -> Job:
    """Starts a run in a separate process; its output is written to the folder."""
    command = ("-m", "groupwise", "train", "run.yaml", *arguments)
    return Job(*command, terminals=folder / "training", imports=["groupwise_llm.policy"])


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A project without a run, as the current folder."""
    return enter(projects.make(tmp_path / "project", steps=1), monkeypatch)


def enter(home: Path, monkeypatch) -> Path:
    # Projects of other tests have a module of the same name.
    path = [folder for folder in sys.path if not Path(folder, "letters.py").exists()]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.chdir(home)
    return home


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A project with a run."""
    home = projects.make(tmp_path_factory.mktemp("trained"), steps=1)
    with pytest.MonkeyPatch.context() as patch:
        enter(home, patch)
        result = call("train", "run.yaml", "--quiet")
    assert result.exit_code == 0, result.output
    return home


@pytest.fixture
def older_weights(home, trained) -> bytes:
    """Copies a run into the project; the content of its file of weights."""
    projects.copied(trained, home)
    return (home / "run" / "model" / "model.safetensors").read_bytes()


def contents(folder: Path) -> dict[str, bytes | str]:
    """{path: content} of a folder; of links their target."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


FOREIGN = {
    "a configuration and samples": {"config.yaml": "# mine", "samples/mine.csv": "1"},
    "the names of a run's files": {
        "metrics.jsonl": "{}",
        "result.json": "{}",
        "model/model.safetensors": "x",
        "config.yaml": "a: 1",
    },
    "a run.json of another program": {"run.json": '{"name": "mine"}', "data.csv": "1"},
    "a run.json that is no JSON": {"run.json": "years of work"},
    "a thesis": {"thesis.tex": "years of work"},
    "hidden files": {".git/config": "[core]"},
}


@pytest.mark.attack(
    NEVER_REMOVED, "6 folders of a user's files that have the names of a run's files"
)
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("flags", [(), ("--overwrite",), ("--resume",)])
def test_folders_of_other_programs_are_refused(home, name, flags, tries):
    for path, text in FOREIGN[name].items():
        (home / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (home / "run" / path).write_text(text)
    before = contents(home / "run")
    result = call("train", "run.yaml", *flags)
    assert result.exit_code == 2, result.output
    assert contents(home / "run") == before
    assert sorted(path.name for path in home.iterdir() if path.name[:3] == "run") == [
        "run",
        "run.yaml",
    ]
    tries()


@pytest.mark.attack(
    NEVER_REMOVED, "links, files, the current folder, and folders that the run reads"
)
def test_links_files_and_folders_in_use_are_refused(
    home, older_weights, tries, monkeypatch, tmp_path
):
    cases = {
        "the configuration lies in it": ("train", "run/config.yaml", "--overwrite"),
        "policy.model lies in it": (
            *("train", "run.yaml", "policy.model=run/model", "--overwrite"),
        ),
    }
    before = contents(home / "run")
    for reason, arguments in cases.items():
        result = call(*arguments)
        assert result.exit_code == 2, result.output
        assert reason in " ".join(result.stderr.split())
        assert contents(home / "run") == before
        tries()
    (tmp_path / "link").symlink_to(home / "run")
    result = call("train", "run.yaml", f"output={tmp_path / 'link'}", "--overwrite")
    assert "is a symbolic link to" in " ".join(result.stderr.split())
    (tmp_path / "file").write_text("mine")
    result = call("train", "run.yaml", f"output={tmp_path / 'file'}", "--overwrite")
    assert "is a file" in " ".join(result.stderr.split())
    monkeypatch.chdir(home / "run")
    result = call("train", "../run.yaml", f"output={home / 'run'}", "--overwrite")
    assert "this process lies in it" in " ".join(result.stderr.split())
    assert contents(home / "run") == before
    assert (tmp_path / "file").read_text() == "mine"
    tries(3)


def test_a_users_files_in_a_replaced_run_are_kept(home, older_weights, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "large.bin").write_text("mine")
    for name in ("notes.txt", ".gitignore", "config.until_step_mine.yaml"):
        (home / "run" / name).write_text("mine")
    (home / "run" / "linked").symlink_to(target)
    (home / "run" / "samples" / "linked").symlink_to(target)
    result = call("train", "run.yaml", "--overwrite")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stderr.split())
    names = ".gitignore, config.until_step_mine.yaml, linked, notes.txt"
    assert f"note: files that no run wrote were moved from run to run.replaced: {names}" in text
    expected = dict.fromkeys((".gitignore", "config.until_step_mine.yaml", "notes.txt"), b"mine")
    assert contents(home / "run.replaced") == {**expected, "linked": str(target)}
    assert (target / "large.bin").read_text() == "mine"
    # Replaced again: files of the first time stay.
    (home / "run" / "notes.txt").write_text("mine, too")
    assert call("train", "run.yaml", "--overwrite").exit_code == 0
    assert (home / "run.replaced" / "notes.txt").read_text() == "mine"
    assert [path.name for path in home.glob("run.replaced*")] == ["run.replaced"]
    assert "mine, too" in (home / "run_2.replaced" / "notes.txt").read_text()


@pytest.mark.attack(
    KEPT_UNTIL_FIRST_STEP, "rewards that raise, exit and interrupt, before and in the first step"
)
@pytest.mark.parametrize(
    "reward",
    [
        FAILS_ALWAYS,
        FAILS_IN_TRAINING.format(what="raise RuntimeError('broken')"),
        FAILS_IN_TRAINING.format(what="raise KeyboardInterrupt"),
        FAILS_IN_TRAINING.format(what="raise SystemExit"),
        "def letters(completions, nothing): return [1.0] * len(completions)\n",
        "syntax error",
    ],
)
def test_a_new_run_that_fails_restores_the_older_one(home, older_weights, reward, tries):
    before = contents(home / "run")
    (home / "letters.py").write_text(reward)
    result = call("train", "run.yaml", "--overwrite")
    assert result.exit_code != 0
    after = contents(home / "run")
    assert {**after, "run.lock": b""} == {**before, "run.lock": b""}
    assert not list(home.glob("run*.replaced*"))
    tries()
    # Without an error the older run is replaced.
    (home / "letters.py").write_text(projects.REWARD)
    assert call("train", "run.yaml", "--overwrite", "seed=7").exit_code == 0
    assert (home / "run" / "model" / "model.safetensors").read_bytes() != older_weights
    assert not list(home.glob("run*.replaced*"))


@pytest.mark.attack(KEPT_UNTIL_FIRST_STEP, "SIGTERM and SIGHUP in the first evaluation")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_restores_the_older_run(home, older_weights, number, tries):
    before = contents(home / "run")
    (home / "letters.py").write_text(
        f"import os\n"
        f"def letters(completions, **columns):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        f"    return [1.0] * len(completions)\n"
    )
    previous = signal.signal(number, lambda *_: None)
    try:
        result = call("train", "run.yaml", "--overwrite")
        assert result.exit_code == 130
        assert {**contents(home / "run"), "run.lock": b""} == {**before, "run.lock": b""}
        tries()
        signal.signal(number, signal.SIG_IGN)
        ignored = number == signal.SIGHUP  # as with nohup
        assert call("train", "run.yaml", "--overwrite").exit_code == (0 if ignored else 130)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, previous)


@pytest.mark.attack(KEPT_UNTIL_FIRST_STEP, "SIGKILL in the first evaluation")
def test_a_kill_before_the_first_step_leaves_the_older_run_in_its_temporary_folder(
    home, older_weights, tmp_path, tries
):
    (home / "letters.py").write_text(
        f"import os\ndef letters(completions): os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    codes, _ = start_training(tmp_path, "--overwrite").end()
    assert codes == [-signal.SIGKILL]
    weights = home / "run.replaced" / "model" / "model.safetensors"
    assert weights.read_bytes() == older_weights
    (home / "letters.py").write_text(projects.REWARD)
    result = call("train", "run.yaml")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stderr.split())
    assert "run.replaced: left over from runs that were replaced" in text
    assert weights.read_bytes() == older_weights
    tries()


@pytest.mark.attack(ONE_PROCESS, "train, --overwrite, --resume and resume while a run trains")
def test_a_second_process_is_refused_while_a_run_trains(home, tmp_path, tries):
    (home / "letters.py").write_text(
        "import pathlib, time\n"
        "def letters(completions, **columns):\n"
        "    pathlib.Path('scoring').touch()\n"
        "    while not pathlib.Path('go_on').exists(): time.sleep(0.01)\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    first = start_training(tmp_path, "train.steps=2")
    try:
        while not (home / "scoring").exists():
            assert first.is_running()
            time.sleep(0.01)
        process = json.loads((home / "run" / "run.lock").read_text())["process"]
        message = f"run is in use by process {process} on "
        assert process != os.getpid()
        for flags in (("run.yaml",), ("run.yaml", "--overwrite"), ("run.yaml", "--resume")):
            result = call("train", *flags)
            assert result.exit_code == 2
            assert message in " ".join(result.stderr.split())
            tries()
        result = call("resume", "run")
        assert message in " ".join(result.stderr.split())
        tries()
    finally:
        (home / "go_on").touch()
        first.succeed()
    lines = (home / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 2] or len(lines) <= 4
    # The lock ends with its process, even if that is killed.
    assert call("resume", "run", "train.steps=3").exit_code == 0


@pytest.mark.attack(ONE_PROCESS, "two that begin at the same moment, 20 times")
def test_of_two_that_begin_at_the_same_moment_one_is_refused(home, tries):
    loaded = load_config(Path("run.yaml"))
    barrier = threading.Barrier(2)

    def begin(outcomes: list[str]) -> None:
        barrier.wait()
        try:
            with RunFolder(loaded, resume=False, overwrite=False) as run_folder:
                run_folder.make()
                outcomes.append("begun")
                barrier.wait()
        except UserError as error:
            outcomes.append(str(error))
            barrier.wait()

    for _ in range(20):
        outcomes: list[str] = []
        threads = [threading.Thread(target=begin, args=(outcomes,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count("begun") == 1
        assert any("run is in use" in outcome for outcome in outcomes), outcomes
        shutil.rmtree("run")
        tries()


AT_STEP_2 = (
    "import os, pathlib, shutil\n"
    "steps = []\n"
    "def letters(completions, **columns):\n"
    "    steps.extend([1] * (len(completions) > 1))\n"
    "    if len(steps) == 2 and not pathlib.Path({once!r}).exists():\n"
    "        pathlib.Path({once!r}).touch()\n"
    "        {what}\n"
    "    return [float(sum(map(ord, text)) % 7) for text in completions]\n"
)


@pytest.mark.attack(ONE_PROCESS, "the lock file replaced by another one during a step")
def test_a_run_ends_if_another_process_replaces_its_lock(home, tries):
    replace_lock = "os.remove('run/run.lock'); pathlib.Path('run/run.lock').write_text('{}')"
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=replace_lock))
    result = call("train", "run.yaml", "train.steps=4")
    assert result.exit_code == 2
    assert "run.lock was removed from run while the run wrote to it" in result.stderr
    names = {path.name for path in (home / "run" / "checkpoints").iterdir()}
    assert names == {"step_1"}
    assert call("resume", "run", "train.steps=4").exit_code == 0
    tries()


def test_a_removed_lock_is_written_again(home):
    what = "os.remove('run/run.lock')"
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=what))
    assert call("train", "run.yaml", "train.steps=3").exit_code == 0
    assert (home / "run" / "run.lock").exists()


def move():
    Path("run").rename("moved")


def remove():
    shutil.rmtree("run")


def empty():
    remove()
    Path("run").mkdir()


WRITES = (
    "groupwise.recording.recorder.MetricsFile.write",
    "groupwise.recording.snapshot.take",
    "groupwise.storage.tensors.save_file",
    "groupwise.storage.checkpoint.write_list",
    "groupwise_llm.policy.LanguageModel.save_pretrained",
    "groupwise.recording.recorder.write_samples",
    "groupwise_report.writing.write",
)


@pytest.mark.parametrize(
    ("during", "lose"),
    [*((write, lose) for write in WRITES for lose in (move, remove)), (WRITES[4], empty)],
)
def test_a_run_ends_if_its_folder_is_moved_or_removed(home, monkeypatch, during, lose):
    """It does not make the folder again: half a folder could be neither resumed nor replaced."""
    assert call("train", "run.yaml", "train.steps=1", "--quiet").exit_code == 0
    with monkeypatch.context() as patch:
        module, _, name = during.rpartition(".")
        owner = pkgutil.resolve_name(module)
        real = getattr(owner, name)
        losses = [lose]

        def lose_the_folder(*arguments, **named):
            if losses:
                losses.pop()()
            return real(*arguments, **named)

        patch.setattr(owner, name, lose_the_folder)
        result = call("resume", "run", "train.steps=2", "--quiet")
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    text = " ".join(result.stderr.split())
    assert "error: run is gone: it was moved or removed while the run wrote to it" in text
    left = sorted(str(path) for path in Path("run").rglob("*"))
    assert left in ([], ["run/run.lock"])
    again = call("train", "run.yaml", "train.steps=1", "--auto-resume", "--quiet")
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_all_files_of_a_run_have_the_same_mode(home, umask):
    before = os.umask(umask)
    try:
        result = call("train", "run.yaml", "policy.lora={rank: 2}", "--quiet")
    finally:
        os.umask(before)
    assert result.exit_code == 0, result.output
    files = [path for path in (home / "run").rglob("*") if path.is_file()]
    assert {"adapter_model.safetensors", "optimizer.safetensors"} <= {path.name for path in files}
    modes = {str(path): oct(path.stat().st_mode & 0o777) for path in files}
    assert {file for file, mode in modes.items() if mode != oct(0o666 & ~umask)} == set()


def test_a_reward_may_change_the_current_folder(home, older_weights, tmp_path):
    """Files are still written to the folder of the run, not to one with its name elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "run").rename(elsewhere / "run")
    before = contents(elsewhere / "run")
    what = f"os.chdir({str(elsewhere)!r})"
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=what))
    result = call("train", "run.yaml", "train.steps=3")
    assert result.exit_code == 0, result.output
    assert contents(elsewhere / "run") == before
    assert json.loads((home / "run" / "result.json").read_text())["steps"] == 3


@pytest.mark.attack(NEVER_REMOVED, "new runs within the folder of an older one")
def test_a_run_within_a_run_is_refused(home, older_weights, tries):
    before = contents(home / "run")
    for inside in ("run/b", "run/model/b", "run/checkpoints/step_9", "run/samples/../b"):
        result = call("train", "run.yaml", f"output={inside}", "--overwrite")
        assert result.exit_code == 2
        assert "the folder of another run" in " ".join(result.stderr.split())
        tries()
    assert contents(home / "run") == before


@pytest.mark.parametrize("name", ["a\\0b", "a\\ud800b", "x" * 300])
def test_impossible_folder_names_are_refused(home, name):
    result = call("train", "run.yaml", f'output="{name}"')
    assert result.exit_code == 2
    assert result.stderr.startswith("error: output: ")
    assert sorted(path.name for path in home.iterdir() if path.name != "__pycache__") == [
        "letters.py",
        "run.yaml",
    ]


def test_a_resumed_run_keeps_every_former_configuration(home, older_weights):
    for number, beta in enumerate((0.1, 0.2, 0.3)):
        arguments = ("resume", "run", f"train.steps={number + 2}", f"algorithm.beta={beta}")
        assert call(*arguments).exit_code == 0
    # One file for each step at which the run was resumed with another configuration.
    names = sorted(path.name for path in (home / "run").glob("config.until_step_*"))
    assert names == [f"config.until_step_{step}.yaml" for step in (1, 2, 3)]


def test_resuming_a_finished_run_states_that_nothing_is_left(home, older_weights):
    result = call("resume", "run")
    assert result.exit_code == 0
    assert "1 steps are done, and train.steps is 1" in " ".join(result.stderr.split())


def test_resume_and_overwrite_together_are_refused_in_python(home, older_weights):
    with pytest.raises(UserError, match="choose one"):
        groupwise.train("run.yaml", resume=True, overwrite=True)
    assert os.path.exists("run/model")  # noqa: PTH110
