"""A reward for videos that people prefer: VideoReward of VideoAlign, a Qwen2-VL with three tokens.

The authors' file is a state of PEFT: their LoRA beside the weights that it changes, and a linear
head of three numbers. Here both are added up, into transformers' own Qwen2-VL.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args
from weakref import WeakValueDictionary

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from groupwise.kit.options import PathOrName
from groupwise_clip import qwen2_vl
from groupwise_clip.files import check_file, fetched, quiet, read_tensors
from groupwise_clip.texts import texts
from groupwise_messages.frames import evenly
from groupwise_messages.video import Video

Aspect = Literal["VQ", "MQ", "TA"]
ASPECTS = get_args(Aspect)
"""Visual quality, motion quality and text alignment, in the order of the head's numbers."""
TOKENS = tuple(f"<|{aspect}_reward|>" for aspect in ASPECTS)
"""What the head reads, of the last layer: number k at token k."""
NORMS = {"VQ": (3.6757, 2.2476), "MQ": (1.1646, 1.3811), "TA": (2.8105, 2.5121)}
"""Mean and standard deviation of each score, of the authors' model_config.json."""
PREFIX, HEAD = "base_model.model.", "rm_head.weight"
"""PEFT's, of every name; and the head's name after it."""
LEAST_FRAMES = 4
FEWEST_PIXELS, GRID = 128 * 28 * 28, 28
"""Of a frame: it is enlarged to so many pixels; and of what its edges are multiples in Qwen2-VL."""
REMEMBERED = 4096
"""Videos whose scores are kept, so that rewards that share the model compute them once."""


class VideoReward:
    """How much people would like a video for its prompt, by VideoReward (arXiv:2501.13918).

    VideoAlign's model. A weighted sum of three scores, each normalised by the authors' mean and
    standard deviation: visual quality, motion quality and text alignment. Rewards with the same
    model share it, and what it has computed; so list one for each aspect where advantages are
    normalised apart.
    """

    judges = False

    class Config(qwen2_vl.Settings):
        """Settings of the reward `video_reward`."""

        instruction: str = Field(
            min_length=1,
            description="The text that the model was trained to read, with {text_prompt} and the "
            f"tokens {', '.join(TOKENS)} in it: DETAILED_PROMPT_WITH_SPECIAL_TOKEN in "
            "prompt_template.py of the authors' repository KwaiVGI/VideoAlign. With another text "
            "values mean nothing.",
        )
        aspects: dict[Aspect, float] = Field(
            default={"VQ": 1.0, "MQ": 1.0, "TA": 1.0},
            min_length=1,
            description="Weight of each score in the sum: visual quality, motion quality, text "
            "alignment; 0 if not named.",
        )
        weights: PathOrName = Field(
            default="hf-hub:KlingTeam/VideoReward/checkpoint-11352/model.pth",
            min_length=1,
            description="The authors' file, or `hf-hub:OWNER/NAME/FILE`.",
        )
        model: PathOrName = Field(
            default="Qwen/Qwen2-VL-2B-Instruct",
            min_length=1,
            description="Folder or hub name of the configuration and the processor.",
        )
        lora_scale: float = Field(
            default=2.0,
            allow_inf_nan=False,
            description="Factor of the LoRA in the file: lora_alpha / lora_r of the authors' "
            "model_config.json, 128 / 64.",
        )
        rate: float = Field(
            default=2.0, gt=0, description="Frames a second that the model sees, evenly spaced."
        )
        pixels: int = Field(
            default=200_704, ge=GRID**2, description="Most pixels of a frame, as in training."
        )
        batch: int = Field(default=4, ge=1, description="Videos in one forward pass.")

        @field_validator("instruction")
        @classmethod
        def _has_tokens(cls, value: str) -> str:
            counts = [value.count(token) for token in TOKENS]
            ends = [value.find(token) for token in TOKENS]
            if counts != [1] * len(TOKENS) or ends != sorted(ends):
                raise ValueError(f"expected {', '.join(TOKENS)} once each, in this order")
            return value

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError for a file that does not exist."""
        self.config = config
        check_file(config.weights, setting="weights")
        self._scorer: Scorer | None = None

    def load(self) -> None:
        """Loads the model, if needed. Raises ValueError where that fails."""
        if self._scorer is None:
            key = self.config.model_dump_json(exclude={"aspects", "text", "batch"})
            self._scorer = _SHARED.get(key) or Scorer(self.config)
            _SHARED[key] = self._scorer

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_extra: Any = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each video, None without a text. Logs the scores as `VQ`, `MQ`, `TA`.

        Raises ValueError for a completion that is no video.
        """
        self.load()
        assert self._scorer is not None
        captions = texts(prompts, columns, self.config.text, reward="video_reward")
        for row, video in enumerate(completions):
            if not isinstance(video, Video):
                raise ValueError(
                    f"reward 'video_reward', completion {row}: expected a video, found "
                    f"{type(video).__name__}"
                )
        rows = [row for row, caption in enumerate(captions) if caption is not None]
        pairs = [(completions[row], str(captions[row])) for row in rows]
        scores = dict(zip(rows, self._scorer(pairs, self.config.batch), strict=True))
        if log_extra is not None:
            for number, aspect in enumerate(ASPECTS):
                own = [scores[r][number] if r in scores else None for r in range(len(captions))]
                log_extra(aspect, own)
        factors = [self.config.aspects.get(aspect, 0.0) for aspect in ("VQ", "MQ", "TA")]
        return [
            sum(f * s for f, s in zip(factors, scores[row], strict=True)) if row in scores else None
            for row in range(len(captions))
        ]


class Scorer:
    """The model with its head. Scores depend on the video and its caption alone."""

    def __init__(self, config: VideoReward.Config) -> None:
        """Loads the model. Raises ValueError where that fails."""
        self._config = config
        self._device = torch.device(
            config.device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        tensors = merged(
            read_tensors(fetched(config.weights, setting="weights")), config.lora_scale
        )
        head = tensors.pop(HEAD, None)
        if head is None or len(head) != len(ASPECTS) or not qwen2_vl.has_embeddings(tensors):
            raise ValueError(
                f"{config.weights!r} does not hold VideoReward: no {HEAD} with "
                f"{len(ASPECTS)} rows, or no *{qwen2_vl.EMBEDDINGS}"
            )
        self._model, self._processor, self._ids = qwen2_vl.load(
            config.model,
            tensors,
            TOKENS,
            precision=config.precision,
            device=self._device,
            source=config.weights,
        )
        self._head = head.float().to(self._device)
        self._known: OrderedDict[bytes, list[float]] = OrderedDict()

    @torch.no_grad()
    def __call__(self, pairs: Sequence[tuple[Video, str]], batch: int) -> list[list[float]]:
        """The three normalised scores of each video and caption."""
        keys = [_digest(*pair) for pair in pairs]
        scores_by_key = {key: self._known[key] for key in keys if key in self._known}
        own = dict(zip(keys, pairs, strict=True))
        new = [(key, pair) for key, pair in own.items() if key not in scores_by_key]
        for start in range(0, len(new), batch):
            part = new[start : start + batch]
            scores = self._scores([pair for _, pair in part])
            scores_by_key |= {key: each for (key, _), each in zip(part, scores, strict=True)}
        for key, scores_of_one in scores_by_key.items():
            self._known[key] = scores_of_one
            self._known.move_to_end(key)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return [scores_by_key[key] for key in keys]

    def _scores(self, pairs: Sequence[tuple[Video, str]]) -> list[list[float]]:
        with quiet():  # the processor logs what it would do if it resized
            inputs = self._processor(
                text=[self._chat(caption) for _, caption in pairs],
                videos=[self._frames(video) for video, _ in pairs],
                padding=True,
                padding_side="right",
                return_tensors="pt",
                do_resize=False,
                do_sample_frames=False,
            ).to(self._device)
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].to(self._model.dtype)
        states = self._model.model(**inputs, use_cache=False).last_hidden_state
        raw = [
            (states[inputs["input_ids"] == token].float() @ weight).tolist()
            for token, weight in zip(self._ids, self._head, strict=True)
        ]
        return [
            [(v - m) / s for v, (m, s) in zip(own, NORMS.values(), strict=True)]
            for own in zip(*raw, strict=True)
        ]

    def _chat(self, caption: str) -> str:
        text = qwen2_vl.caption_in(self._config.instruction, caption)
        content = [{"type": "video"}, {"type": "text", "text": text}]
        rendered: str = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return rendered

    def _frames(self, video: Video) -> Tensor:
        """[n, 3, h, w] float32, 0 to 255: an even number of frames, at least four if the video has
        them; resized by both edges."""
        wanted = max(LEAST_FRAMES, len(video) / video.rate * self._config.rate)
        count = 2 * round(min(wanted, len(video) // 2 * 2) / 2)
        chosen = evenly(len(video), max(1, count))
        frames = torch.from_numpy(np.ascontiguousarray(video.pixels[chosen])).movedim(-1, 1)
        own = self._processor.video_processor
        grid = own.patch_size * own.merge_size
        size = resized(frames.shape[-2], frames.shape[-1], self._config.pixels, grid)
        return functional.resize(
            frames, list(size), InterpolationMode.BICUBIC, antialias=True
        ).float()


_SHARED: WeakValueDictionary[str, Scorer] = WeakValueDictionary()


def merged(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of a state of PEFT, without its prefix: W + scale x B A where there is a LoRA."""
    plain: dict[str, Tensor] = {}
    for name, weight in tensors.items():
        if ".lora_" in name:
            continue
        whole, _, kind = name.rpartition(".base_layer.")
        down = tensors.get(f"{whole}.lora_A.default.weight")
        up = tensors.get(f"{whole}.lora_B.default.weight")
        changed = weight
        if kind == "weight" and down is not None and up is not None:
            changed = (weight.float() + scale * (up.float() @ down.float())).to(weight.dtype)
        plain[name.removeprefix(PREFIX).replace(".base_layer.", ".")] = changed
    return plain


def resized(height: int, width: int, most: int, grid: int = GRID) -> tuple[int, int]:
    """Height and width near these, multiples of `grid`, of `FEWEST_PIXELS` to `most` pixels.

    By Qwen2-VL's rule: a side is rounded; of too large frames it is scaled and rounded down, of too
    small ones up.
    """
    fewest = min(FEWEST_PIXELS, most)
    rounded = [max(grid, round(edge / grid) * grid) for edge in (height, width)]
    area = rounded[0] * rounded[1]
    if area > most:
        shrink = math.sqrt(height * width / most)
        rounded = [max(grid, math.floor(edge / shrink / grid) * grid) for edge in (height, width)]
    elif area < fewest:
        grow = math.sqrt(fewest / (height * width))
        rounded = [math.ceil(edge * grow / grid) * grid for edge in (height, width)]
    return rounded[0], rounded[1]


def _digest(video: Video, caption: str) -> bytes:
    content = hashlib.sha256(repr((video.pixels.shape, video.rate, caption)).encode())
    content.update(video.pixels.tobytes())
    return content.digest()
