"""A reward for pictures that contain what was asked for."""

import warnings
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.clauses import Excluded, Included, excluded, fulfilment, included
from groupwise_verifiable.colors import PALETTE
from groupwise_verifiable.columns import column
from groupwise_verifiable.detection import Detection
from groupwise_verifiable.pixels import Pixels, pixels
from groupwise_verifiable.shapes import ALIASES, SHAPES, find_shapes
from groupwise_verifiable.zero_shot import ZeroShotDetector

_NAME = "image_contents"
_Clause = TypeVar("_Clause", Included, Excluded)


class ImageContents:
    """Whether a picture contains what its row says: objects, how many, of which colour, where.

    Rows carry GenEval's metadata (arXiv:2310.11513): `include`, a list of {class, count, color,
    position}, and `exclude`, a list of {class, count}, as lists or as their JSON. 1.0 where all of
    it holds, else 0.0 or, in part, how much of it: see `clauses.fulfilment`. None where a row has
    neither.

    GenEval counts an image right with more objects than asked for, unless `exclude` forbids them,
    and looks for no others; `counts: at_least` with `unexpected: false` is that rule. Colours are
    named by the nearest of a palette here, there by CLIP.
    """

    class Config(BaseModel):
        """Settings of the reward `image_contents`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        detector: str = Field(
            default="shapes",
            min_length=1,
            description="`shapes`, built in: coloured disks, squares, triangles and crosses before "
            "a plain background; or the name or folder of a zero-shot object detection model of "
            "transformers.",
        )
        mode: Literal["strict", "partial"] = Field(
            default="strict", description="All or nothing, or the share of the checks that hold."
        )
        counts: Literal["exact", "at_least"] = Field(
            default="exact", description="Whether more objects than asked for are wrong."
        )
        unexpected: bool | None = Field(
            default=None,
            description="Whether objects of other classes are wrong, and what is no clear shape; "
            "by default they are for `shapes`. Other detectors see only what is asked for.",
        )
        include: str = Field(default="include", description="Column with what must be there.")
        exclude: str = Field(
            default="exclude", description="Column with what must not; it may be missing."
        )
        margin: float = Field(
            default=0.1,
            ge=0,
            allow_inf_nan=False,
            description="For positions: this share of both sizes is taken off a distance.",
        )
        threshold: float = Field(
            default=0.3,
            ge=0,
            lt=1,
            description="Detections of a model that are less sure are none.",
        )
        overlap: float = Field(
            default=0.5,
            ge=0,
            le=1,
            description="Two detections of a model, of one class, that share more are one object.",
        )
        device: str | None = Field(
            default=None, description="Where a model runs; on a GPU where there is one by default."
        )

    def __init__(self, config: Config | None = None) -> None:
        """Refuses to start where a package is missing or settings contradict each other."""
        self.config = config or self.Config()
        self._shapes = self.config.detector == "shapes"
        package = "scipy" if self._shapes else "transformers"
        if find_spec(package) is None:
            raise ValueError(f"reward {_NAME!r} needs {package}: pip install 'groupwise[flow]'")
        if self.config.unexpected and not self._shapes:
            raise ValueError(
                f"reward {_NAME!r}: unexpected objects are seen by the detector 'shapes' alone, "
                f"found {self.config.detector!r}"
            )
        self._model = None
        self._warned = False
        if not self._shapes:
            self._model = ZeroShotDetector(
                self.config.detector,
                threshold=self.config.threshold,
                overlap=self.config.overlap,
                device=self.config.device,
            )

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each completion; logs what was found in it as `found`."""
        images = pixels(completions, reward=_NAME)
        include = column(columns, self.config.include, reward=_NAME)
        exclude = columns.get(self.config.exclude) or [None] * len(images)
        values: list[float | None] = []
        seen: list[str] = []
        rows = zip(images, include, exclude, strict=True)
        for index, (image, must, must_not) in enumerate(rows):
            clauses = self._clauses(index, must, must_not)
            found = self._found(image, {clause.label for part in clauses for clause in part})
            seen.append(", ".join(f"{each.color} {each.label}" for each in found))
            values.append(self._value(*clauses, found))
        judged = sum(value is not None for value in values)
        if judged > 1 and not any(seen):
            self._warn(judged)
        if "log_extra" in columns:
            columns["log_extra"]("found", seen)
        return values

    def _warn(self, count: int) -> None:
        """Say, once, that nothing was found; it would look like a policy that learns nothing."""
        if self._warned:
            return
        self._warned = True
        advice = "it sees solid coloured shapes on a plain background, and nothing else"
        if not self._shapes:
            advice = f"is it the right model, or its threshold of {self.config.threshold} too high?"
        warnings.warn(
            f"reward {_NAME!r}: the detector {self.config.detector!r} found nothing in any of "
            f"{count} pictures: {advice}",
            stacklevel=2,
        )

    def _found(self, image: Pixels, classes: Collection[str]) -> list[Detection]:
        return find_shapes(image) if self._model is None else self._model(image, sorted(classes))

    def _value(
        self, include: list[Included], exclude: list[Excluded], found: list[Detection]
    ) -> float | None:
        if not include and not exclude:
            return None
        settings = self.config
        share = fulfilment(
            include,
            exclude,
            found,
            exact=settings.counts == "exact",
            unexpected=self._shapes if settings.unexpected is None else settings.unexpected,
            margin=settings.margin,
        )
        return share if settings.mode == "partial" else float(share == 1.0)

    def _clauses(
        self, index: int, include: Any, exclude: Any
    ) -> tuple[list[Included], list[Excluded]]:
        """The clauses of a sample, checked for what the detector cannot know."""
        where = f"reward {_NAME!r}, sample {index}, column"
        must = included(include, f"{where} {self.config.include!r}")
        must_not = excluded(exclude, f"{where} {self.config.exclude!r}")
        for clause in must:
            if clause.color is not None:
                _check(clause.color, "colour", PALETTE, where, self.config.include)
        if not self._shapes:
            return must, must_not
        must, must_not = list(map(_renamed, must)), list(map(_renamed, must_not))
        for clause in must:
            _check(clause.label, "class for 'shapes'", SHAPES, where, self.config.include)
        for rule in must_not:
            _check(rule.label, "class for 'shapes'", SHAPES, where, self.config.exclude)
        return must, must_not


def _renamed(clause: _Clause) -> _Clause:
    label = ALIASES.get(clause.label, clause.label)
    return clause.model_copy(update={"label": label})


def _check(name: str, what: str, known: Collection[str], where: str, column: str) -> None:
    if name not in known:
        raise ValueError(
            f"{where} {column!r}: unknown {what} {name!r}; it knows: {', '.join(known)}"
        )
