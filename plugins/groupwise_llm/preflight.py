"""Preflight: the checks of a run's start that need no weights."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from groupwise.kit.errors import UserError
from groupwise_llm.codec.codec import Codec
from groupwise_llm.files.folder import check_files, config_of, positions_of, tokenizer_of
from groupwise_llm.files.loading import end_tokens, outline, vocabulary_of
from groupwise_llm.model import rotary
from groupwise_llm.model.coverage import coverage, experts_without_adapters
from groupwise_llm.settings import Settings

CUTS = ("top_k", "top_p", "min_p", "repetition_penalty")
"""Settings that make the sampling distribution differ from the softmax of the log-probs."""


class MakeCodec(Protocol):
    """`LanguageModel.make_codec`."""

    def __call__(
        self, config: Settings, tokenizer: Any, ends: Collection[int], *, positions: int | None
    ) -> Codec: ...


def examine(
    settings: Settings, make_codec: MakeCodec, rows: Iterable[Mapping[str, Any]]
) -> Sequence[str]:
    """Notes on the model, its adapters and the prompts.

    Raises UserError for settings and prompts that a run would refuse.
    """
    model = config_of(settings)
    check_files(settings)
    whole = outline(settings, model)
    prompts = codec_of(settings, make_codec, whole).prompts
    notes = [*rotary.fix(whole, prompts.longest), *prompts.check(rows, vocabulary_of(whole))]
    if settings.lora is not None:
        notes += [coverage(whole), *experts_without_adapters(whole)]
    return notes


def examine_turns(settings: Settings, make_codec: MakeCodec) -> Sequence[str]:
    """Notes on what the chat template does with earlier turns."""
    return codec_of(settings, make_codec).suffixes.notes()


def examine_tools(settings: Settings, make_codec: MakeCodec) -> None:
    """Raise UserError unless the template shows tools, and it is known how the model calls them."""
    codec_of(settings, make_codec).calls.check()


def codec_of(settings: Settings, make_codec: MakeCodec, whole: Any = None) -> Codec:
    """The codec of a run, by its model's files alone. whole: the model's outline, if known."""
    model, tokenizer = config_of(settings), tokenizer_of(settings)
    ends = end_tokens(outline(settings, model) if whole is None else whole, tokenizer)
    return make_codec(settings, tokenizer, ends, positions=positions_of(model))


def check_uncut(settings: Settings, sampler: str) -> None:
    """Raise UserError for settings such as top_k, with which the log-probs of the sampler of this
    name would be those of a truncated distribution, not of the softmax that is trained."""
    usual = Settings.model_fields
    cuts = [name for name in CUTS if getattr(settings, name) != usual[name].default]
    if cuts:
        chosen = ", ".join(f"policy.{name} {getattr(settings, name)}" for name in cuts)
        raise UserError(
            f"{chosen}: {sampler} states log-probs of the truncated distribution, and training "
            f"needs those of the full softmax; leave {', '.join(cuts)} unset, or leave out the "
            f"section sampler"
        )


def check_teacher(settings: Settings, teacher: Settings) -> None:
    """Raise UserError unless the teacher's tokens are the policy's, by its tokenizer and its size,
    and both read pictures, or neither.

    Models of a family pad their vocabulary to different sizes: the teacher's may be larger.
    """
    if settings.auto != teacher.auto:
        raise UserError(
            f"one of policy and teacher reads pictures, and the other text alone: they load as "
            f"{settings.auto} and {teacher.auto}; expected the same name for both, "
            f"language_model or vision_language_model"
        )
    ours, theirs = (tokenizer_of(each).get_vocab() for each in (settings, teacher))
    if ours != theirs:
        others = len(ours.items() ^ theirs.items())
        raise UserError(
            f"the teacher reads the policy's tokens, and its vocabulary is another: the tokenizers "
            f"of {teacher.model!r} and {settings.model!r} differ in {others:,} entries; expected a "
            f"model with the same tokenizer"
        )
    own, least = (config_of(x).get_text_config().vocab_size for x in (teacher, settings))
    if own < least:
        raise UserError(
            f"{teacher.model!r} has logits for {own:,} tokens, expected at least {least:,}, those "
            f"that the policy can sample"
        )
