"""Fixtures: a file of another framework, ported in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.command_line import call

from groupwise.building.validation import validate_registered

Ported = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ported:
    """ported(framework, file, text, *options) -> (our configuration, the YAML with its comments).

    It is what `groupwise check` accepts before it builds anything. file: may end in ":NAME".
    """
    monkeypatch.chdir(tmp_path)

    def ported(framework: str, file: str, text: str, *options: object) -> tuple[Any, str]:
        path = Path(file.partition(":")[0])
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        result = call("port", framework, file, *options)
        assert result.exit_code == 0, result.output
        assert "warning" not in result.stderr, result.stderr
        validate_registered(result.stdout, Path("run.yaml"))
        return yaml.safe_load(result.stdout), result.stdout

    return ported
