"""Checks, builds and publishes a release. A person runs it, with a token of the index for twine.

    python .ci/release.py check                  # what stands in the way of a release, if anything
    python .ci/release.py build FOLDER           # sdist and wheel, and what is wrong with them
    python .ci/release.py publish                # check, .ci/run, build, and upload to PyPI
    python .ci/release.py publish --index testpypi

`.ci/run` builds by the same script, so that what is tested is what is published.
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
INDEXES = {"pypi": "https://pypi.org", "testpypi": "https://test.pypi.org"}
MOST = 5_000_000  # bytes of the sdist or the wheel
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
LINK = re.compile(r'(?:\]\(|(?:src|srcset|href)=")([^)"\s]+)')
Fetch = Callable[[str], Mapping[str, Any] | None]
"""The JSON at an address; None if there is nothing. Raises OSError if it cannot be reached."""


def project(root: Path) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return loaded


def version_of(root: Path) -> str:
    path = project(root)["tool"]["hatch"]["version"]["path"]
    found = VERSION.search((root / path).read_text("utf-8"))
    if found is None:
        sys.exit(f"{path} has no line __version__ = ...")
    return found[1]


# ---- what may stand in the way


def problems_of_sources(root: Path, index: str) -> Iterator[str]:
    """Files that do not agree on the version, or on where the package is."""
    version, settings = version_of(root), project(root)
    if re.search(r"dev|rc|a\d|b\d", version) and index == "pypi":
        yield f"version {version} is no release: set core/groupwise/version.py"
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text("utf-8"):
        yield f"CITATION.cff has another version than {version}"
    changes = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f'CHANGELOG.md has no section "## {version} - YEAR-MONTH-DAY": rename "Unreleased"'
    if not settings["tool"]["groupwise"]["published"] and index == "pypi":
        yield (
            "README would say on PyPI that the package is not there: set published = true in "
            "pyproject.toml, run docs/tables/install.py for README.md and docs/index.md, and commit"
        )


def problems_of_tree(root: Path) -> Iterator[str]:
    """What is not committed, or a tag of the version that is on another commit."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    if changed := git("status", "--porcelain"):
        yield f"not everything is committed: {', '.join(changed.split()[1::2][:5])}"
    tag = f"v{version_of(root)}"
    if (at := git("rev-list", "-n", "1", tag)) and at != git("rev-parse", "HEAD"):
        yield f"the tag {tag} is on another commit: choose a new version, or check out the tag"


def problems_of_name(root: Path, index: str, fetch: Fetch) -> Iterator[str]:
    """Whether the name belongs to somebody else on the index, or has this version already."""
    name, version = project(root)["project"]["name"], version_of(root)
    address = project(root)["project"]["urls"]["Source"]
    try:
        known = fetch(f"{INDEXES[index]}/pypi/{name}/json")
    except OSError as error:
        yield f"{INDEXES[index]} cannot be reached to see whether {name!r} is free: {error}"
        return
    if known is None:  # the name is free
        return
    links = [known["info"].get("home_page"), *(known["info"].get("project_urls") or {}).values()]
    if address not in links:
        yield f"on {index} {name!r} is another project: choose another name in pyproject.toml"
    elif version in known["releases"]:
        yield f"{name} {version} is on {index} already, which takes a version once"


def problems_of_files(root: Path, folder: Path) -> Iterator[str]:
    """What is wrong with the sdist and the wheel in a folder."""
    files = sorted(folder.iterdir())
    name, version = project(root)["project"]["name"], version_of(root)
    expected = [f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.tar.gz"]
    if [file.name for file in files] != expected:
        yield f"expected {' and '.join(expected)}, found {', '.join(file.name for file in files)}"
        return
    yield from (f"{f.name} is larger than {MOST:,} bytes" for f in files if f.stat().st_size > MOST)
    wheel, sdist = files
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"{name}-{version}.dist-info/METADATA").decode()
    inside = {n for n in names if ".dist-info/" not in n}
    if other := sorted(packaged(root) ^ inside):
        yield f"the wheel and the packages differ by {', '.join(other[:5])}"
    with tarfile.open(sdist) as archive_of_sources:
        top = {n.split("/", 1)[1] for n in archive_of_sources.getnames() if n.count("/") == 1}
    missing = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"} - top
    yield from (f"the sdist has no {each}" for each in sorted(missing))
    yield from problems_of_metadata(root, Parser().parsestr(metadata))


def packaged(root: Path) -> set[str]:
    """The files of all packages, as a wheel names them."""
    packages = project(root)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return {
        f"{folder.name}/{file.relative_to(folder).as_posix()}"
        for folder in (root / package for package in packages)
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def problems_of_metadata(root: Path, metadata: Message) -> Iterator[str]:
    """What a package index would show wrongly."""
    settings = project(root)["project"]
    stated = {
        "Name": settings["name"],
        "Version": version_of(root),
        "Summary": settings["description"],
        "Requires-Python": settings["requires-python"],
        "License-Expression": settings["license"],
    }
    for key, value in stated.items():
        if metadata[key] != value:
            yield f"the metadata have {key}: {metadata[key]}, expected {value}"
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    if urls != settings["urls"]:
        yield f"the metadata have other addresses than pyproject.toml: {urls}"
    links = LINK.findall(str(metadata.get_payload()))
    relative = [link for link in links if not link.startswith(("https://", "http://", "#"))]
    if not links or relative:
        yield f"links of README lead nowhere on an index: {', '.join(relative[:5]) or 'no README'}"


# ---- the commands


def fetched(address: str) -> Mapping[str, Any] | None:
    try:
        with urlopen(address, timeout=30) as answer:
            known: Mapping[str, Any] = json.load(answer)
            return known
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    except URLError as error:
        raise OSError(str(error.reason)) from error


def check(index: str) -> list[str]:
    return [
        *problems_of_sources(ROOT, index),
        *problems_of_tree(ROOT),
        *problems_of_name(ROOT, index, fetched),
    ]


def build(folder: Path) -> list[str]:
    """Build the sdist, and of it the wheel, so what the wheel has is in the sdist, too."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files = [str(file) for file in sorted(folder.iterdir())]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    return [*problems_of_files(ROOT, folder)]


def publish(index: str) -> list[str]:
    if problems := check(index):
        return problems
    subprocess.run([ROOT / ".ci" / "run"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        if problems := build(Path(folder)):
            return problems
        files = [str(file) for file in sorted(Path(folder).iterdir())]
        upload = ["twine", "upload", "--repository", index, *files]
        subprocess.run([sys.executable, "-m", *upload], check=True)
    version = version_of(ROOT)
    tag = f"git tag -s v{version} -m 'Groupwise {version}' && git push --tags"
    print(f"uploaded to {index}; now: {tag}")
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build").add_argument("folder", type=Path)
    for name in ("check", "publish"):
        commands.add_parser(name).add_argument("--index", choices=INDEXES, default="pypi")
    options = parser.parse_args()
    if options.command == "build":
        problems = build(options.folder)
    else:
        problems = {"check": check, "publish": publish}[options.command](options.index)
    print(*(f"release: {problem}" for problem in problems), sep="\n", end="\n" * bool(problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
