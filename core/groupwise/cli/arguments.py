"""Arguments: those of a command that may be texts or overrides of a configuration."""

from collections.abc import Sequence


def told_apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Texts, and overrides of the configuration: those that begin with one of its keys."""
    from groupwise.config.sections import RunConfig

    def is_override(text: str) -> bool:
        key, equals, _ = text.partition("=")
        return bool(equals) and key.partition(".")[0] in RunConfig.model_fields

    texts = [text for text in arguments if not is_override(text)]
    return texts, [text for text in arguments if is_override(text)]
