"""A reward model: a transformers model that scores prompt and completion."""

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.options import PathOrName
from groupwise.rewards import SampleErrors
from groupwise_messages.completion import content
from groupwise_messages.texts import encodable
from groupwise_verifiable.models import LazyModel, check_model_name, for_use, loading


class RewardModel(LazyModel[tuple[Any, Any]]):
    """The score of a reward model: a sequence classifier of transformers with one output.

    Messages are rendered by the chat template of the model's own tokenizer, without further special
    tokens (as in TRL); plain prompts and completions are concatenated, with the special tokens that
    the tokenizer adds. If the completion makes the text too long for the model, its value is the
    lowest of the batch; if the prompt alone is too long, that is an error of the sample.
    """

    judges = False
    name: ClassVar[str] = "reward_model"

    class Config(BaseModel):
        """Settings of the reward `reward_model`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        model: PathOrName = Field(
            min_length=1,
            description="Folder or hub name of a model that AutoModelForSequenceClassification "
            "reads, with one output.",
        )
        batch: int = Field(default=16, ge=1, description="Texts in one forward pass.")
        max_length: int | None = Field(
            default=None,
            ge=1,
            description="Longest prompt + completion, in tokens; longer texts are not scored. The "
            "model's context length if unset.",
        )
        precision: Literal["float32", "bf16"] = Field(
            default="float32", description="Precision of weights and computation."
        )
        device: str | None = Field(
            default=None, description="Device of the model; if unset a GPU if there is one."
        )

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError where transformers is missing, or a folder holds no
        reward model."""
        if find_spec("transformers") is None:
            raise ValueError(
                f"reward {self.name!r} needs transformers: pip install 'groupwise[llm]'"
            )
        check_model_name(config.model, setting="model")
        if Path(config.model).is_dir():
            self._check_folder(config.model)
        super().__init__()
        self.config = config

    def _check_folder(self, folder: str) -> None:
        """Raise ValueError where a folder's configuration is not that of a reward model."""
        _check_configuration(folder)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns a value for each completion; logs the share of too long texts as `too_long`.

        Raises SampleErrors for too long prompts, and for all samples if every text is too long.
        """
        model, tokenizer = self.loaded()
        pairs = zip(prompts, completions, strict=True)
        tokens = [self._tokens(tokenizer, *pair) for pair in pairs]
        limit = self._limit(model, tokenizer)
        too_long = [row for row, ids in enumerate(tokens) if not _fits(ids, limit)]
        # Similar lengths together, for little padding.
        order = sorted(set(range(len(tokens))) - set(too_long), key=lambda i: -len(tokens[i]))
        values: list[float | None] = [None] * len(tokens)
        read: list[float] = []
        for start in range(0, len(order), self.config.batch):
            rows = order[start : start + self.config.batch]
            scores = self._values(model, [tokens[row] for row in rows])
            read += scores
            for row, score in zip(rows, scores, strict=True):
                values[row] = score
        errors: dict[int, str] = {}
        for row in too_long:
            # The lowest value, not None or an error: else a policy would learn to write long texts.
            if read and _fits(self._tokens(tokenizer, prompts[row], ""), limit):
                values[row] = min(read)
            else:
                count = len(tokens[row])
                errors[row] = f"{count} tokens, but the model takes {limit}: see `max_length`"
        if log_metric is not None and tokens:
            log_metric("too_long", len(too_long) / len(tokens))
        if errors:
            raise SampleErrors(values, errors)
        return values

    def _values(self, model: Any, tokens: Sequence[list[int]]) -> list[float]:
        """The model's output for each text."""
        import torch

        with torch.inference_mode():
            values: list[float] = outputs(model, tokens).tolist()
        return values

    def _tokens(self, tokenizer: Any, prompt: Any, completion: Any) -> list[int]:
        ids: list[int]
        if isinstance(prompt, str):
            text = encodable(prompt + content(completion))
            ids = tokenizer(text, verbose=False)["input_ids"]
            return ids
        if isinstance(completion, str):
            completion = [{"role": "assistant", "content": completion}]
        messages: list[Mapping[str, Any]] = [*prompt, *completion]
        if tokenizer.chat_template is None:
            raise ValueError(
                f"reward {self.name!r}: the prompts are messages, but the tokenizer of "
                f"{self.config.model!r} has no chat template; use text prompts or another model"
            )
        text = encodable(tokenizer.apply_chat_template(messages, tokenize=False))
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _limit(self, model: Any, tokenizer: Any) -> int | None:
        """The longest text in tokens; None if unlimited."""
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        limits = (self.config.max_length, positions, tokenizer.model_max_length)
        # A tokenizer without a limit states a huge number.
        known = [limit for limit in limits if limit is not None and limit < 10**9]
        return min(known) if known else None

    def _load(self) -> tuple[Any, Any]:
        """Model and tokenizer."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        name = self.config.model
        dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        with loading(f"`model`: {name!r}", name):
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                name,
                dtype=dtype,
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        check_whole(name, report["missing_keys"])  # transformers draws them at random
        _check_outputs(name, model.config)
        return for_use(model, self.config.device), tokenizer


def outputs(model: Any, tokens: Sequence[list[int]]) -> Any:
    """[n] float32: the model's output for each text."""
    import torch

    config = model.config.get_text_config()
    own = config.pad_token_id
    # The model's output is that of the last token before padding, found by the padding token's id.
    # Where the model names none, we pad with a token that no text contains.
    used = {token for ids in tokens for token in ids}
    pad = next(token for token in range(len(used) + 1) if token not in used)
    longest = max(map(len, tokens))
    padded = [ids + [pad if own is None else own] * (longest - len(ids)) for ids in tokens]
    mask = [[1] * len(ids) + [0] * (longest - len(ids)) for ids in tokens]
    try:
        config.pad_token_id = pad if own is None else own
        logits = model(
            input_ids=torch.tensor(padded, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
        ).logits
    finally:
        config.pad_token_id = own
    return logits[:, 0].float()


def _fits(ids: Sequence[int], limit: int | None) -> bool:
    return limit is None or len(ids) <= limit


def _check_configuration(folder: str) -> None:
    """Raise ValueError where a folder's configuration is not that of a reward model."""
    from transformers import AutoConfig

    with loading(f"`model`: {folder!r}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kinds = config.architectures or ()  # older folders may lack this
    if kinds and not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise ValueError(
            f"`model`: {folder!r} is no reward model: expected a model for sequence "
            f"classification, found {', '.join(kinds)}"
        )
    _check_outputs(folder, config)


def check_whole(name: str, missing: Collection[str]) -> None:
    if missing:
        raise ValueError(
            f"`model`: {name!r} is no reward model: it lacks {len(missing)} weights, "
            f"{min(missing)!r} for example"
        )


def _check_outputs(name: str, config: Any) -> None:
    if config.num_labels != 1:
        raise ValueError(
            f"`model`: {name!r} has {config.num_labels} outputs, expected one; for a classifier "
            "write a reward of your own (docs/rewards.md#reward-models)"
        )
