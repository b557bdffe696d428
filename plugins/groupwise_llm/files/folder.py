"""The model's folder, or its page on a hub: its configuration, its tokenizer, its files."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from groupwise.kit import trust
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.model_files import folder_problem
from groupwise_llm.settings import Settings

FILE_ARGUMENTS = frozenset(
    {
        "cache_dir",
        "code_revision",
        "force_download",
        "gguf_file",
        "local_files_only",
        "proxies",
        "revision",
        "subfolder",
        "token",
        trust.SETTING,
    }
)
"""Arguments of loading that say where files are; configuration and tokenizer take them, too."""


def check_files(settings: Settings) -> None:
    """Raise UserError for a local path that is not a model's folder, or lacks whole weights."""
    if settings.instance is not None:
        return
    _check_place(settings)
    if "gguf_file" not in settings.loading:
        trust.check_weights(settings.model, settings.loading, settings.loading.get("subfolder", ""))


def _check_place(settings: Settings) -> None:
    """Raise UserError for a local path that is not the folder of a model of transformers."""
    path = Path(settings.model, settings.loading.get("subfolder", ""))
    if "gguf_file" in settings.loading or not path.exists():
        return
    file = path.name if path.is_file() else next((f.name for f in path.glob("*.gguf")), "FILE")
    problem = folder_problem(
        path,
        "config.json",
        of_file="write one by `save_pretrained`, and name the folder",
        of_gguf=f"GGUF is read by the folder's name with policy.loading: {{gguf_file: {file}}}",
    )
    if problem is not None:
        raise UserError(f"policy.model: {settings.model!r}: {problem}")


def tokenizer_of(settings: Settings) -> Any:
    """The tokenizer of the settings, else the model's own."""
    own = settings.tokenizer
    if own is not None and not isinstance(own, str):
        return getattr(own, "tokenizer", own)  # of a processor
    if own is None and settings.instance is not None and not settings.instance.name_or_path:
        raise UserError(
            "policy.tokenizer: the model is an object that was not read from files, so its "
            "tokenizer is not known; pass it, too: tokenizer=..."
        )
    try:
        return AutoTokenizer.from_pretrained(own or settings.model, **file_arguments(settings))
    except Exception as error:  # transformers, tokenizers and the hub raise a dozen kinds
        raise UserError(
            f"policy.model: cannot load a causal language model from {settings.model!r}: no "
            f"tokenizer: {trust.reason_of_policy(error)}"
        ) from error


def file_arguments(settings: Settings) -> dict[str, Any]:
    own = {name: value for name, value in settings.loading.items() if name in FILE_ARGUMENTS}
    # If trust_remote_code is unset, transformers asks on the terminal and waits.
    return {trust.SETTING: False, **own}


def config_of(settings: Settings) -> Any:
    """The model's configuration alone, without its weights."""
    if settings.instance is not None:
        return settings.instance.config
    _check_place(settings)
    try:
        return AutoConfig.from_pretrained(settings.model, **file_arguments(settings))
    except Exception as error:  # as above
        reason = f"{trust.reason_of_policy(error)}{_misspelt(settings.model)}"
        raise UserError(f"policy.model: cannot read {settings.model!r}: {reason}") from error


def _misspelt(model: str) -> str:
    """What to add where a name that no hub has may be that of a folder."""
    path = Path(model)
    beside = path.parent.iterdir() if path.parent.is_dir() and not path.exists() else ()
    near = did_you_mean(path.name, [each.name for each in beside if each.is_dir()])
    return f"; no folder has this name{near}" if near else ""


def positions_of(config: Any) -> int | None:
    """The model's context length in tokens, or None where its configuration states none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def location(settings: Settings) -> str:
    """The model's absolute path, or its hub name; valid from any working directory."""
    path = Path(settings.model)
    return str(path.resolve()) if path.exists() else str(settings.model)
