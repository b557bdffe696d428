"""Start: by which command, with which packages and on which devices a run began or went on."""

import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import Accelerator
from packaging.requirements import Requirement

from groupwise.config import yaml_lines
from groupwise.kit import processes, secrets
from groupwise.kit.errors import UserError

DEVELOPMENT = ("dev", "docs")
"""Extras whose packages no run uses."""
GIB = 2**30


def start(accelerator: Accelerator, step: int) -> dict[str, Any]:
    """What run.json notes of a start; step: steps done before. A collective."""
    devices = Counter(processes.each(lambda: device_name(accelerator.device)))
    return {
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(sys.argv),
        "folder": str(Path.cwd()),
        "devices": dict(devices),
        "processes": accelerator.num_processes,
        "cores": cores(),
        "memory": round(psutil.virtual_memory().total / GIB, 1),  # GiB
        "system": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda if accelerator.device.type == "cuda" else None,
        "packages": packages(),
    }


def command(arguments: Sequence[str]) -> str:
    """A command line as one types it, without its secrets."""
    program, *rest = arguments
    named = Path(program).name
    words = ["python", "-m", Path(program).parent.name] if named == "__main__.py" else [named]
    return secrets.redacted(shlex.join([*words, *_masked(rest)]))


def _masked(arguments: Sequence[str]) -> Iterator[str]:
    """`key=secret`, `--key=secret` and `--key secret` with masks."""
    before = ""
    for argument in arguments:
        key, equal, value = argument.partition("=")
        if equal:
            yield f"{key}={_masked_value(key, value)}"
        else:
            is_value = before.startswith("--") and not argument.startswith("-")
            yield _masked_value(before if is_value else "", argument)
        before = "" if equal else argument


def _masked_value(key: str, value: str) -> str:
    """A value on the command line, which may be a whole section in YAML."""
    try:
        parsed = yaml_lines.read(value, key)[0]
    except UserError:
        parsed = value
    section = {key.rpartition(".")[2].lstrip("-"): parsed}
    return value if secrets.masked(section) is section else secrets.MASK


def device_name(device: torch.device) -> str:
    """Such as "NVIDIA H100 80GB HBM3, 79 GiB" or "CPU (x86_64)"."""
    if device.type != "cuda":
        return f"CPU ({platform.machine()})" if device.type == "cpu" else device.type
    memory = torch.cuda.get_device_properties(device).total_memory / GIB
    return f"{torch.cuda.get_device_name(device)}, {memory:.0f} GiB"


def cores() -> int:
    """How many cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


@lru_cache
def packages() -> dict[str, str]:
    """The version of groupwise, of each installed package that it can use, and of each that brings
    plugins, by name."""
    names = {"groupwise", *_required("groupwise")}
    plugins = metadata.entry_points(group="groupwise")
    names |= {entry.dist.name for entry in plugins if entry.dist is not None}
    versions = {}
    for name in sorted(names, key=str.lower):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _required(distribution: str) -> Iterator[str]:
    """Names of what it requires, by itself or in an extra for users."""
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:  # it runs from a checkout that is not installed
        return
    for requirement in map(Requirement, lines):
        extras = [
            extra for extra in DEVELOPMENT if f'extra == "{extra}"' in str(requirement.marker)
        ]
        if not extras:
            yield requirement.name
