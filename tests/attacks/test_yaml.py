"""Hostile configuration files are refused within a second, with one sentence."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.effort import Effort

from groupwise.config.load import LARGEST, load_config, load_text
from groupwise.kit.errors import UserError

PROMISE = "A hostile configuration file is refused within a second"
LEVELS = range(1, 12)
HOSTILE = {
    "aliases that multiply": "b0: &a0 [x, x]\n"
    + "".join(f"b{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in LEVELS),
    "merges that multiply": "b0: &a0 {k: 1, l: 2}\n"
    + "".join(f"b{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in LEVELS),
    "sections that multiply": "b0: &a0 {k: 1}\n"
    + "".join(
        f"b{i}: &a{i} {{{', '.join(f'k{n}: *a{i - 1}' for n in range(9))}}}\n" for i in LEVELS
    ),
    "a long list, often": f"b: &a [{'1, ' * 2000}]\nc: [{'*a, ' * 2000}]\n",
    "a list within itself": "a: &x [*x]",
    "a section within itself": "a: &x {b: *x}",
    "a section merged with itself": "a: &x {<<: *x, b: 1}",
    "an integer of 5,000 digits": f"seed: {'9' * 5000}",
    "a negative one": f"seed: -{'9' * 5000}",
    "a hexadecimal one": f"seed: 0x{'f' * 5000}",
    "an octal one": f"seed: 0o{'7' * 5000}",
    "a tagged one": f"seed: !!int '{'9' * 5000}'",
    "a version of 5,000 digits": f"%YAML {'9' * 5000}.1\n---\na: 1",
    "an escape beyond Unicode": r'a: "\UFFFFFFFF"',
    "lists 20,000 deep": "[" * 20_000,
    "sections 20,000 deep": "{a: " * 20_000,
    "lists 2,000 deep": "[" * 2000 + "]" * 2000,
    "lists 150 deep": "policy: " + "[" * 150 + "]" * 150,
    "keys 1,000 deep": "\n".join(" " * i + "a:" for i in range(1000)),
    "a key given twice": "seed: 1\npolicy: toy\nseed: 2",
    "a Python object": "policy: !!python/object/apply:os.system [exit 1]",
    "a Python name": "policy: !!python/name:os.system",
    "a Python name as a key": "!!python/name:os.system policy: toy",
    "a tag of its own": "policy: !mine toy",
    "an endless tag": "policy: !" + "m" * 100_000,
    "bytes": "policy: !!binary dG95",
    "a set": "policy: !!set {toy}",
    "an invalid time": "seed: !!timestamp soon",
    "an invalid number": "seed: !!int soon",
    "an empty number": "seed: !!int ''",
    "an invalid boolean": "seed: !!bool soon",
    "a mistake after another separator of lines": "a\u2028b\x85 [",
    "NUL": "policy: toy\nseed: \0",
    "a control character": "policy: toy\x1b[2J",
    "an alias without an anchor": "policy: *nothing",
    "a list as a key": "? [a, b]\n: 1",
    "a section merged from a text": "<<: toy",
    "two documents": "policy: toy\n---\npolicy: toy",
    "nothing": "",
    "blanks": " \n\n  \n",
    "a list": "- policy",
    "a text": "policy",
    "a number": "5",
}
BINARY = {
    "Latin-1": "policy: b\xe9b\xe9".encode("latin-1"),
    "UTF-16": "policy: toy".encode("utf-16"),
    "a PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a lone surrogate": "policy: \ud800".encode("utf-8", "surrogatepass"),
    "zeros": bytes(1000),
}


def refusal(path: Path) -> str:
    """The error message of a file, which must come within a second."""
    with Effort() as effort, pytest.raises(UserError) as caught:
        load_config(path)
    assert effort.cpu < 1
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < 1000
    return message


@pytest.mark.attack(PROMISE, "aliases, numbers, nesting, tags, bytes and more, one file each")
def test_hostile_files_are_refused_within_a_second(tmp_path: Path, tries) -> None:
    path = tmp_path / "run.yaml"
    for content in [text.encode() for text in HOSTILE.values()] + list(BINARY.values()):
        path.write_bytes(content)
        refusal(path)
        tries(1)


@pytest.mark.attack(PROMISE, "files larger than the limit, one of them endless")
def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, tries) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(50 * LARGEST)
    endless = tmp_path / "endless.yaml"
    endless.symlink_to("/dev/zero")
    for path in (large, endless):
        assert "more than 10 MB, which is too much for a configuration" in refusal(path)
        tries(1)


@pytest.mark.attack(PROMISE, "hypothesis: any text, and text of YAML's special characters")
@pytest.mark.parametrize(
    "texts",
    [st.text(max_size=60), st.text("[]{}:,-&*!|>'\"%#?<=~0x9e.+\n \tab\\Uu$", max_size=60)],
    ids=["any", "signs"],
)
def test_any_text_is_refused_in_sentences_that_name_the_file(texts, tries) -> None:
    @given(texts)
    @example('"\\UFFFFFFFF"')
    def attack(text: str) -> None:
        tries(1)
        with pytest.raises(UserError) as caught:  # also of text that is read, for lack of sections
            load_text(text, Path("run.yaml"))
        assert str(caught.value).startswith("run.yaml")

    attack()


@pytest.mark.parametrize("key", ["a." * 5000 + "b", "rewards." + "9" * 5000, "x" * 5000])
def test_very_long_keys_of_overrides_are_refused(key: str) -> None:
    with pytest.raises(UserError, match="expected a key of at most 100 parts"):
        load_config({}, [f"{key}=1"])


def test_ordinary_anchors_and_merge_keys_are_supported() -> None:
    rows = "".join(f"    - {{<<: *row, prompt: '{i}'}}\n" for i in range(1000))
    text = (
        f"policy: {{name: toy, base: &row {{answer: '5', tags: [a, b]}}}}\n"
        f"prompts:\n  name: rows\n  rows:\n{rows}  again: [*row, *row]\n"
        f"rewards: [{{name: a, one: &a {{x: 1}}, two: &b {{x: 2, y: 2}}}}]\n"
        f"watch: [{{name: b, merged: {{<<: [*a, *b], z: 3}}}}]\n"
    )
    loaded = load_text(text, Path("run.yaml"))
    options = loaded.config.prompts.options
    assert options["rows"][999] == {"answer": "5", "tags": ["a", "b"], "prompt": "999"}
    assert options["again"] == [loaded.config.policy.options["base"]] * 2
    assert loaded.origin.where(("prompts", "rows", 999, "prompt")) == "run.yaml, line 1004"
    assert loaded.config.watch[0].options["merged"] == {"x": 1, "y": 2, "z": 3}
