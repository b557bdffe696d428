"""A reward model: a transformers model that gives a text one number."""

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.options import PathOrName
from groupwise.rewards import SampleErrors
from groupwise_verifiable.completion import content
from groupwise_verifiable.models import LazyModel, check_model_name, for_use, loading


class RewardModel(LazyModel[tuple[Any, Any]]):
    """What a sequence classification model with a single output gives prompt and completion.

    Messages become text by the chat template of the model's own tokenizer, as TRL does it, and get
    no further special tokens; plain prompts are followed by their completions and get those that
    the tokenizer adds. A completion that makes the text longer than the model takes is worth the
    lowest value of its batch; a prompt that does so by itself is a named failure.
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
            description="Tokens of prompt and completion; longer ones are not read. If unset, as "
            "many as the model has positions.",
        )
        precision: Literal["float32", "bf16"] = Field(
            default="float32", description="Of the weights and the computation."
        )
        device: str | None = Field(
            default=None, description="Where it runs; on a GPU where there is one by default."
        )

    def __init__(self, config: Config) -> None:
        """Loads nothing; ValueError where transformers is missing or a folder has no such model."""
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
        """Raise ValueError where what a folder says of its model is not a reward model's."""
        _check_configuration(folder)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns a value for each completion; logs the share of those that are too long.

        Raises SampleErrors for those whose prompt is, or for all of them where none can be read.
        """
        model, tokenizer = self.loaded()
        pairs = zip(prompts, completions, strict=True)
        tokens = [self._tokens(tokenizer, *pair) for pair in pairs]
        limit = self._limit(model, tokenizer)
        too_long = [row for row, ids in enumerate(tokens) if not _fits(ids, limit)]
        # The longest together, so that little is filled up.
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
            # A policy that could escape its judge, or stop the run, by length would learn to.
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
                f"{self.config.model!r} has no chat template; give text prompts or another model"
            )
        text = encodable(tokenizer.apply_chat_template(messages, tokenize=False))
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _limit(self, model: Any, tokenizer: Any) -> int | None:
        """The tokens that a text may have; None where nothing says."""
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        limits = (self.config.max_length, positions, tokenizer.model_max_length)
        # A tokenizer that knows no limit states an astronomic one.
        known = [limit for limit in limits if limit is not None and limit < 10**9]
        return min(known) if known else None

    def _load(self) -> tuple[Any, Any]:
        """Model and tokenizer."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        name = self.config.model
        dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
        with loading(f"`model`: {name!r}"):
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                name, dtype=dtype, output_loading_info=True, trust_remote_code=False
            )
        check_whole(name, report["missing_keys"])  # transformers draws them at random
        _check_outputs(name, model.config)
        return for_use(model, self.config.device), tokenizer


def outputs(model: Any, tokens: Sequence[list[int]]) -> Any:
    """[n] float32: the model's output for each text."""
    import torch

    config = model.config.get_text_config()
    own = config.pad_token_id
    # Models judge a text by its last token that is no padding. Where a model names none, that
    # must be the last one there is, so what fills up is a token that no text has.
    used = {token for ids in tokens for token in ids}
    pad = next(token for token in range(len(used) + 1) if token not in used)
    longest = max(map(len, tokens))
    filled = [ids + [pad if own is None else own] * (longest - len(ids)) for ids in tokens]
    mask = [[1] * len(ids) + [0] * (longest - len(ids)) for ids in tokens]
    try:
        config.pad_token_id = pad if own is None else own
        logits = model(
            input_ids=torch.tensor(filled, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
        ).logits
    finally:
        config.pad_token_id = own
    return logits[:, 0].float()


def _fits(ids: Sequence[int], limit: int | None) -> bool:
    return limit is None or len(ids) <= limit


def _check_configuration(folder: str) -> None:
    """Raise ValueError where what a folder says of its model is not a reward model's."""
    from transformers import AutoConfig

    with loading(f"`model`: {folder!r}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kinds = config.architectures or ()  # an older folder may not say
    if kinds and not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise ValueError(
            f"`model`: {folder!r} is no reward model: expected one for sequence classification, "
            f"found {', '.join(kinds)}"
        )
    _check_outputs(folder, config)


def check_whole(name: str, missing: Collection[str]) -> None:
    if missing:
        raise ValueError(
            f"`model`: {name!r} is no reward model: it lacks {len(missing)} weights, "
            f"{min(missing)!r} is one"
        )


def _check_outputs(name: str, config: Any) -> None:
    if config.num_labels != 1:
        raise ValueError(
            f"`model`: {name!r} has {config.num_labels} outputs, expected one; for a classifier "
            "write a reward of your own (docs/rewards.md#reward-models)"
        )


def encodable(text: str) -> str:
    """Returns the text with U+FFFD for every lone surrogate, which no tokenizer takes."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
