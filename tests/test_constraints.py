"""constraints.txt pins every package that the README's commands install, at versions allowed."""

import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = ("3.11", "3.12", "3.13")


def pins(python: str) -> dict[str, str]:
    """Version by package, for a Python on Linux."""
    environment = {"python_version": python, "python_full_version": f"{python}.9"}
    versions: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        pin, _, marker = line.partition(";")
        name, equal, version = pin.strip().partition("==")
        if equal and (not marker or Marker(marker.strip()).evaluate(environment)):
            assert name not in versions, f"{name} twice for Python {python}"
            versions[canonicalize_name(name)] = version
    return versions


def required(extra: str) -> list[Requirement]:
    """The packages that an extra names, also by other extras."""
    requirements = map(Requirement, PROJECT["optional-dependencies"][extra])
    return [
        wanted
        for requirement in requirements
        for wanted in (
            [inner for name in requirement.extras for inner in required(name)]
            if requirement.name == "groupwise"
            else [requirement]
        )
    ]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_that_the_project_names_is_pinned_at_an_allowed_version(python: str) -> None:
    versions = pins(python)
    named = [*map(Requirement, PROJECT["dependencies"]), *required("all"), *required("dev")]
    assert len(named) > 30
    for requirement in named:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is missing: run .ci/constraints"
        assert version in requirement.specifier, f"{requirement}: {version}; run .ci/constraints"


def test_what_these_packages_need_is_pinned_too() -> None:
    """So that nothing is left to the day: of the installed packages, all that they require."""
    versions = pins(f"{PYTHONS[0]}")
    installed = {canonicalize_name(d.metadata["Name"]) for d in distributions()}
    missing = {
        f"{name} needs {requirement.name}"
        for name in versions.keys() & installed
        for requirement in map(Requirement, distribution(name).requires or [])
        if requirement.marker is None and canonicalize_name(requirement.name) not in versions
    }
    assert missing == set()
