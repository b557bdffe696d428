"""A reward for the text in a picture, read by OCR."""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from unicodedata import category, normalize

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.kit.errors import first_line
from groupwise_verifiable.columns import column, gold_texts
from groupwise_verifiable.images.pixels import Pixels, pixels
from groupwise_verifiable.models import LazyModel

_NAME = "image_text"
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4\u0060\u02bc", "'"),  # single quotes
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),  # double ones
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),  # hyphens and dashes
        **dict.fromkeys("\u2022\u2219\u22c5\u30fb", "\u00b7"),  # dots
        "\u2044": "/",
    }
)
"""Typographic marks by the plain ones that RapidOCR reads in their place."""


class ImageText(LazyModel[Any]):
    """How well the text in a picture matches the target: 0.0 to 1.0; None without a target.

    max(0, 1 - edits / length of the target), with the edit distance from the text that RapidOCR
    reads: Flow-GRPO, arXiv:2505.05470, section 4.1. With `inside`, text that contains the target
    gets 1.0, as in the authors' code (`ocr.py` in github.com/yifan123/flow_grpo); otherwise
    additional characters count as edits. Typographic marks count as plain ones.
    A target with characters that the recogniser does not know could not reach 1: None.
    """

    judges = True

    class Config(BaseModel):
        """Settings of the reward `image_text`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        target: str = Field(default="text", description="Column with the text to be written.")
        ignore_case: bool = Field(default=True, description="Whether A equals a.")
        ignore_accents: bool = Field(
            default=False, description="Whether é equals e; models confuse rare accents."
        )
        ignore_space: bool = Field(default=True, description="Whether white space is ignored.")
        inside: bool = Field(
            default=False,
            description="Whether a longer text that contains the target gets 1.0.",
        )
        detect: bool = Field(
            default=False,
            description="Whether lines are located first; otherwise the whole image is one line.",
        )
        width: int = Field(
            default=320,
            ge=48,
            description="Width in pixels that a line, 48 high, is padded to; smaller is faster, "
            "and less reliable for single letters.",
        )
        threads: int = Field(default=1, ge=1, description="CPU threads of the recognition.")
        model: str | None = Field(
            default=None,
            description="The recogniser: a language of RapidOCR's PP-OCRv5 models (cyrillic, "
            "korean, arabic, el, th and others), downloaded at the first use, or an .onnx file; "
            "unset, its own, for Chinese, Japanese and Latin letters.",
        )

        @model_validator(mode="after")
        def _has_the_file(self) -> Self:
            if self.is_file and not Path(str(self.model)).is_file():
                raise ValueError(f"`model`: the file {self.model!r} does not exist")
            return self

        @property
        def is_file(self) -> bool:
            """Whether `model` is a file, not a language."""
            return self.model is not None and self.model.endswith(".onnx")

    def __init__(self, config: Config | None = None) -> None:
        """Raises ValueError where RapidOCR or its runtime is missing."""
        for package in ("rapidocr", "onnxruntime"):
            if find_spec(package) is None:
                raise ValueError(f"reward {_NAME!r} needs {package}: pip install 'groupwise[flow]'")
        super().__init__()
        self.config = config or self.Config()

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {"target": self.config.target}

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a target with characters that the recogniser cannot read."""
        target = _text(row.get(self.config.target))
        if not target or not (self.config.is_file or self.config.model is None):
            return  # a language's model may not be here yet
        unknown = self._unknown(target, _readable(self.config))
        if unknown:
            raise ValueError(
                f"RapidOCR's model does not read {', '.join(map(repr, unknown))}, which are in "
                f"{target!r:.80}; leave such rows out, or set `model` to one for that script"
            )

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each image; logs the recognised text as `read`."""
        images = pixels(completions, reward=_NAME)
        targets = column(columns, self.config.target, reward=_NAME)
        texts = [self._read(image, index) for index, image in enumerate(images)]
        if "log_extra" in columns:
            columns["log_extra"]("read", texts)
        return [self._score(*pair) for pair in zip(texts, targets, strict=True)]

    def _read(self, image: Pixels, index: int) -> str:
        try:
            return self.read(image)
        except Exception as error:  # RapidOCR's, OpenCV's, or onnxruntime's
            height, width, _ = image.shape
            raise ValueError(
                f"reward {_NAME!r}, completion {index}: RapidOCR cannot read an image of {width} x "
                f"{height} pixels: {first_line(error)}"
            ) from error

    def read(self, image: Pixels) -> str:
        """Returns the text in an image [H, W, 3], lines joined by spaces."""
        reversed_channels = np.ascontiguousarray(np.round(image[..., ::-1] * 255), dtype=np.uint8)
        engine = self.loaded()
        # The engine keeps the flags of a call, so each call sets all of them.
        result = engine(reversed_channels, use_det=self.config.detect, use_cls=False, use_rec=True)
        if result.txts is None:
            return ""
        if not self.config.detect:
            return "".join(result.txts)
        return " ".join(_in_reading_order(result.txts, np.asarray(result.boxes)))

    def _load(self) -> Any:
        """RapidOCR with the models of its own package, without its log messages."""
        from rapidocr import ModelType, OCRVersion, RapidOCR  # an extra

        settings: dict[str, Any] = {
            "Global.log_level": "critical",
            "Rec.rec_img_shape": [3, 48, self.config.width],
            "EngineConfig.onnxruntime.intra_op_num_threads": self.config.threads,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
        if self.config.is_file:
            settings["Rec.model_path"] = self.config.model
        elif self.config.model is not None:
            settings |= {
                "Rec.lang_type": self.config.model,
                "Rec.ocr_version": OCRVersion.PPOCRV5,
                "Rec.model_type": ModelType.MOBILE,
            }
        blank = np.full((48, 48, 3), 255, dtype=np.uint8)
        try:
            engine = RapidOCR(params=settings)
            # It loads the recogniser, or fetches a missing one, when it first reads a line.
            engine(blank, use_det=False, use_cls=False, use_rec=True)
            return engine
        except Exception as error:  # RapidOCR's, onnxruntime's, or a failed download's
            raise ValueError(
                f"reward {_NAME!r}: RapidOCR does not start: {first_line(error)}"
            ) from error

    def _score(self, text: str, target: Any) -> float | None:
        target = _text(target)
        expected = self._normal(target)
        if not expected or self._unknown(target, self._known):
            return None
        read = self._normal(text)
        if self.config.inside and expected in read:
            return 1.0
        return max(0.0, 1 - edits(read, expected) / len(expected))

    @cached_property
    def _known(self) -> frozenset[str]:
        """The characters that the recogniser can read, as `_normal` writes them; none if it does
        not say."""
        decoder = getattr(getattr(self.loaded(), "text_rec", None), "postprocess_op", None)
        return frozenset(self._normal("".join(getattr(decoder, "character", ())[1:])))

    def _unknown(self, target: str, known: frozenset[str]) -> list[str]:
        """Returns the characters of a target that are not among these; [] if these are none."""
        letters = dict.fromkeys(self._normal(target).replace(" ", ""))
        return [letter for letter in letters if known and letter not in known]

    def _normal(self, text: str) -> str:
        # Full-width letters become plain ones; joiners and soft hyphens are not seen.
        text = normalize("NFKC", text.translate(_PLAIN)).translate(_PLAIN)
        text = "".join(letter for letter in text if category(letter) != "Cf")
        if self.config.ignore_accents:
            text = "".join(each for each in normalize("NFD", text) if category(each) != "Mn")
        plain = "".join(text.split()) if self.config.ignore_space else " ".join(text.split())
        return plain.casefold() if self.config.ignore_case else plain


def _text(target: Any) -> str:
    """The text of a target; "" if the row has none that can be used."""
    return "".join(gold_texts(target)[:1])


@cache
def _readable(config: ImageText.Config) -> frozenset[str]:
    """Returns the characters that the reward's recogniser can read, by an engine of its own: that
    of an isolated reward is in another process."""
    return ImageText(config)._known


def edits(first: str, second: str) -> int:
    """Returns the Levenshtein distance: characters to insert, delete or replace."""
    row = list(range(len(second) + 1))
    for done, character in enumerate(first, start=1):
        diagonal, row[0] = row[0], done
        for place, other in enumerate(second, start=1):
            replaced = diagonal + (character != other)
            diagonal = row[place]
            row[place] = min(replaced, diagonal + 1, row[place - 1] + 1)
    return row[-1]


def _in_reading_order(texts: Sequence[str], boxes: Any) -> list[str]:
    """Texts in reading order: lines from top to bottom, each from left to right.

    boxes: [n, 4, 2], corners. A text belongs to the previous line if its centre is above the lower
    edge of that line's first text.
    """
    tops, bottoms = boxes[:, :, 1].min(axis=1), boxes[:, :, 1].max(axis=1)
    middles, lefts = (tops + bottoms) / 2, boxes[:, :, 0].min(axis=1)
    ordered: list[str] = []
    line: list[int] = []
    for index in [*np.argsort(middles, kind="stable"), None]:
        if line and (index is None or middles[index] > bottoms[line[0]]):
            ordered += [texts[each] for each in sorted(line, key=lambda each: lefts[each])]
            line = []
        if index is not None:
            line.append(int(index))
    return ordered
