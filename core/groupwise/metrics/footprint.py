"""Footprint: the memory that a step takes, of the machine and of the device."""

from contextlib import suppress

import psutil
import torch

from groupwise.kit.metric_names import Family
from groupwise.metrics.tally import Tally

GIB = 2**30


class Footprint:
    """Measures the memory of this process at the end of each step; cheap enough for every step.

    device: what the run computes on. Only of a GPU the allocator tells what it holds: on a CPU the
    memory of the machine is all there is.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def take(self) -> dict[str, float]:
        """In GiB: `memory/host`, the resident memory of this process and its children;
        `memory/device`, the most that tensors took on the GPU since the last call; and
        `memory/device_reserved`, the most that torch held for them. The largest of all processes.
        A collective.
        """
        tally = Tally()
        tally.largest(f"{Family.MEMORY}/host", resident() / GIB)
        if self.device.type == "cuda":
            peaks = {
                "device": torch.cuda.max_memory_allocated(self.device),
                "device_reserved": torch.cuda.max_memory_reserved(self.device),
            }
            for name, peak in peaks.items():
                tally.largest(f"{Family.MEMORY}/{name}", peak / GIB)
            torch.cuda.reset_peak_memory_stats(self.device)
        return tally.of_all_processes().result()


def resident() -> int:
    """Bytes of memory that this process and its children hold; what they share counts for each."""
    this, held = psutil.Process(), 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            held += process.memory_info().rss
    return held
