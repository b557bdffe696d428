"""`pip install groupwise` without extras: the core works, and errors name the extra to install.

The tests use a virtual environment with links to the core's requirements only.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOTS = ("core", "plugins", "rewards")
PACKAGES = Path(__file__).parents[1]
TRAIN = """
import groupwise, torch

class Coin(groupwise.Policy):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        rows = [row for row in prompts for _ in range(group_size)]
        draws = [torch.rand((), generator=torch.Generator().manual_seed(s)) for s in seeds]
        heads = (torch.stack(draws) < self.bias.sigmoid()).long()
        trajectory = {"heads": heads}
        mask = torch.ones(len(rows), 1, dtype=torch.bool)
        rollouts = groupwise.Rollouts(
            prompts=rows, completions=heads.tolist(), mask=mask, trajectory=trajectory,
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
        )
        return rollouts

    def forward(self, rollouts, decisions=slice(None)):
        sign = 2 * rollouts.tensor("heads") - 1
        log_probs = torch.nn.functional.logsigmoid(sign * self.bias).unsqueeze(1)
        return groupwise.LogProbs(log_probs=log_probs[:, decisions])

result = groupwise.train(
    policy=Coin(), prompts=[{"prompt": f"toss {n}"} for n in range(50)],
    rewards=[lambda completions, **_: [float(c) for c in completions]],
    train={"steps": 20, "learning_rate": 0.1}, quiet=True, output="run",
)
assert result.after["reward"] > 0.7, result.after
"""
NO_VARIANT = """
import sys

assert {name for name in sys.modules if name.startswith("groupwise_algorithms.")} == {
    "groupwise_algorithms.plugin"
}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder with an environment in which no extra is installed."""
    folder = tmp_path_factory.mktemp("core_only")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    scheme = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    for name in required("groupwise"):
        link(name, site)
    for package in (p for root in ROOTS for p in (PACKAGES / root).iterdir() if p.is_dir()):
        (site / package.name).symlink_to(package)
    return folder


def required(name, names=None):
    """The names of the distributions that an installation without extras installs."""
    names = {name} if names is None else names
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        extras = requirement.extras or {""}
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras} - {"dev"}
        ):
            continue
        key = requirement.name.lower()
        if key in names:
            continue
        try:
            distribution(key)
        except PackageNotFoundError:
            continue
        names.add(key)
        required(key, names)
    return names


def link(name, site):
    """Links every top-level entry of a distribution's files into another site-packages."""
    installed = distribution(name)
    tops = {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}
    for top in tops:
        source = Path(str(installed.locate_file(top)))
        if "editable" in top or not source.exists() or (site / top).exists():
            continue
        (site / top).symlink_to(source)


def run(folder, *arguments):
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(folder / "env" / "bin" / "python"), *arguments],
        cwd=folder,
        env=inherited | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="links files as POSIX does")
def test_no_package_of_the_extras_is_installed(environment):
    for module in ("transformers", "diffusers", "peft", "PIL", "open_clip", "math_verify"):
        assert run(environment, "-c", f"import {module}").returncode != 0, module


def test_plugins_are_listed_with_their_extra(environment):
    process = run(environment, "-m", "groupwise", "plugins")
    assert process.returncode == 0, process.stderr
    registry = json.loads(run(environment, "-m", "groupwise", "plugins", "--json").stdout)
    assert registry["failures"] == {}
    needs = [entry for entry in registry["entries"] if entry["extra"]]
    assert {"language_model", "flow", "math"} <= {entry["name"] for entry in needs}
    for entry in needs:
        assert f"groupwise[{entry['extra']}]" in process.stdout, process.stdout
        assert entry["missing"], f"{entry['name']} needs no package of the extra {entry['extra']}"


def test_a_custom_policy_trains_with_the_core_only(environment):
    process = run(environment, "-c", TRAIN + NO_VARIANT)
    assert process.returncode == 0, process.stderr


def test_the_core_needs_no_package_beside_it(environment):
    beside = [p.name for root in ROOTS for p in (PACKAGES / root).iterdir() if p.is_dir()]
    names = [name for name in beside if name != "groupwise"]
    missing = f"import sys; sys.modules.update(dict.fromkeys({names}))\n"
    process = run(environment, "-c", missing + TRAIN.replace('"run"', '"alone"'))
    assert process.returncode == 0, process.stderr


def test_without_a_display_a_run_says_notes_and_how_it_ended(environment):
    missing = "import sys; sys.modules['groupwise_console'] = None\n"
    script = TRAIN.replace('"run"', '"without_display"').replace("quiet=True", "quiet=False")
    process = run(environment, "-c", missing + script)
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stderr.splitlines() if not line.startswith("note: ")]
    assert [line.partition(" in ")[0] for line in lines] == ["20 steps"]


def test_an_entry_of_a_missing_extra_names_the_pip_command(environment):
    config = environment / "needs.yaml"
    config.write_text("policy: language_model\nprompts: {name: rows, rows: []}\nrewards: [math]\n")
    process = run(environment, "-m", "groupwise", "check", str(config))
    assert process.returncode == 2
    assert "pip install 'groupwise[llm]'" in process.stderr


def test_only_the_published_rules_of_math_need_its_extra(environment):
    script = (
        "from groupwise_verifiable.mathematics.reward import MathEquivalence as Math\n"
        "print(Math()(['1 + 1?'] * 2, [r'\\boxed{2}', r'\\boxed{3}'], answer=['2', '2']))\n"
        "Math(Math.Config(rules='trl'))"
    )
    process = run(environment, "-c", script)
    assert process.stdout == "[1.0, 0.0]\n", process.stderr
    assert "needs math-verify: pip install 'groupwise[math]'" in process.stderr
