"""A user's folder holds what cannot be made again: what may be replaced, when, and by whom."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.core.launching import Job
from typer.testing import CliRunner

import groupwise
from groupwise.cli import app
from groupwise.config.load import load_config
from groupwise.errors import UserError
from groupwise.storage.run_folder import RunFolder

from . import projects

UNTOUCHED = "A folder that no run wrote is never removed, with --overwrite or without"
BACK = "An older run that is replaced stays until the new one has made its first step"
ALONE = "Two processes never write to one run: the second is refused, and named the first"

RAISES = "def letters(completions, **columns):\n    raise RuntimeError('broken')\n"
AT_TRAINING = (
    "def letters(completions, trainer_state, **columns):\n"
    "    if len(completions) > 1: {what}\n"
    "    return [1.0] * len(completions)\n"
)


def call(*words: str):
    sys.modules.pop("letters", None)  # several folders have one of that name
    return CliRunner().invoke(app, [*map(str, words)])


def apart(folder: Path, *words: str) -> Job:
    """A training in a process of its own; what it prints lies in the folder."""
    command = ("-m", "groupwise", "train", "run.yaml", *words)
    return Job(*command, terminals=folder / "apart", imports=["groupwise_llm.policy"])


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A project, which is the current folder, without a run."""
    return entered(projects.make(tmp_path / "project", steps=1), monkeypatch)


def entered(home: Path, monkeypatch) -> Path:
    # Other tests have projects of their own, each with a module of that name.
    path = [folder for folder in sys.path if not Path(folder, "letters.py").exists()]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.chdir(home)
    return home


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A project with a run."""
    home = projects.make(tmp_path_factory.mktemp("begun"), steps=1)
    with pytest.MonkeyPatch.context() as patch:
        entered(home, patch)
        result = call("train", "run.yaml", "--quiet")
    assert result.exit_code == 0, result.output
    return home


@pytest.fixture
def older(home, begun) -> bytes:
    """The weights of a run in that folder."""
    projects.copied(begun, home)
    return (home / "run" / "model" / "model.safetensors").read_bytes()


def everything(folder: Path) -> dict[str, bytes | str]:
    """Whatever lies in a folder, links as where they lead."""
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


@pytest.mark.attack(UNTOUCHED, "6 folders with a user's own files of the names that runs write")
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("way", [(), ("--overwrite",), ("--resume",)])
def test_foreign_folders(home, name, way, tries):
    for path, text in FOREIGN[name].items():
        (home / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (home / "run" / path).write_text(text)
    before = everything(home / "run")
    result = call("train", "run.yaml", *way)
    assert result.exit_code == 2, result.output
    assert everything(home / "run") == before
    assert sorted(path.name for path in home.iterdir() if path.name[:3] == "run") == [
        "run",
        "run.yaml",
    ]
    tries()


@pytest.mark.attack(UNTOUCHED, "links, files, the current folder, and what the run itself reads")
def test_folders_in_use(home, older, tries, monkeypatch, tmp_path):
    cases = {
        "the configuration lies in it": ("train", "run/config.yaml", "--overwrite"),
        "policy.model lies in it": (
            *("train", "run.yaml", "policy.model=run/model", "--overwrite"),
        ),
    }
    before = everything(home / "run")
    for reason, words in cases.items():
        result = call(*words)
        assert result.exit_code == 2, result.output
        assert reason in " ".join(result.stderr.split())
        assert everything(home / "run") == before
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
    assert everything(home / "run") == before
    assert (tmp_path / "file").read_text() == "mine"
    tries(3)


def test_what_a_user_put_into_a_run_is_kept(home, older, tmp_path):
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
    kept = dict.fromkeys((".gitignore", "config.until_step_mine.yaml", "notes.txt"), b"mine")
    assert everything(home / "run.replaced") == {**kept, "linked": str(target)}
    assert (target / "large.bin").read_text() == "mine"
    # Once more: nothing of the first is touched.
    (home / "run" / "notes.txt").write_text("mine, too")
    assert call("train", "run.yaml", "--overwrite").exit_code == 0
    assert (home / "run.replaced" / "notes.txt").read_text() == "mine"
    assert [path.name for path in home.glob("run.replaced*")] == ["run.replaced"]
    assert "mine, too" in (home / "run_2.replaced" / "notes.txt").read_text()


@pytest.mark.attack(BACK, "rewards that raise, exit and interrupt, before and in the first step")
@pytest.mark.parametrize(
    "reward",
    [
        RAISES,
        AT_TRAINING.format(what="raise RuntimeError('broken')"),
        AT_TRAINING.format(what="raise KeyboardInterrupt"),
        AT_TRAINING.format(what="raise SystemExit"),
        "def letters(completions, nothing): return [1.0] * len(completions)\n",
        "syntax error",
    ],
)
def test_a_new_run_that_fails_costs_no_older_one(home, older, reward, tries):
    before = everything(home / "run")
    (home / "letters.py").write_text(reward)
    result = call("train", "run.yaml", "--overwrite")
    assert result.exit_code != 0
    after = everything(home / "run")
    assert {**after, "run.lock": b""} == {**before, "run.lock": b""}
    assert not list(home.glob("run*.replaced*"))
    tries()
    # And without an error it is replaced.
    (home / "letters.py").write_text(projects.REWARD)
    assert call("train", "run.yaml", "--overwrite", "seed=7").exit_code == 0
    assert (home / "run" / "model" / "model.safetensors").read_bytes() != older
    assert not list(home.glob("run*.replaced*"))


@pytest.mark.attack(BACK, "SIGTERM and SIGHUP in the first evaluation")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_step_brings_the_older_run_back(home, older, number, tries):
    before = everything(home / "run")
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
        assert {**everything(home / "run"), "run.lock": b""} == {**before, "run.lock": b""}
        tries()
        signal.signal(number, signal.SIG_IGN)
        ignored = number == signal.SIGHUP  # what nohup does
        assert call("train", "run.yaml", "--overwrite").exit_code == (0 if ignored else 130)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, previous)


@pytest.mark.attack(BACK, "SIGKILL in the first evaluation")
def test_a_kill_before_the_first_step_leaves_the_older_run_aside(home, older, tmp_path, tries):
    (home / "letters.py").write_text(
        f"import os\ndef letters(completions): os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    codes, _ = apart(tmp_path, "--overwrite").end()
    assert codes == [-signal.SIGKILL]
    weights = home / "run.replaced" / "model" / "model.safetensors"
    assert weights.read_bytes() == older
    (home / "letters.py").write_text(projects.REWARD)
    result = call("train", "run.yaml")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stderr.split())
    assert "run.replaced: left over from runs that were replaced" in text
    assert weights.read_bytes() == older
    tries()


@pytest.mark.attack(ALONE, "train, --overwrite, --resume and resume while a run trains")
def test_two_processes(home, tmp_path, tries):
    (home / "letters.py").write_text(
        "import pathlib, time\n"
        "def letters(completions, **columns):\n"
        "    pathlib.Path('scoring').touch()\n"
        "    while not pathlib.Path('go_on').exists(): time.sleep(0.01)\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    first = apart(tmp_path, "train.steps=2")
    try:
        while not (home / "scoring").exists():
            assert first.is_running()
            time.sleep(0.01)
        process = json.loads((home / "run" / "run.lock").read_text())["process"]
        named = f"run is in use by process {process} on "
        assert process != os.getpid()
        for way in (("run.yaml",), ("run.yaml", "--overwrite"), ("run.yaml", "--resume")):
            result = call("train", *way)
            assert result.exit_code == 2
            assert named in " ".join(result.stderr.split())
            tries()
        result = call("resume", "run")
        assert named in " ".join(result.stderr.split())
        tries()
    finally:
        (home / "go_on").touch()
        first.succeed()
    lines = (home / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 2] or len(lines) <= 4
    # The lock went with the process: even one that is killed lets go.
    assert call("resume", "run", "train.steps=3").exit_code == 0


@pytest.mark.attack(ALONE, "two that begin at the same moment, 20 times over")
def test_two_at_the_same_moment(home, tries):
    loaded = load_config(Path("run.yaml"))
    both = threading.Barrier(2)

    def begin(outcomes: list[str]) -> None:
        both.wait()
        try:
            with RunFolder(loaded, resume=False, overwrite=False) as run_folder:
                run_folder.make()
                outcomes.append("begun")
                both.wait()
        except UserError as error:
            outcomes.append(str(error))
            both.wait()

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


@pytest.mark.attack(ALONE, "the lock's file removed in a step, and another's put there")
def test_a_lock_that_another_took(home, tries):
    taken = "os.remove('run/run.lock'); pathlib.Path('run/run.lock').write_text('{}')"
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=taken))
    result = call("train", "run.yaml", "train.steps=4")
    assert result.exit_code == 2
    assert "run.lock was removed from run while the run wrote to it" in result.stderr
    names = {path.name for path in (home / "run" / "checkpoints").iterdir()}
    assert names == {"step_1"}
    assert call("resume", "run", "train.steps=4").exit_code == 0
    tries()


def test_a_lock_that_nobody_took_is_taken_again(home):
    what = "os.remove('run/run.lock')"
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=what))
    assert call("train", "run.yaml", "train.steps=3").exit_code == 0
    assert (home / "run" / "run.lock").exists()


@pytest.mark.parametrize("what", ["shutil.rmtree('run')", "os.rename('run', 'moved')"])
def test_a_folder_that_goes_away_in_a_step(home, what):
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=what))
    result = call("train", "run.yaml", "train.steps=4")
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert "error: run was moved or removed while the run wrote to it" in text
    assert "step 2 is saved; it is in " in text
    assert (home / "run" / "model" / "model.safetensors").exists()


def test_a_reward_that_changes_the_current_folder(home, older, tmp_path):
    """What is written later lies in the run's folder, and not in one of that name elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home / "run").rename(elsewhere / "run")
    before = everything(elsewhere / "run")
    what = f"os.chdir({str(elsewhere)!r})"
    (home / "letters.py").write_text(AT_STEP_2.format(once=str(home / "once"), what=what))
    result = call("train", "run.yaml", "train.steps=3")
    assert result.exit_code == 0, result.output
    assert everything(elsewhere / "run") == before
    assert json.loads((home / "run" / "result.json").read_text())["steps"] == 3


@pytest.mark.attack(UNTOUCHED, "new runs within the folder of an older one")
def test_a_run_within_a_run_is_refused(home, older, tries):
    before = everything(home / "run")
    for inside in ("run/b", "run/model/b", "run/checkpoints/step_9", "run/samples/../b"):
        result = call("train", "run.yaml", f"output={inside}", "--overwrite")
        assert result.exit_code == 2
        assert "the folder of another run" in " ".join(result.stderr.split())
        tries()
    assert everything(home / "run") == before


@pytest.mark.parametrize("name", ["a\\0b", "a\\ud800b", "x" * 300])
def test_a_folder_of_no_name(home, name):
    result = call("train", "run.yaml", f'output="{name}"')
    assert result.exit_code == 2
    assert result.stderr.startswith("error: output: ")
    assert sorted(path.name for path in home.iterdir() if path.name != "__pycache__") == [
        "letters.py",
        "run.yaml",
    ]


def test_a_resumed_run_keeps_every_former_configuration(home, older):
    for number, beta in enumerate((0.1, 0.2, 0.3)):
        words = ("resume", "run", f"train.steps={number + 2}", f"algorithm.beta={beta}")
        assert call(*words).exit_code == 0
    # The same step, again: a run that is brought back to an earlier checkpoint.
    names = sorted(path.name for path in (home / "run").glob("config.until_step_*"))
    assert names == [f"config.until_step_{step}.yaml" for step in (1, 2, 3)]


def test_nothing_left_to_train_is_said(home, older):
    result = call("resume", "run")
    assert result.exit_code == 0
    assert "1 steps are done, and train.steps is 1" in " ".join(result.stderr.split())


def test_resume_and_overwrite_is_refused_in_python_too(home, older):
    with pytest.raises(UserError, match="choose one"):
        groupwise.train("run.yaml", resume=True, overwrite=True)
    assert os.path.exists("run/model")  # noqa: PTH110
