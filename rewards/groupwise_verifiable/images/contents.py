"""A reward for pictures that contain the objects in their prompt."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

from groupwise_verifiable.columns import column
from groupwise_verifiable.images import clip_colors
from groupwise_verifiable.images.box_colors import PaletteColors
from groupwise_verifiable.images.classes import GENEVAL
from groupwise_verifiable.images.clauses import Excluded, Included, excluded, fulfilment, included
from groupwise_verifiable.images.clip_colors import ClipColors
from groupwise_verifiable.images.colors import PALETTE
from groupwise_verifiable.images.contents_settings import Settings
from groupwise_verifiable.images.detection import Detection
from groupwise_verifiable.images.geneval import flow_grpo, geneval
from groupwise_verifiable.images.pixels import Pixels, pixels
from groupwise_verifiable.images.shapes import ALIASES, SHAPES, find_shapes
from groupwise_verifiable.images.zero_shot import ZeroShotDetector
from groupwise_verifiable.models import shared

_NAME = "image_contents"
_Clause = TypeVar("_Clause", Included, Excluded)


class ImageContents:
    """Whether a picture contains the objects of its row: number, colour and position.

    Rows have GenEval's metadata (arXiv:2310.11513): `include`, a list of {class, count, color,
    position}, and `exclude`, a list of {class, count}, as lists or JSON. None for rows without
    both. `mode` chooses the rule: ours, where surplus and unexpected objects are wrong
    (`clauses.fulfilment`), or a published one (`geneval`).
    """

    judges = True

    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings | None = None) -> None:
        """Raises ValueError where a package is missing or settings contradict each other."""
        self.config = config or self.Config()
        self._shapes = self.config.detector == "shapes"
        self._published = self.config.mode in ("geneval", "flow_grpo")
        package = "scipy" if self._shapes else "transformers"
        if find_spec(package) is None:
            raise ValueError(f"reward {_NAME!r} needs {package}: pip install 'groupwise[flow]'")
        self._check_settings()
        self._warned = False
        self._detector = None if self._shapes else _detector(self.config)
        self._colors = PaletteColors() if self.config.colors == "palette" else _clip(self.config)

    def load(self) -> None:
        """Loads the models of the settings, if needed."""
        if self._detector is not None:
            self._detector.load()
        self._colors.load()

    @property
    def required_columns(self) -> Mapping[str, str]:
        names = {"include": self.config.include}
        if "exclude" in self.config.model_fields_set:
            names["exclude"] = self.config.exclude
        if self.config.counting_threshold is not None:
            names["counting_threshold"] = "tag"
        return names

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Returns a value for each completion; logs the detected objects as `objects`."""
        images = pixels(completions, reward=_NAME)
        include = column(columns, self.config.include, reward=_NAME)
        exclude: Sequence[Any] = columns.get(self.config.exclude) or [None] * len(images)
        if "exclude" in self.config.model_fields_set:
            exclude = column(columns, self.config.exclude, reward=_NAME)
        tags: Sequence[Any] = [None] * len(images)
        if self.config.counting_threshold is not None:
            tags = column(columns, "tag", reward=_NAME)
        values: list[float | None] = []
        contents: list[str] = []
        rows = zip(images, include, exclude, tags, strict=True)
        for index, (image, must, must_not, tag) in enumerate(rows):
            clauses = self._clauses(index, must, must_not)
            objects = self._objects(image, *clauses, tag)
            names = (f"{each.color or ''} {each.label}".strip() for each in objects)
            contents.append(", ".join(names))
            values.append(self._value(*clauses, objects))
        judged = sum(value is not None for value in values)
        if judged > 1 and not any(contents):
            self._warn(judged)
        if "log_extra" in columns:
            columns["log_extra"]("objects", contents)
        return values

    def _check_settings(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        settings = self.config
        if settings.unexpected and not self._shapes:
            raise ValueError(
                f"reward {_NAME!r}: `unexpected: true` works by the detector 'shapes' alone, "
                f"found {settings.detector!r}"
            )
        if settings.unexpected and self._published:
            raise ValueError(
                f"reward {_NAME!r}: `unexpected: true` is for the modes strict and partial; "
                f"{settings.mode} ignores other classes"
            )
        if self._shapes and settings.colors == "clip":
            raise ValueError(
                f"reward {_NAME!r}: `colors: clip` needs a model as `detector`; 'shapes' names "
                "colours itself"
            )

    def _warn(self, count: int) -> None:
        """Warn, once, that no picture has any object; else it looks as if nothing were learned."""
        if self._warned:
            return
        self._warned = True
        advice = "it detects solid coloured shapes on a plain background, and nothing else"
        if not self._shapes:
            advice = f"is it the right model, or its threshold of {self.config.threshold} too high?"
        warnings.warn(
            f"reward {_NAME!r}: the detector {self.config.detector!r} found nothing in any of "
            f"{count} pictures: {advice}",
            stacklevel=2,
        )

    def _objects(
        self, image: Pixels, include: list[Included], exclude: list[Excluded], tag: Any
    ) -> list[Detection]:
        """The objects in an image; a CLIP names only those colours that a clause needs."""
        if self._detector is None:
            return find_shapes(image)
        threshold = self.config.threshold
        if tag == "counting" and self.config.counting_threshold is not None:
            threshold = self.config.counting_threshold
        classes = {clause.label for part in (include, exclude) for clause in part}
        objects = self._detector(
            image,
            sorted(classes | self._others(classes)),
            threshold=threshold,
            overlap=self.config.overlap,
            most=self.config.max_objects,
        )
        colored = classes
        if self.config.colors == "clip":
            colored = {clause.label for clause in include if clause.color is not None}
        names = iter(self._colors(image, [each for each in objects if each.label in colored]))
        return [
            replace(each, color=next(names)) if each.label in colored else each for each in objects
        ]

    def _others(self, classes: set[str]) -> frozenset[str]:
        """What the detector looks for beside a row's classes; nothing for a row without any."""
        if self.config.others != "geneval":
            return frozenset(self.config.others if classes else ())
        return GENEVAL if classes and GENEVAL.issuperset(classes) else frozenset()

    def _value(
        self, include: list[Included], exclude: list[Excluded], objects: list[Detection]
    ) -> float | None:
        settings = self.config
        if settings.mode == "flow_grpo":
            return flow_grpo(include, objects, margin=settings.margin) if include else None
        if not include and not exclude:
            return None
        if settings.mode == "geneval":
            return geneval(include, exclude, objects, margin=settings.margin)
        share = fulfilment(
            include,
            exclude,
            objects,
            unexpected=self._shapes if settings.unexpected is None else settings.unexpected,
            margin=settings.margin,
        )
        return share if settings.mode == "partial" else float(share == 1.0)

    def _clauses(
        self, index: int, include: Any, exclude: Any
    ) -> tuple[list[Included], list[Excluded]]:
        """The clauses of a sample; ValueError for those that the mode or detector cannot check."""
        where = f"reward {_NAME!r}, sample {index}, column"
        must = included(include, f"{where} {self.config.include!r}")
        must_not = excluded(exclude, f"{where} {self.config.exclude!r}")
        known = PALETTE if self.config.colors == "palette" else clip_colors.COLORS
        for number, clause in enumerate(must):
            if clause.color is not None:
                _check(clause.color, "colour", known, where, self.config.include)
            if self._published and clause.position and clause.position[1] > number:
                raise ValueError(
                    f"{where} {self.config.include!r}, clause {number}: position "
                    f"{list(clause.position)} must refer to an earlier clause for `mode: "
                    f"{self.config.mode}`, which reads them in order"
                )
        if not self._shapes:
            self._check_counts(where, must, must_not)
            return must, must_not
        must, must_not = list(map(_renamed, must)), list(map(_renamed, must_not))
        for clause in must:
            _check(clause.label, "class for 'shapes'", SHAPES, where, self.config.include)
        for rule in must_not:
            _check(rule.label, "class for 'shapes'", SHAPES, where, self.config.exclude)
        return must, must_not

    def _check_counts(self, where: str, include: list[Included], exclude: list[Excluded]) -> None:
        """Raise ValueError for a clause with more objects than `max_objects`."""
        clauses: list[Included | Excluded] = [*include, *exclude]
        for clause in clauses:
            if clause.count > self.config.max_objects:
                raise ValueError(
                    f"{where}s: a clause about {clause.count} of {clause.label!r}, but no more "
                    f"than {self.config.max_objects} of a class are counted; increase `max_objects`"
                )


def _detector(settings: Settings) -> ZeroShotDetector:
    return shared(ZeroShotDetector, settings.detector, settings.device)


def _clip(settings: Settings) -> ClipColors:
    return shared(
        ClipColors,
        settings.clip_model,
        settings.clip_pretrained,
        settings.device,
        settings.clip_quick_gelu,
    )


def _renamed(clause: _Clause) -> _Clause:
    label = ALIASES.get(clause.label, clause.label)
    return clause.model_copy(update={"label": label})


def _check(name: str, kind: str, known: Collection[str], where: str, column: str) -> None:
    if name not in known:
        raise ValueError(
            f"{where} {column!r}: unknown {kind} {name!r}; it knows: {', '.join(known)}"
        )
