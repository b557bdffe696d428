"""Objects of any class, found by a zero-shot detection model of transformers."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from groupwise import trust
from groupwise.errors import first_line
from groupwise_verifiable.detection import Detection, strongest
from groupwise_verifiable.model_names import check_model_name
from groupwise_verifiable.pixels import Pixels, picture


class ZeroShotDetector:
    """Asks a model such as OWLv2 or Grounding DINO for the classes by their names.

    name: of a model on the hub, or its folder. device: the GPU where there is one, by default.
    """

    def __init__(self, name: str, device: str | None = None) -> None:
        """Loads nothing; ValueError where a folder is named that holds no model."""
        check_model_name(name, setting="detector")
        self.name, self.device = name, device
        # A call past its deadline may still be at work; tokenizers are for one thread at a time.
        self._lock = threading.RLock()
        self._parts: tuple[Any, Any] | None = None  # model and processor

    def load(self) -> None:
        """Loads the model, unless that is done; ValueError of one line where it cannot be had."""
        self._loaded()

    def _loaded(self) -> tuple[Any, Any]:
        with self._lock:
            if self._parts is None:
                self._parts = self._load()
            return self._parts

    def _load(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            model: Any = AutoModelForZeroShotObjectDetection.from_pretrained(
                self.name, trust_remote_code=False
            )
            processor = AutoProcessor.from_pretrained(self.name, trust_remote_code=False)
        except Exception as error:  # transformers and the hub raise a dozen kinds
            reason = trust.NOT_RUN if trust.brings_code(error) else first_line(error)
            raise ValueError(f"`detector`: {self.name!r} cannot be loaded: {reason}") from error
        try:
            return model.to(device).eval(), processor
        except (RuntimeError, AssertionError) as error:  # no such device, or no room on it
            raise ValueError(f"`device`: {device!r}: {first_line(error)}") from error

    def __call__(
        self, image: Pixels, classes: Sequence[str], *, threshold: float, overlap: float, most: int
    ) -> list[Detection]:
        """Returns the objects of these classes in an image [H, W, 3], the surest first.

        threshold: less sure detections are dropped. overlap: of two detections of a class whose
        intersection over union exceeds it, the less sure one is dropped. most: of a class, the
        surest so many are kept. Nobody looks at their colours.
        """
        import torch

        if not classes:
            return []
        queries = [list(classes)]
        with self._lock, torch.inference_mode():
            model, processor = self._loaded()
            inputs = processor(images=picture(image), text=queries, return_tensors="pt")
            outputs = model(**inputs.to(model.device))
        (result,) = processor.post_process_grounded_object_detection(
            outputs,
            threshold=threshold,
            target_sizes=[image.shape[:2]],
            text_labels=queries,
        )
        detections = [
            Detection(name, None, box, score)
            for label, box, score in zip(
                result["text_labels"],
                map(tuple, result["boxes"].tolist()),
                result["scores"].tolist(),
                strict=True,
            )
            if (name := class_of(label, classes)) is not None
        ]
        return list(_first(strongest(detections, overlap), most))


def _first(detections: Sequence[Detection], most: int) -> Iterator[Detection]:
    """The first so many of each class."""
    counts: Counter[str] = Counter()
    for each in detections:
        counts[each.label] += 1
        if counts[each.label] <= most:
            yield each


def class_of(label: str, classes: Sequence[str]) -> str | None:
    """Returns the class that a model's label means, None where that could be several or none.

    Grounding DINO gives the words of which it is sure enough: of "traffic light" perhaps "light",
    and for a box that fits two classes the words of both.
    """
    words = set(label.lower().split())
    same = [name for name in classes if name.lower() == label.lower()]
    meant = same or [name for name in classes if words & set(name.lower().split())]
    return meant[0] if len(meant) == 1 else None
