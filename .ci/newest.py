"""Tries the newest packages: which are newer than constraints.txt, and which of them break what.

python .ci/newest.py [TEST ...] [--minutes 2]

Run it in the environment that the README's test command made. It installs the newer packages into a
folder of their own, before this environment's in the search path, and runs tests with them in one
process; if none are named, files that use each large package and take about a minute (to run all:
`tests --minutes 60`). If some fail, it takes the newer packages one by one, and names those with
which a test fails. The environment and the checkout stay as they are, and the exit code is 0
whatever comes out: somebody else's release does not make this tree worse.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/test_evaluating.py",
    "tests/core/test_cli.py",
    "tests/llm/test_trl_losses.py",
    "tests/clip/test_loading.py",
    "tests/verifiable/test_math.py",
    "tests/verifiable/test_ocr.py",
]


def versions(constraints: Path) -> dict[str, str]:
    """The version of each package, for this Python and platform."""
    pins = {}
    for line in constraints.read_text().splitlines():
        pin, _, marker = line.partition(";")
        name, equal, version = pin.strip().partition("==")
        if equal and (not marker or Marker(marker.strip()).evaluate()):
            pins[name] = version
    return pins


def newer() -> dict[str, str]:
    """The newest version of each package that has another one than the tested."""
    with tempfile.TemporaryDirectory() as folder:
        latest = Path(folder) / "constraints.txt"
        subprocess.run([ROOT / ".ci" / "constraints", latest], check=True)
        tested = versions(ROOT / "constraints.txt")
        return {n: v for n, v in versions(latest).items() if tested.get(n) != v}


def failures(pins: Mapping[str, str], tests: Sequence[str], deadline: float) -> list[str]:
    """The tests that fail with these packages; prints what came out."""
    names = [f"{name}=={version}" for name, version in pins.items()]
    with tempfile.TemporaryDirectory() as folder:
        install = ["install", "--quiet", "--no-deps", "--target", folder, *names]
        if subprocess.run([sys.executable, "-m", "pip", *install], check=False).returncode:
            print("newest: cannot be installed")
            return []
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-rfE", *tests],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                cwd=ROOT,
                check=False,
                capture_output=True,
                text=True,
                timeout=max(1.0, deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            print("newest: the time is up before the tests are done")
            return []
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    print("newest: these tests break:" if failed else "newest: no test breaks")
    print(*(f"    {test}" for test in failed), sep="\n", end="\n" * bool(failed), flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--minutes", type=float, default=2.0)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    tested, changed = versions(ROOT / "constraints.txt"), newer()
    if not changed:
        print("newest: the tested versions are the newest")
        return
    steps = [f"{name} {tested.get(name, 'new')} -> {version}" for name, version in changed.items()]
    print(f"newest: {', '.join(steps)}", flush=True)
    failed = failures(changed, options.tests, deadline)
    for name, version in changed.items() if failed and len(changed) > 1 else ():
        print(f"newest: {name} {version} alone", flush=True)
        failures({name: version}, failed, deadline)


if __name__ == "__main__":
    main()
