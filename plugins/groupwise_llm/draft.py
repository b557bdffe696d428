"""LanguageDraft: first configurations for language models."""

import mmap
import re
import struct
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.kit import foreign_json
from groupwise.kit.draft import Columns, Draft, read_json
from groupwise.kit.errors import UserError

NUMBER = re.compile(r"(?:.*####)?\s*[-+]?\$?[\d,]*\.?\d+\s*", re.DOTALL)
VALUE = re.compile(
    rf"\$?(?:{NUMBER.pattern}|\s*-?\d*\s*\\[dt]?frac\{{?-?\d+\}}?\{{?\d+\}}?|\s*-?\d+\s*/\s*\d+"
    r"|\s*\\text\{.*\})(?:\s*\\?%|\s*\^?\{?\\circ\}?|\\text\{[^{}]*\})?\$?\s*",
    re.DOTALL,
)
"""A number, a fraction or a word, with its unit."""
FORMULA = re.compile(r"[\\^$=]|\d\s*/\s*\d")
MAX_NEW_TOKENS = 1024
"""The longest completion, unless the model has fewer than twice as many positions."""
METADATA = 64_000_000
"""Bytes of a GGUF file that are searched for its metadata."""
UINT32 = 4
"""The type of a value in GGUF's metadata, stated before it."""


class LanguageDraft(Draft):
    """A language model that is rewarded for right answers."""

    model = "a language model"
    templates = files("groupwise_llm") / "drafts"

    def settings(self, model: str) -> Mapping[str, Any]:
        """Whether it has a chat template, how long its completions may be, and which file of a
        folder holds it, if that is a GGUF file."""
        folder = Path(model)
        if folder.suffix == ".gguf":
            raise UserError(
                f"{model}: name the folder with the file, {folder.parent}, in which init finds it"
            )
        if not folder.is_dir():
            return _settings(chat=True, tokens=MAX_NEW_TOKENS)
        if not (folder / "config.json").exists() and (files := sorted(folder.glob("*.gguf"))):
            return _of_gguf(max(files, key=lambda file: file.stat().st_size))
        templates = ("chat_template.jinja", "chat_template.json")
        chat = "chat_template" in read_json(folder / "tokenizer_config.json") or any(
            (folder / name).exists() for name in templates
        )
        default = 2 * MAX_NEW_TOKENS
        positions = read_json(folder / "config.json").get("max_position_embeddings", default)
        tokens = min(MAX_NEW_TOKENS, positions // 2)
        return _settings(chat=chat, tokens=tokens)

    def data_settings(self, data: Columns) -> Mapping[str, Any]:
        """The rules of the reward `math`: `strict` unless most answers are formulas.

        A number can be earned by restating the sum that the prompt asks for, unless its form
        counts; a formula has many forms, of which graders accept any.
        """
        formulas = [answer for answer in data.answers if not VALUE.fullmatch(answer)]
        return {"rules": "any_form" if 2 * len(formulas) > len(data.answers) else "strict"}

    def task_of(self, data: Columns) -> str:
        """`numbers` if all answers are numbers, `math` if some are formulas, else `words`.

        Raises UserError for answers that are JSON objects or lists, with the recipe for them.
        """
        if not data.names:
            raise UserError(
                f"{data.path}: no such file; of a dataset on the hub set the kind of its answers, "
                f"by --task math, numbers or words"
            )
        if data.answers and all(map(_is_json, data.answers)):
            raise UserError(
                f"{data.path}: the answers in its column {data.answer!r} are JSON, which no "
                f"built-in reward compares: docs/recipes/json.md has a reward of some twenty lines "
                f"to copy; --task words pays any element of a list, and compares a text as it is, "
                f"white space and the order of keys included"
            )
        if all(map(NUMBER.fullmatch, data.answers)):
            return "numbers"
        is_math = all(NUMBER.fullmatch(a) or FORMULA.search(a) for a in data.answers)
        return "math" if is_math else "words"


def _of_gguf(file: Path) -> Mapping[str, Any]:
    """The settings for a GGUF file, by its metadata, which are at its beginning."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = min(len(data), METADATA)
        chat = data.find(b"tokenizer.chat_template", 0, end) >= 0
        place = data.find(b".context_length", 0, end)
        positions = 2 * MAX_NEW_TOKENS
        if place >= 0:
            kind, value = struct.unpack_from("<II", data, place + len(b".context_length"))
            positions = value if kind == UINT32 else positions
    loading = f"  loading: {{gguf_file: {file.name}}}  # pip install gguf accelerate\n"
    return _settings(chat=chat, tokens=min(MAX_NEW_TOKENS, positions // 2), loading=loading)


def _settings(*, chat: bool, tokens: int, loading: str = "") -> Mapping[str, Any]:
    completions = "lists of messages, as `chat` is true: [-1]['content']" if chat else "texts"
    return {
        "chat": str(chat).lower(),
        "completions": completions,
        "tokens": tokens,
        "loading": loading,
    }


def _is_json(answer: str) -> bool:
    """Whether it is a JSON object or list."""
    try:
        return isinstance(foreign_json.read(answer), dict | list)
    except ValueError:
        return False
