"""`repository_tests`: right files are paid; wrong ones are not, nor cheats where promised."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise import testing
from groupwise.kit.errors import UserError
from groupwise.rewards import SampleErrors
from groupwise.rewards.deadline import ending_in
from groupwise_code.repository_tests import RepositoryTests
from groupwise_sandbox.tree import Edits

CART = """
class Cart:
    def __init__(self):
        self.prices = []

    def add(self, price):
        self.prices.append(price)

    def total(self):
        return sum(self.prices) + 1
"""
FILES = {
    "shop/__init__.py": "",
    "shop/cart.py": CART,
    "shop/tax.py": "from shop.cart import Cart\n\n\ndef taxed(prices, rate=None):\n"
    "    rate = rate or float(open('shop/rates.txt').read())\n"
    "    cart = Cart()\n    for each in prices:\n        cart.add(each)\n"
    "    return cart.total() * (1 + rate)\n",
}
FILES["shop/rates.txt"] = "0.5\n"
RIGHT = {"shop/cart.py": CART.replace(" + 1", "")}
TESTS = """
from shop.cart import Cart
from shop.tax import taxed as with_tax


def test_total():
    cart = Cart()
    cart.add(2)
    cart.add(3)
    assert cart.total() == 5


def test_tax():
    assert with_tax([10]) == 15
"""
SEPARATED = {"files": FILES, "tests": TESTS}
NAMES = [f"tests/test_shop.py::{each}" for each in ("test_total", "test_tax")]
TOGETHER = {
    "files": {**FILES, "tests/test_old.py": "def test_old():\n    pass\n"},
    "test_files": {"tests/test_shop.py": TESTS},
    "FAIL_TO_PASS": f'["{NAMES[0]}"]',
    "PASS_TO_PASS": [NAMES[1]],
}
PACKAGES = (str(Path(pytest.__file__).parents[1]),)


@pytest.fixture(scope="module")
def separated() -> Iterator[RepositoryTests]:
    yield from made(guarantee="separated", timeout=2)


@pytest.fixture(scope="module")
def together() -> Iterator[RepositoryTests]:
    yield from made(guarantee="together", timeout=10, packages=PACKAGES)


def made(**options: Any) -> Iterator[RepositoryTests]:
    try:
        reward = RepositoryTests(RepositoryTests.Config(**options))
    except UserError as error:
        pytest.skip(str(error))
    yield reward
    reward.close()


def value(reward: RepositoryTests, row: dict[str, Any], edits: Edits | None) -> float | None:
    reward.check_row(row)
    columns = {name: [each] for name, each in row.items()}
    (own,) = reward(["?"], ["done"], edited=[edits], **columns)
    return own


def test_laws() -> None:
    rows = [
        {"prompt": f"Repair {edits}.", **SEPARATED, "edited": edits}
        for edits in (RIGHT, {"shop/cart.py": None})
    ]
    instance = RepositoryTests(RepositoryTests.Config(timeout=2))
    testing.check_reward(instance, rows, ["done", "", ".", "?"], group_size=2)


def test_files_that_pass_are_paid_and_others_are_not(separated: RepositoryTests) -> None:
    assert value(separated, SEPARATED, RIGHT) == 1.0
    assert value(separated, SEPARATED, {}) == 0.0
    assert value(separated, SEPARATED, {"shop/cart.py": None}) == 0.0
    assert value(separated, SEPARATED, None) is None
    moved = {f"src/{name}": text for name, text in FILES.items() if name != "shop/rates.txt"}
    row = {**SEPARATED, "files": {**moved, "shop/rates.txt": "0.5"}}
    assert value(separated, row, {"src/shop/cart.py": RIGHT["shop/cart.py"]}) == 1.0


def test_tests_that_would_outlast_the_call_are_ended_with_it(separated: RepositoryTests) -> None:
    columns: dict[str, Any] = {name: [each] * 2 for name, each in SEPARATED.items()}
    edits = [RIGHT, {"shop/cart.py": "import time\ntime.sleep(99)"}]
    began = time.monotonic()
    with ending_in(3.0), pytest.raises(SampleErrors) as raised:
        separated([""] * 2, [""] * 2, edited=edits, **columns)
    assert time.monotonic() - began < 3.0 + 5.0  # of the machine; the tests have ten
    assert [*raised.value.errors] == [1]
    assert value(separated, SEPARATED, RIGHT) == 1.0  # in the next call


def test_which_tests_failed_is_in_samples(separated: RepositoryTests) -> None:
    logged = dict[str, Any]()
    separated(
        ["?"],
        ["."],
        edited=[{}],
        log_extra=logged.__setitem__,
        **{name: [each] for name, each in SEPARATED.items()},
    )
    assert logged["failed_tests"][0].startswith("1, 2 of 2: assert cart.total() == 5")


EQUAL = "class E(int):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
CHEATS = {
    "an object that equals everything": (
        f"{EQUAL}class Cart:\n    add = lambda *_: None\n    total = lambda s: E()\n"
    ),
    "the end of the process": "import os\nos._exit(0)\n",
    "the end in a call": (
        "import os\nclass Cart:\n    add = lambda *_: None\n    total = lambda s: os._exit(0)\n"
    ),
    "an exit": "raise SystemExit(0)\n",
    "a forged verdict": (
        "import os, json, struct\ndata = json.dumps({'reasons': [None, None]}).encode()\n"
        "os.write(3, struct.pack('!Q', len(data)) + data)\nos._exit(0)\n"
    ),
    "what the caller expects": (
        "import gc, sys\nfound = [x for x in gc.get_objects() if 'test_total' in repr(x)[:999]]\n"
        "class Cart:\n    add = lambda *_: None\n    total = lambda s: 5 if found else 0\n"
    ),
    "patched assertions": (
        "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.sum = lambda *_: 5\n" + CART
    ),
    "pytest's own functions": (
        "import sys, atexit\nprint('PASSED tests/test_shop.py::test_total')\n"
        "atexit.register(print, '2 passed')\n" + CART
    ),
    "the tests' files": (
        "import os\nfor at, _, names in os.walk('/'):\n    for each in names:\n"
        "        if 'test' in each: open(os.path.join(at, each), 'w').write('')\n" + CART
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_is_paid_where_tests_are_separated(separated: RepositoryTests, name: str) -> None:
    edits = {
        "shop/cart.py": CHEATS[name],
        "conftest.py": "import os\nos._exit(0)\n",
        "tests/test_shop.py": "def test_total(): pass\ndef test_tax(): pass\n",
        "sitecustomize.py": "import os\nos._exit(0)\n",
    }
    assert value(separated, SEPARATED, edits) == 0.0


def test_rows_whose_tests_are_together_are_refused_unless_they_are_accepted(
    separated: RepositoryTests,
) -> None:
    with pytest.raises(ValueError, match="may forge their verdict; set `guarantee: together`"):
        separated.check_row(TOGETHER)
    for tests, problem in [
        ("import shop\n\n\ndef test_x():\n    shop.x()\n", "'shop' as a whole"),
        ("from shop.tax import taxed\n", "no function that pytest would call"),
        ("import torch\nfrom shop.tax import taxed\n\n\ndef test_x():\n    taxed(1)\n", "torch"),
        (
            "from shop.a import f\nfrom shop.b import f\n\n\ndef test_x():\n    f(1)\n",
            "two modules",
        ),
    ]:
        with pytest.raises(ValueError, match=problem):
            separated.check_row({**SEPARATED, "tests": tests})


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (RIGHT, 1.0),
        ({}, 0.0),
        ({"tests/test_shop.py": "def test_total(): pass\ndef test_tax(): pass\n"}, 0.0),
        ({"conftest.py": "import os\nos._exit(0)\n"}, 0.0),
        ({**RIGHT, "conftest.py": "raise ValueError\n"}, 1.0),
        ({"pytest.ini": "[pytest]\naddopts = --collect-only\n"}, 0.0),
        ({"pytest.py": "print('PASSED')\n", "sitecustomize.py": "import os\nos._exit(0)"}, 0.0),
        ({"shop/cart.py": "import os\nos._exit(0)\n"}, 0.0),
        ({"shop/cart.py": "import sys\nsys.exit(0)\n"}, 0.0),
        ({"shop/cart.py": "import pytest\npytest.skip(allow_module_level=True)\n"}, 0.0),
        ({"shop/cart.py": "print('PASSED " + NAMES[0] + "')\n" + CART}, 0.0),
    ],
)
def test_a_repositorys_own_tests(together: RepositoryTests, edits: Edits, expected: float) -> None:
    assert value(together, TOGETHER, edits) == expected


WINS = {
    "prints a summary as the process ends": (
        "import atexit\n"
        "words = '\\n== short test summary info ==\\n' + ''.join(\n"
        f"    'PASSED ' + each + '\\n' for each in {NAMES})\n"
        "atexit.register(lambda: (print(words, flush=True)))\n"
    ),
    "changes pytest's own functions": (
        "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"
    ),
    "returns an object that equals everything": (
        f"{EQUAL}class Cart:\n    add = lambda *_: None\n    total = lambda s: E()\n"
        "E.__mul__ = lambda s, o: s\n"
    ),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", WINS)
def test_what_wins_where_tests_are_together(together: RepositoryTests, name: str) -> None:
    """As docs/code.md says."""
    code = WINS[name] if "class Cart" in WINS[name] else WINS[name] + CART
    assert value(together, TOGETHER, {"shop/cart.py": code}) == 1.0


@pytest.mark.slow
def test_formats_of_tests_that_are_together(together: RepositoryTests) -> None:
    lines = "".join(f"+{line}\n" for line in TESTS.splitlines())
    patch = (
        "diff --git a/tests/test_shop.py b/tests/test_shop.py\nnew file mode 100644\n"
        f"--- /dev/null\n+++ b/tests/test_shop.py\n@@ -0,0 +1,{len(TESTS.splitlines())} @@\n{lines}"
    )
    bench = {**TOGETHER, "test_files": None, "test_patch": patch}
    cheat = {"tests/test_shop.py": "def test_total(): pass\ndef test_tax(): pass\n"}
    assert value(together, bench, {**RIGHT, **cheat}) == 1.0
    assert value(together, bench, cheat) == 0.0
    r2e = {name: TOGETHER[name] for name in ("files", "test_files")}
    r2e["expected_output_json"] = '{"test_total": "PASSED", "test_tax": "PASSED"}'
    assert value(together, r2e, RIGHT) == 1.0
    assert value(together, r2e, {}) == 0.0
    for row, problem in [
        ({**TOGETHER, "FAIL_TO_PASS": [], "PASS_TO_PASS": "[]"}, "names no test"),
        ({**TOGETHER, "FAIL_TO_PASS": ["test_x (app.tests.Case)"]}, "not run by pytest"),
        ({**TOGETHER, "test_files": {}}, "it has no tests"),
    ]:
        with pytest.raises(ValueError, match=problem):
            together.check_row(row)
    unfit = "--- a/shop/cart.py\n+++ b/shop/cart.py\n@@ -1 +1 @@\n-none\n+other\n"
    with pytest.raises(SampleErrors, match="1 of 1"):
        value(together, {**bench, "test_patch": unfit}, RIGHT)
