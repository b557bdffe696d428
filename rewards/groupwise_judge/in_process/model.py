"""JudgeModel: chats to the probabilities of what the model says next, or to its replies."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from groupwise.kit.attention import without_cudnn
from groupwise_judge.in_process.chat import ChatFormat, Message, pictures
from groupwise_judge.in_process.loading import Weights, check_model, device_of, errors_of, weights
from groupwise_judge.in_process.settings import ModelSettings

NOT_FINITE = "its judge's logits are not finite"
"""Why there is no answer: of broken weights, or of a precision in which the model overflows."""


class JudgeModel:
    """A frozen causal or vision-language model, which is loaded at its first use."""

    def __init__(self, settings: ModelSettings) -> None:
        """Loads nothing. Raises ValueError for wrong settings."""
        check_model(settings.model)
        self._settings, self._device = settings, device_of(settings)
        self._weights: Weights | None = None
        self._chat_format: ChatFormat | None = None

    def load(self) -> None:
        """Loads the model, if needed, and puts it in its place. Raises ValueError on failure."""
        loaded, _ = self._loaded(), self._form()
        if not self._settings.offload:
            loaded.move_to(self._device)

    @property
    def tokenizer(self) -> Any:
        return self._loaded().tokenizer

    def log_probs(
        self, chats: Sequence[Sequence[Message]], tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[c, n] float32: log-probs of `tokens` [n] as the first of the reply to each chat.

        They are normalised over all tokens. Also [c] bool: which chats are too long; their rows
        mean nothing. Any other row with NaN is that of a model whose logits are not finite.
        """
        values = torch.full((len(chats), len(tokens)), torch.nan)
        too_long = torch.ones(len(chats), dtype=torch.bool)
        for rows, inputs in self._batches(chats, padding_side="right"):
            values[rows] = self._next(inputs, tokens)
            too_long[rows] = False
        return values, too_long

    def replies(self, chats: Sequence[Sequence[Message]], *, max_tokens: int) -> list[str | None]:
        """The greedy reply to each chat, of at most so many tokens; None where it is too long."""
        texts: list[str | None] = [None] * len(chats)
        for rows, inputs in self._batches(chats, padding_side="left"):
            for row, text in zip(rows, self._generated(inputs, max_tokens), strict=True):
                texts[row] = text
        return texts

    def fits(self, chat: Sequence[Message]) -> bool:
        """Whether a chat is short enough for the model."""
        return any(True for _ in self._batches([chat], padding_side="right"))

    @torch.no_grad()
    def _next(self, inputs: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """[b, n] float32 on the CPU: log-probs of `tokens` [n] after the last token of each row.

        Padding is on the right, where no token of a causal model sees it.
        """
        model = self._loaded().model
        last = inputs["attention_mask"].sum(dim=1) - 1
        ends, column = last.unique(return_inverse=True)
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        options = {"logits_to_keep": ends} if keeps else {}
        with without_cudnn():
            logits = model(**inputs, **options, use_cache=False).logits
        rows = logits[torch.arange(len(last), device=last.device), column if keeps else last]
        log_probs: Tensor = rows.float().log_softmax(dim=-1)[:, tokens.to(rows.device)].cpu()
        return log_probs

    @torch.no_grad()
    def _generated(self, inputs: Mapping[str, Tensor], max_tokens: int) -> list[str]:
        from transformers import GenerationConfig

        loaded = self._loaded()
        greedy = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=loaded.model.generation_config.eos_token_id,
            pad_token_id=loaded.tokenizer.pad_token_id,
        )
        with without_cudnn():
            ids = loaded.model.generate(**inputs, generation_config=greedy)
        start = inputs["input_ids"].shape[1]
        texts: list[str] = loaded.tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
        return texts

    def _batches(
        self, chats: Sequence[Sequence[Message]], *, padding_side: str
    ) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Rows, and the model's inputs for them, without chats that are too long.

        The rows of a batch have equally many pictures and texts of similar lengths. Meanwhile the
        model is on its device.
        """
        loaded, form, size = self._loaded(), self._form(), self._settings.batch
        texts = [form.text(chat) for chat in chats]
        shown = [pictures(chat) for chat in chats]
        alike: dict[int, list[int]] = {}
        for row in sorted(range(len(chats)), key=lambda row: -len(texts[row])):
            alike.setdefault(len(shown[row]), []).append(row)
        batches = [
            rows[start : start + size]
            for rows in alike.values()
            for start in range(0, len(rows), size)
        ]
        with loaded.on(self._device, offload=self._settings.offload):
            for batch in batches:
                rows, inputs = batch, self._inputs(batch, texts, shown, padding_side)
                if too_long := self._too_long(rows, inputs):
                    rows = [row for row in rows if row not in too_long]
                    inputs = self._inputs(rows, texts, shown, padding_side) if rows else {}
                if rows:
                    yield rows, self._placed(inputs)

    def _inputs(
        self,
        rows: Sequence[int],
        texts: Sequence[str],
        shown: Sequence[Sequence[Image]],
        padding_side: str,
    ) -> Mapping[str, Tensor]:
        """The model's inputs for these rows, padded to the longest, on the CPU."""
        most = self._settings.max_pixels
        images = [[_scaled(picture, most) for picture in shown[row]] for row in rows]
        inputs: Mapping[str, Tensor] = self._loaded().processor(
            text=[texts[row] for row in rows],
            padding=True,
            padding_side=padding_side,  # some processors have a side of their own
            return_tensors="pt",
            add_special_tokens=self._form().adds_tokens(texts[rows[0]]),
            **({"images": images} if images[0] else {}),
        )
        return inputs

    def _too_long(self, rows: Sequence[int], inputs: Mapping[str, Tensor]) -> set[int]:
        """Which of the rows have more tokens than the model takes."""
        loaded = self._loaded()
        positions = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
        limits = (self._settings.max_length, positions, loaded.tokenizer.model_max_length)
        # A tokenizer without a limit states a huge number.
        limit = min(limit for limit in (*limits, 10**9) if limit is not None)
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        return {row for row, length in zip(rows, lengths, strict=True) if length > limit}

    def _placed(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        dtype = self._loaded().model.dtype
        return {
            name: value.to(self._device, dtype if value.is_floating_point() else None)
            for name, value in inputs.items()
        }

    def _loaded(self) -> Weights:
        if self._weights is None:
            self._weights = weights(self._settings)
        return self._weights

    def _form(self) -> ChatFormat:
        if self._chat_format is None:
            loaded, name = self._loaded(), self._settings.model
            with errors_of(name):
                self._chat_format = ChatFormat(
                    loaded.processor, sees=loaded.sees, arguments=self._settings.chat_template
                )
        return self._chat_format


def _scaled(picture: Image, most: int | None) -> Image:
    """The picture in RGB, with at most so many pixels and its own shape; itself if it is such."""
    picture = picture if picture.mode == "RGB" else picture.convert("RGB")
    pixels = picture.width * picture.height
    if most is None or pixels <= most:
        return picture
    factor = sqrt(most / pixels)
    return picture.resize(
        (max(1, int(picture.width * factor)), max(1, int(picture.height * factor)))
    )
