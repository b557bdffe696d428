"""Pages of the site for files outside docs/ that its pages link to.

On a git forge a link such as `../core/groupwise/policy.py` opens the file. In the site it opens a
page that is made here, so that it works from a disk, too: of a module of our packages its reference
(by mkdocstrings), of a notebook its cells, of another file its text, of a folder its README and a
list of its files.
"""

import json
import os.path
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
NO_RUN = re.compile(r"(?<=\w) no-run$", re.MULTILINE)  # a mark for tests/test_docs.py alone
BADGE = re.compile(r"\[!\[[^]]*\]\(https?:[^)]*\)\]\([^)]*\)|!\[[^]]*\]\(https?:[^)]*\)")
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", ".sbatch": "bash"}
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"

paths_of_pages: dict[str, str] = {}
"""Which file of the repository a page is of, both by their paths."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each module that api.md links to into the navigation."""
    paths = links("docs/api.md", (ROOT / "docs/api.md").read_text(encoding="utf-8"))
    (reference,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    reference.append(
        {"Modules": [{module(path): page_uri(path)} for path in paths if module(path)]}
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the pages link to, and what that links to in turn."""
    pages = files.documentation_pages()
    pending = [(f"docs/{page.src_uri}", page.content_string) for page in pages]
    paths_of_pages.clear()
    for source, text in pending:  # grows meanwhile
        for path in links(source, text):
            uri = page_uri(path)
            if path.startswith("docs/") or uri in paths_of_pages:
                continue
            paths_of_pages[uri] = path
            if path.endswith(PICTURES):
                files.append(File.generated(config, uri, content=(ROOT / path).read_bytes()))
                continue
            text_of_page = content(path)
            files.append(File.generated(config, uri, content=text_of_page))
            if has_links(path):
                pending.append((path, text_of_page))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead to the pages instead of the files, and leave out pictures of a network."""
    uri = page.file.src_uri
    source = paths_of_pages.get(uri, f"docs/{uri}")
    if not has_links(source):
        return markdown

    def in_site(link: re.Match[str]) -> str:
        path = resolved(source, link["path"])
        if path is None:
            return link[0]
        target = path.removeprefix("docs/") if path.startswith("docs/") else page_uri(path)
        return f"]({os.path.relpath(target, PurePosixPath(uri).parent)}{link['anchor'] or ''})"

    return NO_RUN.sub("", LINK.sub(in_site, BADGE.sub("", markdown)))


def links(source: str, text: str) -> Iterator[str]:
    """What a text links to in the repository, as paths from its root."""
    paths = (resolved(source, link["path"]) for link in LINK.finditer(text))
    return (path for path in paths if path is not None)


def resolved(source: str, link: str) -> str | None:
    """The path of what a file links to; None where there is nothing, and mkdocs complains.

    The root of the repository is its README.
    """
    folder = source if (ROOT / source).is_dir() else os.path.dirname(source)  # noqa: PTH120
    path = os.path.normpath(os.path.join(folder, link))  # noqa: PTH118
    path = "README.md" if path == "." else path
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def has_links(path: str) -> bool:
    return path.endswith((".md", ".ipynb")) or (ROOT / path).is_dir()


def page_uri(path: str) -> str:
    return f"repository/{path}" if path.endswith((".md", *PICTURES)) else f"repository/{path}.md"


def module(path: str) -> str:
    """The dotted name of a module of one of our packages; empty for any other file."""
    folder, *parts = PurePosixPath(path).with_suffix("").parts
    ours = folder in ("core", "plugins", "rewards") and path.endswith(".py")
    return ".".join(parts).removesuffix(".__init__") if ours else ""


def content(path: str) -> str:
    file = ROOT / path
    if name := module(path):
        return f"# {name}\n\n::: {name}\n"
    if file.is_dir():
        return UNSEARCHED + folder_page(file)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return UNSEARCHED + text
    if file.suffix == ".ipynb":
        return notebook_page(json.loads(text))
    fence, language = "~" * 8, LANGUAGES.get(file.suffix, "text")
    return f"{UNSEARCHED}# {file.name}\n\n`{path}`\n\n{fence}{language}\n{text}\n{fence}\n"


def notebook_page(notebook: dict[str, Any]) -> str:
    """The cells one after the other; outputs are not kept in the repository."""
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"])
    return "\n\n".join(
        f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells
    )


def folder_page(folder: Path) -> str:
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {folder.name}\n"
    files = sorted(file for file in folder.rglob("*") if file.suffix in LANGUAGES)
    names = [file.relative_to(folder).as_posix() for file in files if "runs" not in file.parts]
    return f"{text}\n## Files\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
