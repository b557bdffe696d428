"""Examining: what can be said of a run from a pipeline's folder without its weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import diffusers
import transformers

from groupwise_flow import lengths
from groupwise_flow.guided import check_guidance
from groupwise_flow.loading import adapter_class, explained, places, read_index
from groupwise_flow.settings import Settings


def examine(settings: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Notes on the prompts; UserError for prompts and guidance that a run would refuse."""
    index = read_index(settings)
    adapter = adapter_class(settings, index)
    with explained(settings, "cannot read a diffusers pipeline from"):
        config = _configuration(settings, index.get("transformer"))
        parts = {name: _part(settings, name, part) for name, part in index.items()}
    check_guidance(adapter, config, settings)
    limit = adapter.limit(parts, settings.prompt_tokens)
    if limit is not None and settings.long_prompts != "cut":
        limit.check([settings.negative_prompt])
    return lengths.check(rows, limit, settings.long_prompts)


def _configuration(settings: Settings, transformer: Any) -> Mapping[str, Any]:
    """The transformer's, empty where diffusers has no such class."""
    kind: Any = getattr(diffusers, transformer[1], None) if transformer else None
    if kind is None:
        return {}
    read: Mapping[str, Any] = kind.load_config(
        settings.model, subfolder="transformer", **places(settings)
    )
    return read


def _part(settings: Settings, name: str, part: Any) -> Any:
    """A tokenizer, loaded; of others whether they are there, True or None."""
    library, kind = part if isinstance(part, list) else (None, None)
    if kind is None:
        return None
    if library != "transformers" or "Tokenizer" not in kind:
        return True
    tokenizer: Any = getattr(transformers, kind)
    return tokenizer.from_pretrained(settings.model, subfolder=name, **places(settings))
