"""The published README has only absolute links; version and address agree in all files."""

import re
import tomllib
from pathlib import Path

import yaml

from groupwise.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ADDRESS = PROJECT["project"]["urls"]["Source"]


def published() -> str:
    """The README of the package, after the substitutions of pyproject.toml."""
    text = (ROOT / "README.md").read_text("utf-8")
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


def test_all_files_have_the_same_address() -> None:
    addresses = {
        match
        for path in (ROOT / "pyproject.toml", ROOT / "CITATION.cff", *ROOT.glob("docs/*.md"))
        for match in re.findall(r"https://github\.com/[\w-]+/groupwise\b", path.read_text("utf-8"))
    }
    assert addresses == {ADDRESS}
