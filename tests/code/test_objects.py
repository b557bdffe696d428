"""Tests that use a program's classes, callbacks, iterators and coroutines."""

from collections.abc import Iterator
from typing import Any

import pytest

from groupwise.rewards import SampleErrors
from groupwise_code import problem
from groupwise_code.assertions import module
from groupwise_code.reward import CodeTests
from groupwise_sandbox import peer, references
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.sandbox import Sandbox, Suite

PROGRAM = """
import asyncio, functools, itertools

class Full(ValueError): pass

class Stack:
    limit = 3
    def __init__(self, *items): self.items = list(items)
    def push(self, x):
        if len(self.items) == self.limit: raise Full("no room")
        self.items.append(x)
        return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __contains__(self, x): return x in self.items
    def __getitem__(self, i): return self.items[i]
    def __enter__(self): return self
    def __exit__(self, kind, error, trace): self.items.clear(); return kind is KeyError
    @classmethod
    def of(cls, *xs): return cls(*xs)
    async def size(self):
        await asyncio.sleep(0.001)
        return len(self)

class Node:
    def __init__(self, val=0, next=None): self.val, self.next = val, next

def reverse(node):
    last = None
    while node: node.next, last, node = last, node, node.next
    return last

def apply(f, xs): return [f(x) for x in xs]
def adder(n): return lambda x: x + n
def naturals():
    for n in itertools.count():
        if n == 99: raise ValueError("far enough")
        yield n
def twice(f):
    @functools.wraps(f)
    def wrapped(*args): return 2 * f(*args)
    return wrapped
def first(xs, n): return list(itertools.islice(xs, n))
def order(xs): xs.sort()
async def later(f, x):
    await asyncio.sleep(0.001)
    return await f(x)
"""
TESTS = {
    "a class": """
def test_stack():
    s = Stack()
    assert s.push(1) == s and s.push(2).items == [1, 2]
    assert len(s) == 2 and list(s) == [1, 2] and s[0] == 1 and 2 in s and 3 not in s and s
    assert s.pop() == 2 and isinstance(s, Stack) and Stack.limit == 3
    s.items = [7]
    assert s.pop() == 7 and not s
""",
    "exceptions": """
def test_full():
    s = Stack.of(1, 2, 3)
    for kind in (Full, ValueError):
        try:
            s.push(4)
        except kind as error:
            assert str(error) == "no room"
        else:
            assert False
    try:
        pass
    except Full:
        pass
""",
    "with": """
def test_with():
    with Stack(1) as s:
        assert len(s) == 1
        raise KeyError("a")
    assert len(s) == 0
""",
    "linked": """
def build(values):
    head = Node()
    last = head
    for value in values:
        last.next = Node(value)
        last = last.next
    return head.next
def test_reverse():
    node, values = reverse(build([1, 2, 3])), []
    while node:
        values.append(node.val)
        node = node.next
    assert values == [3, 2, 1]
""",
    "callbacks": """
def test_apply():
    calls = []
    assert apply(lambda x: calls.append(x) or x * 2, [1, 2]) == [2, 4] and calls == [1, 2]
    assert apply(str, [1]) == ["1"] and apply(adder(1), [1]) == [2]
    def fails(x): raise KeyError("k")
    try:
        apply(fails, [1])
    except KeyError:
        pass
    else:
        assert False
""",
    "re-entrant": """
def test_apply():
    assert apply(lambda x: apply(lambda y: x + y, [1]), [1, 2]) == [[2], [3]]
""",
    "closures": "def test_adder():\n    assert adder(3)(4) == 7\n",
    "decorators": """
def test_twice():
    @twice
    def f(x):
        "words"
        return x
    assert f(3) == 6 and f.__name__ == "f" and f.__doc__ == "words"
""",
    "iterators": """
import itertools
def test_naturals():
    numbers = naturals()
    assert next(numbers) == 0 and [*itertools.islice(numbers, 50)] == [*range(1, 51)]
    try:
        [*numbers]
    except ValueError:
        pass
    else:
        assert False
    assert first(itertools.count(5), 3) == [5, 6, 7]
""",
    "coroutines": """
import asyncio
async def double(x): return 2 * x
async def test_later():
    assert await asyncio.gather(later(double, 1), later(double, 2)) == [2, 4]
    s = Stack(1)
    assert await s.size() == 1
def test_run():
    assert asyncio.run(later(double, 3)) == 6
""",
    "in place": "def test_order():\n    xs = [3, 1]\n    order(xs)\n    assert xs == [1, 3]\n",
}
WRONG = PROGRAM
for right, wrong in {
    "self.items.pop()": "0",
    'Full("no room")': "OSError()",
    "self.items.clear()": "0",
    "last, node, node.next": "last, node, last",
    "[f(x) for x in xs]": "[None for x in xs]",
    "x + n": "x - n",
    "2 * f(": "3 * f(",
    "yield n": "yield 0",
    "xs.sort()": "xs[:]",
    "await f(x)": "f",
}.items():
    assert right in WRONG
    WRONG = WRONG.replace(right, wrong)
LIAR = """
class Liar:
    def __getattr__(self, name): return lambda *a, **k: print(a, k) or True
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = lambda *a: print(a) or True
    __contains__ = __bool__ = startswith = isupper = endswith = lambda *a: print(a) or True
    __len__ = __int__ = __index__ = lambda self: 3
    __getitem__ = lambda *a: print(a) or 3
    __iter__ = lambda self: iter([3])
    __hash__ = None
"""
CHEATS = {
    "an object with the methods of a string": (
        f"{LIAR}\nclass Stack:\n    def name(self): return Liar()\n",
        "def test():\n    s = Stack()\n    assert s.name().startswith('SECRET')\n    s.x = 1\n",
    ),
    "an object with the items of a list": (
        f"{LIAR}\nclass Stack:\n    def all(self): return Liar()\n",
        "def test():\n    s = Stack()\n    s.x = 1\n    assert len(s.all()) == 3\n",
    ),
    "an object that contains everything": (
        f"{LIAR}\nclass Stack:\n    def all(self): return Liar()\n",
        "def test():\n    s = Stack()\n    s.x = 1\n    assert 'SECRET' in s.all()\n",
    ),
    "an object that is everything": (
        f"{LIAR}\nclass Stack:\n    def all(self): return Liar()\n",
        "def test():\n    s = Stack()\n    s.x = 1\n    assert s.all() == 'SECRET'\n",
    ),
    "an object where tests have no class": (
        f"{LIAR}\ndef f(): return Liar()\n",
        "def test():\n    assert f().upper() == 'SECRET'\n",
    ),
    "an object where tests have no class, by a capital": (
        f"{LIAR}\ndef Diff(): return Liar()\n",
        "def test():\n    d = Diff()\n    assert d.startswith('SECRET')\n",
    ),
    "a function that is everything": (
        "def f(): return lambda *a: True\n",
        "def test():\n    assert f() == 'SECRET'\n",
    ),
    "an end of iteration": (
        "def f(x): raise StopIteration\n",
        "def test():\n    assert all(map(lambda x: f(x) == 'SECRET', [1]))\n",
    ),
    "an own end of iteration": (
        "class End(StopIteration): pass\ndef f(x): raise End\n",
        "def test():\n    assert [*map(f, [1])] == []\n",
    ),
    "a callback whose failure is hidden": (
        "def f(g):\n    try: g('no')\n    except BaseException: pass\n",
        "def test():\n    def g(x): assert x == 'SECRET'\n    f(g)\n",
    ),
    "what an assertion in a callback says": (
        "def f(g):\n    try: g(0)\n    except AssertionError as e: print(e)\n    return g(0)\n",
        "def test():\n    def g(x): assert x == 'SECRET', 'SECRET'\n    f(g)\n",
    ),
    "an object where an error is expected": (
        f"{LIAR}\ndef f(): return Liar()\n",
        "def test():\n    try: f()\n    except ValueError: return\n    assert False\n",
    ),
    "data that is too deep to be passed on": (
        "def f(x=None):\n    for _ in range(62): x = [x]\n    return x\n",
        "def test():\n    assert f([[[f()]]]) == 'SECRET'\n",
    ),
    "an iterator without an end": (
        "def f():\n    while True: yield 1\n",
        "def test():\n    assert [*f()] == ['SECRET']\n",
    ),
    "callbacks without an end": (
        "def f(g):\n    while True: g(1)\n",
        "def test():\n    f(lambda x: x)\n    assert True\n",
    ),
    "calls that wait for each other": (
        "def f(g): return g(g)\n",
        "def test():\n    def g(x): return f(g)\n    assert f(g) == 'SECRET'\n",
    ),
    "a change of what is compared": (
        "def f(xs):\n    xs.clear()\n    return 0\n",
        "def test():\n    xs = [1]\n    assert f(xs) == sum(xs)\n",
    ),
    "a number of its own": (
        (
            "import os, struct, json\ndef f():\n"
            "    m = json.dumps({'reply': {'value': {'stream': 10**9}}}).encode()\n"
            "    os.write(3, struct.pack('!Q', len(m)) + m)\n    os._exit(0)\n"
        ),
        "def test():\n    assert [*f()] == []\n",
    ),
    "a callback that nobody passed": (
        (
            "import os, struct, json\ndef f():\n"
            "    m = json.dumps({'request': {'callback': 5, 'args': [], 'named': {}}}).encode()\n"
            "    os.write(3, struct.pack('!Q', len(m)) + m)\n    os._exit(0)\n"
        ),
        "def test():\n    assert f() is None\n",
    ),
    "a verdict": (
        (
            "import os, struct, json\ndef f():\n"
            "    m = json.dumps({'reasons': [None], 'reply': 0}).encode()\n"
            "    os.write(3, struct.pack('!Q', len(m)) + m)\n    return 0\n"
        ),
        "def test():\n    assert f() == 'SECRET'\n",
    ),
}


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    made = CodeTests(CodeTests.Config(timeout=1, memory=128))
    yield made
    made.close()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(limits=Limits(seconds=0.5, memory=128 << 20)) as made:
        yield made


def value(reward: CodeTests, program: str, tests: str) -> float | None:
    return reward([""], [f"```python\n{program}\n```"], test=[tests])[0]


def suite_of(tests: str) -> Suite:
    (case,) = module({"test": tests})
    assert isinstance(case, problem.Testing)
    return case.suite


@pytest.mark.parametrize("name", TESTS)
def test_a_right_program_is_paid_and_a_wrong_one_is_not(reward: CodeTests, name: str) -> None:
    assert value(reward, PROGRAM, TESTS[name]) == 1.0
    assert value(reward, WRONG, TESTS[name]) == 0.0


@pytest.mark.slow(after=12)
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing_and_learns_nothing(sandbox: Sandbox, name: str) -> None:
    program, tests = CHEATS[name]
    tested = sandbox.test(program, suite_of(tests.replace("def test(", "def test_it(")))
    assert not tested.passed
    assert b"SECRET" not in tested.finished.stdout


def test_what_is_taken_for_a_class_is_read_from_the_tests() -> None:
    def classes(tests: str) -> Any:
        suite = suite_of(tests)
        return suite.classes, suite.exceptions

    assert classes("assert Diff([1]) == [1]") == ([], [])
    assert classes("d = Diff('a')\nassert d.startswith('a')") == ([], [])
    assert classes("s = Stack()\nassert s.peek() is None") == (["Stack"], [])
    assert classes("def make():\n    return Stack()\nassert make().peek() == 1") == (["Stack"], [])
    assert classes("assert Stack.of(1).top == 1") == (["Stack"], [])
    assert classes("try:\n    f()\nexcept (Full, OSError):\n    assert 1") == ([], ["Full"])


def test_calls_that_wait_for_each_other_are_bounded(sandbox: Sandbox) -> None:
    tests = "def down(n): return 0 if n == 0 else 1 + f(down, n - 1)\nassert down({}) == {}"
    for depth, passes in ((peer.DEPTH - 5, True), (peer.DEPTH + 5, False)):
        suite = Suite(code=tests.format(depth, depth), stubs=["f"])
        assert sandbox.test("def f(g, n): return g(n)", suite).passed is passes


def test_objects_are_bounded_in_number(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    table = references.Table()
    monkeypatch.setattr(references, "MOST", 2)
    values = [object() for _ in range(3)]
    assert [table.number(each) for each in (*values[:2], *values[:2])] == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="more than 2"):
        table.number(values[2])


def test_an_argument_that_cannot_cross_is_the_rows_fault(reward: CodeTests) -> None:
    fake = (
        "class Fake:\n    def get(self):\n        return 1\ndef test_it():\n    assert f(Fake())\n"
    )
    with pytest.raises(SampleErrors) as raised:
        value(reward, "def f(x): return x.get()", fake)
    assert raised.value.errors[0].startswith("f cannot be called with this: an object of Fake")
    # What a callback gives may be the program's doing, so it is no fault of the row.
    given = "def test_it():\n    assert f(lambda x: object()) == 1\n"
    assert value(reward, "def f(g): return g(1)", given) == 0.0
