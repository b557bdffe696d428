"""Detects objects of any class by a zero-shot detection model of transformers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from groupwise_verifiable.images.detection import Detection, strongest
from groupwise_verifiable.images.pixels import Pixels, picture
from groupwise_verifiable.models import LazyModel, check_model_name, for_use, loading


class ZeroShotDetector(LazyModel[tuple[Any, Any]]):
    """A zero-shot detector such as OWLv2 or Grounding DINO, prompted with class names.

    name: hub name or folder of the model. device: a GPU if there is one, by default.
    """

    def __init__(self, name: str, device: str | None = None) -> None:
        """Loads nothing. Raises ValueError for a folder without a model."""
        check_model_name(name, setting="detector")
        super().__init__()
        self.name, self.device = name, device

    def _load(self) -> tuple[Any, Any]:
        """Model and processor."""
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

        with loading(f"`detector`: {self.name!r}", self.name):
            model: Any = AutoModelForZeroShotObjectDetection.from_pretrained(
                self.name, trust_remote_code=False, use_safetensors=True
            )
            processor = AutoProcessor.from_pretrained(self.name, trust_remote_code=False)
        return for_use(model, self.device), processor

    def __call__(
        self, image: Pixels, classes: Sequence[str], *, threshold: float, overlap: float, most: int
    ) -> list[Detection]:
        """Returns the objects of these classes in an image [H, W, 3], without colours, by falling
        confidence.

        threshold: smallest confidence. overlap: of two detections of a class with an intersection
        over union above it, the less confident one is dropped. most: largest number per class.
        """
        import torch

        if not classes:
            return []
        queries = [list(classes)]
        model, processor = self.loaded()
        with torch.inference_mode():
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
    """The first `most` detections of each class."""
    counts: Counter[str] = Counter()
    for each in detections:
        counts[each.label] += 1
        if counts[each.label] <= most:
            yield each


def class_of(label: str, classes: Sequence[str]) -> str | None:
    """Returns the class of a model's label, None if none or several match.

    Grounding DINO returns the words above its threshold: "light" for "traffic light", for example,
    and for a box that fits two classes the words of both.
    """
    words = set(label.lower().split())
    same = [name for name in classes if name.lower() == label.lower()]
    matches = same or [name for name in classes if words & set(name.lower().split())]
    return matches[0] if len(matches) == 1 else None
