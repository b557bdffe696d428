"""Machines and the share of their speed that is reached: all assumptions, with their sources.

Bandwidths are those of one direction. The shares are taken from published measurements, so
predictions are of real speeds and not of those in a data sheet.
"""

from dataclasses import dataclass

GB, GIB = 1e9, 2**30


@dataclass(frozen=True)
class Machine:
    """A GPU, and how it is connected: eight to a node by NVLink, each with a network card.

    memory, hbm, nvlink, network: bytes, and bytes a second; flops: in bf16, dense.
    """

    name: str
    memory: float
    flops: float
    hbm: float
    nvlink: float
    network: float

    def gather(self, processes: int) -> float:
        """Bytes a second at which a process receives the shards of all others.

        NCCL's rings use all network cards of a node at once, each for an eighth of the bytes.
        """
        slowest = self.nvlink if processes <= NODE else min(self.nvlink, NODE * self.network)
        return COLLECTIVE * slowest


NODE = 8
H100 = Machine("H100 SXM", 80 * GIB, 989e12, 3350 * GB, 450 * GB, 50 * GB)
H800 = Machine("H800", 80 * GIB, 989e12, 3350 * GB, 200 * GB, 50 * GB)
H200 = Machine("H200", 141 * GB, 989e12, 4800 * GB, 450 * GB, 50 * GB)

TRAINING = 0.35
IMAGES = 0.30
SERVING = 0.5
READING = 0.75
COLLECTIVE = 0.8
HOP = 4e-6
HOST = 7e-5
REDUCE = 25e-6
SEQUENCES = 256
SYNC = 25 * GB
WAKE = 2.0
TEXT_REWARD = 1.0
IMAGE_REWARD = 0.05

TITAN = "[torchtitan](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)"
ORT = "[onnxruntime#22986](https://github.com/microsoft/onnxruntime/pull/22986)"
ENGINES = "fitted to the table of engines below"
OURS = "ours, without a source"

ASSUMPTIONS = [
    ("GPU", "H100 SXM: 80 GiB, 989 TFLOP/s in bf16, 3.35 TB/s of memory", "data sheet"),
    (
        "between GPUs",
        "450 GB/s by NVLink in a node of 8, 50 GB/s to a GPU between nodes (400 Gb/s each)",
        f"data sheet; the machines of {TITAN}",
    ),
    (
        "forward and backward of text",
        f"{TRAINING:.0%} of the FLOP/s, recomputation counted as work",
        f"33 to 39% in {TITAN} with FSDP2, 8B, 8 and 128 GPUs",
    ),
    (
        "forward and backward of images",
        f"{IMAGES:.0%} of the FLOP/s",
        f"FLUX.1-dev without compilation in {ORT}: 12.3 s for 50 steps of 1024x1024",
    ),
    ("prompts and decoding of an engine", f"{SERVING:.0%} of the FLOP/s", ENGINES),
    ("weights and cache, as an engine reads them", f"{READING:.0%} of the bandwidth", ENGINES),
    (
        "an engine's own work",
        f"{HOST * 1e6:.0f} µs of the host for each token of each sequence",
        ENGINES,
    ),
    (
        "tensor parallelism of an engine",
        f"{REDUCE * 1e6:.0f} µs for each of two sums a layer and token",
        OURS,
    ),
    ("sequences that an engine works on at once", f"{SEQUENCES}", "vLLM's usual `max_num_seqs`"),
    ("collectives", f"{COLLECTIVE:.0%} of the bandwidth, and {HOP * 1e6:.0f} µs a process", OURS),
    ("weights to engines", f"{SYNC / GB:.0f} GB/s, from one process", OURS),
    ("an engine that shares the GPUs", f"{WAKE:.0f} s a step to fall asleep and to wake", OURS),
    (
        "rewards",
        f"{TEXT_REWARD:.0f} s a step of text, {IMAGE_REWARD * 1e3:.0f} ms an image",
        OURS,
    ),
    (
        "lengths of completions",
        "exponential, cut at the longest, so that the last ones keep few sequences at work",
        OURS,
    ),
]
