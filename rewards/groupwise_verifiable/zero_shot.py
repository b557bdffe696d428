"""Objects of any class, found by a zero-shot detection model of transformers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from groupwise.errors import first_line
from groupwise_verifiable.colors import color_name
from groupwise_verifiable.detection import Box, Detection, strongest
from groupwise_verifiable.pixels import Pixels, picture


class ZeroShotDetector:
    """Asks a model such as OWLv2 or Grounding DINO for the classes by their names.

    name: of a model on the hub, or its folder. threshold: less sure detections are dropped.
    overlap: of two detections of a class whose intersection over union exceeds it, the less sure
    one is dropped. device: the GPU where there is one, by default.
    """

    def __init__(
        self, name: str, *, threshold: float, overlap: float, device: str | None = None
    ) -> None:
        """Loads the model; ValueError of one line where it cannot be had."""
        import torch
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

        self.threshold, self.overlap = threshold, overlap
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            model = AutoModelForZeroShotObjectDetection.from_pretrained(name)
            self.processor: Any = AutoProcessor.from_pretrained(name)
        except Exception as error:  # transformers and the hub raise a dozen kinds
            reason = first_line(error)
            raise ValueError(f"cannot load the detector {name!r}: {reason}") from error
        self.model: Any = model.to(device).eval()

    def __call__(self, image: Pixels, classes: Sequence[str]) -> list[Detection]:
        """Returns the objects of these classes in an image [H, W, 3], the surest first.

        An object's colour is the median of the central half of its box.
        """
        import torch

        if not classes:
            return []
        queries = [list(classes)]
        inputs = self.processor(images=picture(image), text=queries, return_tensors="pt")
        with torch.inference_mode():
            outputs = self.model(**inputs.to(self.model.device))
        (result,) = self.processor.post_process_grounded_object_detection(
            outputs,
            threshold=self.threshold,
            target_sizes=[image.shape[:2]],
            text_labels=queries,
        )
        names = {name.lower(): name for name in classes}
        detections = [
            Detection(names[label.lower()], _color(image, box), box, score)
            for label, box, score in zip(
                result["text_labels"],
                map(tuple, result["boxes"].tolist()),
                result["scores"].tolist(),
                strict=True,
            )
            if label.lower() in names  # Grounding DINO may join two names
        ]
        return strongest(detections, self.overlap)


def _color(image: Pixels, box: Box) -> str:
    """The name of the median colour of the box's middle, half as wide and half as high."""
    left, top, right, bottom = box
    rows = _middle(top, bottom, image.shape[0])
    columns = _middle(left, right, image.shape[1])
    return color_name(np.median(image[rows, columns].reshape(-1, 3), axis=0))


def _middle(low: float, high: float, length: int) -> slice:
    """The pixels of the central half of an interval, at least one of them, inside the image."""
    quarter = (high - low) / 4
    first = min(max(round(low + quarter), 0), length - 1)
    return slice(first, max(first + 1, min(round(high - quarter), length)))
