"""LanguageDraft: first configurations for language models."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.draft import Columns, Draft, read_json
from groupwise.errors import UserError

NUMBER = re.compile(r"(?:.*####)?\s*[-+]?\$?[\d,]*\.?\d+\s*", re.DOTALL)
FORMULA = re.compile(r"[\\^$=]|\d\s*/\s*\d")
MAX_NEW_TOKENS = 1024
"""The longest completion, unless the model has fewer than twice as many positions."""


class LanguageDraft(Draft):
    """A language model that is rewarded for right answers."""

    model = "a language model"
    templates = files("groupwise_llm") / "drafts"

    def settings(self, model: str) -> Mapping[str, Any]:
        """Whether it has a chat template, and how long its completions may be."""
        folder = Path(model)
        if not folder.is_dir():
            return {"chat": "true", "tokens": MAX_NEW_TOKENS}
        templates = ("chat_template.jinja", "chat_template.json")
        chat = "chat_template" in read_json(folder / "tokenizer_config.json") or any(
            (folder / name).exists() for name in templates
        )
        default = 2 * MAX_NEW_TOKENS
        positions = read_json(folder / "config.json").get("max_position_embeddings", default)
        return {"chat": str(chat).lower(), "tokens": min(MAX_NEW_TOKENS, positions // 2)}

    def task_of(self, data: Columns) -> str:
        """`numbers` if all answers are numbers, `math` if some are formulas, else `words`."""
        if not data.names:
            raise UserError(
                f"{data.path}: no such file; of a dataset on the hub set the kind of its answers, "
                f"by --task math, numbers or words"
            )
        if all(map(NUMBER.fullmatch, data.answers)):
            return "numbers"
        is_math = all(NUMBER.fullmatch(a) or FORMULA.search(a) for a in data.answers)
        return "math" if is_math else "words"
