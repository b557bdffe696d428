"""The published README has only absolute links; version and address agree in all files."""

import re
import subprocess
import tomllib
from email.message import Message
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from groupwise.version import __version__

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ADDRESS = PROJECT["project"]["urls"]["Source"]


def script(path: str) -> ModuleType:
    """A script of the repository that is in no package, as a module."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "docs/tables")  # as where the script is run
    install = script("docs/tables/install.py")
release = script(".ci/release.py")


def published() -> str:
    """The README of the package, after the substitutions of pyproject.toml."""
    text = README
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    return text


def test_links_of_the_published_readme_are_absolute() -> None:
    links = re.findall(r'(?:\]\(|(?:src|srcset|href)=")([^)"\s]+)', published())
    assert [link for link in links if not link.startswith(("https://", "http://", "#"))] == []
    own = [link for link in links if link.startswith(ADDRESS)]
    assert own
    missing = [link for link in own if not (ROOT / re.split(r"/main/|#", link)[1]).exists()]
    assert missing == []


def test_pictures_of_the_published_readme_link_to_raw_files() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", published())
    own = [picture for picture in pictures if picture.startswith(ADDRESS)]
    assert own
    assert all(picture.startswith(f"{ADDRESS}/raw/main/") for picture in own)


def test_the_citation_is_of_this_version_and_address() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["repository-code"]) == (__version__, ADDRESS)
    assert citation["license"] == PROJECT["project"]["license"]


def test_the_badges_are_true() -> None:
    badges = re.findall(r"^!\[(.+)\]\(https://img\.shields\.io/", README, re.MULTILINE)
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert PROJECT["tool"]["mypy"]["strict"]
    assert badges == [
        f"Python {oldest} or newer",
        PROJECT["project"]["license"],
        "Types: mypy --strict",
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_pages_say_how_to_install_what_is_published_or_is_not(page: str) -> None:
    """By one variable; where the package is on PyPI, a checkout is needed for examples alone."""
    shown = (ROOT / page).read_text("utf-8")
    assert install.text(published=PROJECT["tool"]["groupwise"]["published"]) in shown
    assert ("not on PyPI" in shown) != PROJECT["tool"]["groupwise"]["published"]


def test_all_files_have_the_same_address() -> None:
    addresses = {
        match
        for path in (ROOT / "pyproject.toml", ROOT / "CITATION.cff", *ROOT.glob("docs/*.md"))
        for match in re.findall(r"https://github\.com/[\w-]+/groupwise\b", path.read_text("utf-8"))
    }
    assert addresses == {ADDRESS}


# ---- .ci/release.py, without a network


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a release is made of, ready to be published and committed."""
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "core/groupwise/version.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text("utf-8")
        text = re.sub("^published = .*", "published = true", text, flags=re.MULTILINE)
        text = re.sub("^version: .*", f"version: {__version__}", text, flags=re.MULTILINE)
        path.write_text(
            re.sub("^## Unreleased", f"## {__version__} - 2026-11-28", text, flags=re.M)
        )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a release")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def on_index(**fields: object) -> release.Fetch:
    urls = {"info": {"project_urls": {"Source": ADDRESS}}, "releases": {}}
    return lambda _: {**urls, **fields}


def problems(folder: Path, fetch: release.Fetch, index: str = "pypi") -> list[str]:
    found = [*release.problems_of_sources(folder, index), *release.problems_of_tree(folder)]
    return [*found, *release.problems_of_name(folder, index, fetch)]


def test_a_release_that_is_ready_has_no_problem(checkout: Path) -> None:
    assert problems(checkout, lambda _: None) == []  # the name is free
    assert problems(checkout, on_index(releases={"0.0.1": []})) == []


def test_each_obstacle_of_a_release_is_found(checkout: Path) -> None:
    def unreachable(_: str) -> None:
        raise OSError("no network")

    (found,) = problems(checkout, unreachable)
    assert "cannot be reached" in found
    (found,) = problems(checkout, on_index(releases={__version__: []}))
    assert "already" in found
    (found,) = problems(checkout, on_index(info={"home_page": "https://example.org"}))
    assert "is another project" in found
    git(checkout, "tag", f"v{__version__}")
    for name, old, new, problem in (
        (
            "CITATION.cff",
            f"version: {__version__}",
            "version: 0",
            "CITATION.cff has another version",
        ),
        ("CHANGELOG.md", f"## {__version__} - ", "## next ", "CHANGELOG.md has no section"),
        ("pyproject.toml", "published = true", "published = false", "set published = true"),
    ):
        path = checkout / name
        whole = path.read_text("utf-8")
        path.write_text(whole.replace(old, new))
        found, changed = problems(checkout, lambda _: None)
        assert problem in found
        assert f"not everything is committed: {name}" in changed
        path.write_text(whole)
    git(
        checkout, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "b", "--allow-empty"
    )
    (found,) = problems(checkout, lambda _: None)
    assert "on another commit" in found


def test_what_an_index_would_show_wrongly_is_found() -> None:
    settings, metadata = PROJECT["project"], Message()
    metadata["Name"], metadata["Version"] = settings["name"], "0"
    metadata["Summary"], metadata["License-Expression"] = settings["description"], "Apache-2.0"
    metadata["Requires-Python"] = settings["requires-python"]
    for name, address in settings["urls"].items():
        metadata["Project-URL"] = f"{name}, {address}"
    metadata.set_payload(published())
    (found,) = release.problems_of_metadata(ROOT, metadata)
    assert "Version: 0" in found
    metadata.replace_header("Version", __version__)
    assert [*release.problems_of_metadata(ROOT, metadata)] == []
    metadata.set_payload(README)  # as the repository has it
    (found,) = release.problems_of_metadata(ROOT, metadata)
    assert "lead nowhere" in found


def test_a_wheel_that_lacks_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "groupwise-0.tar.gz").touch()
    assert "expected groupwise-" in next(release.problems_of_files(ROOT, tmp_path))
    assert {"groupwise_report/page.css", "groupwise/py.typed"} <= release.packaged(ROOT)
