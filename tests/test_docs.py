"""The code blocks of the documentation work: Python is run in order, YAML is parsed as configs.

A Python block whose first line is a comment with a file name is also written to that file, so that
later blocks can name it as `module:attribute`; so is any block with a `title`. A block marked
`python no-run` is only compiled. The commands of recipes are run, too.
"""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.command_line import call

import groupwise
from groupwise.config.load import load_config, load_text
from groupwise.plugins.resolved import resolve
from groupwise.storage.run_info import settings_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("README.md")])
RECIPES = [page for page in PAGES if page.parent.name == "recipes"]
# Blocks can be indented, as in lists; both fences have the same indentation.
BLOCK = re.compile(r"^([ ]*)```(\w+)[ ]*([^\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
SHORT = {"train.steps": 2, "evaluation.prompts": 10}
SMALL = {"train.groups_per_step": 4, "train.group_size": 4}
FILE = re.compile(r"# ([\w/]+\.py)\n")
TITLE = re.compile(r'title="([\w./]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, unindented, and the line of its start."""

    language: str
    marks: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    return [
        Block(
            language=match[2],
            marks=match[3],
            text=re.sub(rf"^{match[1]}", "", match[4], flags=re.MULTILINE),
            line=source[: match.start()].count("\n") + 1,
        )
        for match in BLOCK.finditer(source)
    ]


def with_blocks(language: str) -> list[Any]:
    return [
        pytest.param(page, id=page.name)
        for page in PAGES
        if any(block.language == language for block in blocks(page))
    ]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits `groupwise.train` to two steps and ten evaluation prompts, where they are set; these
    steps are small."""
    train = groupwise.train

    def shortly(*arguments: Any, **settings: Any) -> groupwise.RunResult:
        limits = {key: SHORT[key] for key in SHORT.keys() & settings.keys()}
        if "train.steps" in limits:
            limits |= SMALL
        return train(*arguments, **settings | limits)

    monkeypatch.setattr(groupwise, "train", shortly)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with the repository's examples; its modules are removed after the test."""
    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    modules, threads = set(sys.modules), torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def run_python(page: Path, folder: Path, languages: tuple[str, ...] = ("python",)) -> None:
    """Run the Python blocks of a page in order, and its commands if `languages` has `sh`."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if file := TITLE.search(block.marks) or FILE.match(block.text):
            (folder / file[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / file[1]).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            # With as many empty lines as the page has before it, errors name the page's lines.
            code = compile("\n" * block.line + block.text, str(page), "exec")
            if "no-run" not in block.marks:
                exec(code, namespace)
        elif block.language in languages and "no-run" not in block.marks:
            run_commands(block)


def run_commands(block: Block) -> None:
    for line in block.text.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "groupwise"
        result = call(*arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("page", [p for p in with_blocks("python") if p.values[0] not in RECIPES])
def test_python(page: Path, folder: Path, short: None) -> None:
    run_python(page, folder)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks it
@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in RECIPES])
@pytest.mark.slow(after=1)
def test_recipes(page: Path, folder: Path) -> None:
    """Files, Python and commands, as a reader would run them."""
    run_python(page, folder, ("python", "sh"))


@pytest.mark.parametrize("page", with_blocks("yaml"))
def test_yaml(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            data = yaml.safe_load(block.text)
            if isinstance(data, dict) and "policy" in data:
                load_text(block.text, Path(f"{page.name}, block at line {block.line}"))


@pytest.mark.parametrize("page", with_blocks("yaml"))
def test_configurations_have_learning_rates_for_adapters_and_the_kl_of_their_beta(
    page: Path,
) -> None:
    """Published betas are for the published KL, and the default rate is for whole models."""
    published = {0.04, 0.01}
    for block in blocks(page):
        data = settings_of(block.text) if block.language == "yaml" else {}
        if "policy" not in data:
            continue
        config = load_config(data).config
        where = f"{page.name}, block at line {block.line}"
        if config.policy.options.get("lora"):
            assert config.train.learning_rate >= 1e-5, where
        options = config.algorithm.options
        if config.policy.name == "flow" and options.get("beta") in published:
            assert options.get("kl") == "published", where


@pytest.mark.slow
def test_the_plugins_of_the_guide_are_built_by_its_configuration(folder: Path) -> None:
    """The page's configuration names the page's files as `module:attribute`, with options."""
    page = ROOT / "docs" / "plugins.md"
    run_python(page, folder)
    texts = [block.text for block in blocks(page) if block.language == "yaml"]
    (data,) = [read for text in texts if "policy" in (read := settings_of(text))]
    plugins = resolve(load_config(data)).plugins
    policy = plugins["policy",].build()
    for path in [("prompts",), ("rewards", 0), ("algorithm",), ("callbacks", 0), ("reports", 1)]:
        assert plugins[path].build() is not None
    assert plugins["sampler",].build(policy) is not None


def test_every_hook_is_in_the_guide() -> None:
    from groupwise.kinds import KINDS

    guide = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`register_{kind}`" not in guide] == []


def test_the_first_paragraph_of_every_page_says_when_to_read_it() -> None:
    pages = [page for page in PAGES if page.name != "README.md"]
    opening = re.compile(r"# [^\n]+\n\n(\*Read this [^*]+\*\n\n|\*\*When to use it\.\*\*)")
    missing = [page.name for page in pages if not opening.match(page.read_text(encoding="utf-8"))]
    assert missing == []


def test_every_public_module_is_in_the_reference() -> None:
    """Modules at the top of the core and in its kit, and those that pages import."""
    listed = re.findall(r"^\| \[`([\w.]+)`\]", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    ours = {"__init__", "__main__", "builtins", "moved", "version", "kit.__init__"}
    core = ROOT / "core/groupwise"
    files = [*core.glob("*.py"), *core.glob("kit/*.py")]
    top = {f"groupwise.{'.'.join(file.relative_to(core).with_suffix('').parts)}" for file in files}
    shown = {
        module
        for page in PAGES
        for block in blocks(page)
        if block.language == "python"
        for module in re.findall(r"^from (groupwise\.[\w.]+) import", block.text, re.MULTILINE)
    }
    public = top - {f"groupwise.{name}" for name in ours} | shown
    assert [
        name for name in sorted(public) if not any(f"{n}.".startswith(f"{name}.") for n in listed)
    ] == []


def test_plugins_import_only_what_the_reference_lists() -> None:
    """Of the core: what it exports, and the modules of docs/api.md.

    What the laws may import besides is in a contract of import-linter.
    """
    page = (ROOT / "docs/api.md").read_text().partition("## Write a part of your own")[2]
    listed = re.findall(r"^\| \[`([\w.]+)`\]", page, re.MULTILINE)
    public = {name for name in listed if not name.startswith("groupwise_")}
    public |= {f"groupwise.{name}" for name in groupwise.__all__}
    private = {
        f"{file.relative_to(ROOT)}: {name}"
        for folder in ("plugins", "rewards")
        for file in (ROOT / folder).rglob("*.py")
        if file.relative_to(ROOT / folder).parts[0] != "groupwise_testing"
        for name in imported_of_core(file)
        if not any(f"{name}.".startswith(f"{each}.") for each in public)
    }
    assert sorted(private) == []


def imported_of_core(file: Path) -> Iterator[str]:
    """`groupwise.policy` for `from groupwise.policy import Policy`, and so on."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module in ("groupwise", "groupwise.kit"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "groupwise")


def test_tests_named_in_pages_exist() -> None:
    """Pages link `tests/file.py`, followed by names of tests in that file."""
    missing = []
    for page in PAGES:
        for file, names in re.findall(
            r"`(tests/[\w/]+\.py)`\]\([^)]+\)((?:[:,]?\s+`test_\w+`,?)*)", page.read_text()
        ):
            text = (ROOT / file).read_text()
            named = re.findall(r"test_\w+", names)
            missing += [f"{page.name}: {name}" for name in named if f"def {name}(" not in text]
    assert missing == []


def test_links_point_to_files() -> None:
    broken = [
        f"{page.name}: {link}"
        for page in PAGES
        for link in re.findall(
            r"\]\(([^)#\s]+)[^)]*\)", BLOCK.sub("", page.read_text(encoding="utf-8"))
        )
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []
