"""`groupwise publish`: what leaves the machine, and what does not, to a recorded hub."""

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalTokenNotFoundError
from tests.command_line import call

CARD = "---\nbase_model: {base}\n---\n\nload({model!r})\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/one"
    (folder / "model").mkdir(parents=True)
    (folder / "samples").mkdir()
    (folder / "checkpoints/step_1").mkdir(parents=True)
    base, model = tmp_path / "base", folder / "model"
    (model / "README.md").write_text(CARD.format(base=base, model=str(model)))
    (model / "adapter_config.json").write_text(json.dumps({"base_model": str(base), "r": 2}))
    (model / "model.safetensors").write_bytes(b"\x00" * 5)
    for name in ("run.json", "config.yaml", "report.html", "samples/after.jsonl", "metrics.jsonl"):
        (folder / name).write_text("prompts of ours")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list:
    """What a recorded hub received: calls by name."""
    calls = []

    class Api:
        def create_repo(self, name, **options):
            calls.append((name, options))
            return f"https://hub/{name}"

        def create_commit(self, name, operations, **_):
            calls.append({o.path_in_repo: o.path_or_fileobj for o in operations})

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return calls


def test_the_model_leaves_and_nothing_else(run: Path, hub: list) -> None:
    result = call("publish", run, "you/model", "--base", "lab/base")
    assert (result.exit_code, result.stderr) == (0, "")
    repository, sent = hub
    assert repository == ("you/model", {"private": True, "exist_ok": True})
    assert sorted(sent) == ["README.md", "adapter_config.json", "model.safetensors"]
    assert sent["README.md"].decode() == CARD.format(base="lab/base", model="you/model")
    assert json.loads(sent["adapter_config.json"]) == {"base_model": "lab/base", "r": 2}
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        *sorted(sent),
        "https://hub/you/model",
    ]


def test_the_page_and_samples_leave_on_request(run: Path, hub: list) -> None:
    call("publish", run, "you/model", "--page", "--public")
    assert hub[0][1]["private"] is False
    own = {name for name in hub[1] if name.startswith("run/")}
    assert own == {"run/report.html", "run/config.yaml", "run/samples/after.jsonl"}


def test_a_dry_run_sends_nothing_and_names_folders_of_this_machine(
    run: Path, hub: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = call("publish", run, "you/model", "--dry-run")
    assert (result.exit_code, hub) == (0, [])
    assert f"README.md: base_model: {tmp_path / 'base'}" in result.stderr
    assert "5 bytes" in result.stdout


def test_mistakes_are_one_sentence(
    run: Path, hub: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_, **__):
        raise LocalTokenNotFoundError("no token")

    for arguments, message in (
        ([tmp_path, "you/model"], "is not the folder of a run"),
        ([run, "you/model"], "log in by `hf auth login`"),
    ):
        monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
        result = call("publish", *arguments)
        assert (result.exit_code, message in result.stderr) == (2, True)
    (run / "model").rename(run / "other")
    assert "has no saved model" in call("publish", run, "you/model").stderr
    assert len(hub) == 0
