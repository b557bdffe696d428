"""Loading a causal or vision-language model of transformers, once for all judges of a process."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch

from groupwise.kit import trust
from groupwise.kit.errors import first_line
from groupwise.kit.memory import size
from groupwise_judge.in_process.settings import ModelSettings

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


class Weights:
    """A frozen model with its processor or, if it sees no pictures, its tokenizer."""

    def __init__(self, settings: ModelSettings) -> None:
        """Reads the model to CPU memory. Raises ValueError, in one line, where that fails."""
        from transformers import AutoProcessor, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()  # it would break the run's own line
        name = settings.model
        with errors_of(name):
            config = _config(name)
            self.sees = _sees(config)
            reader = AutoProcessor if self.sees else AutoTokenizer
            self.processor = reader.from_pretrained(name, trust_remote_code=False)
            self.model, report = _kind(config).from_pretrained(
                name,
                dtype=DTYPES[settings.precision],
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        if missing := report["missing_keys"]:  # transformers draws them at random
            raise ValueError(
                f"`model`: {name!r} lacks {len(missing)} weights, {min(missing)!r} for example"
            )
        self.model.eval().requires_grad_(requires_grad=False)
        self.tokenizer = self.processor.tokenizer if self.sees else self.processor
        if self.tokenizer.pad_token is None:  # padding is masked, so any token will do
            self.tokenizer.pad_token = self.tokenizer.convert_ids_to_tokens(0)

    @contextmanager
    def on(self, device: torch.device, *, offload: bool) -> Iterator[None]:
        """The context in which the model is on the device; with `offload` it leaves it after."""
        self.move_to(device)
        try:
            yield
        finally:
            if offload:
                self.model.to("cpu")

    def move_to(self, device: torch.device) -> None:
        """Raises ValueError where there is no such device, or no room on it."""
        try:
            self.model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"`device`: {str(device)!r}: {first_line(error)}") from error


_shared: WeakValueDictionary[Hashable, Weights] = WeakValueDictionary()


def weights(settings: ModelSettings) -> Weights:
    """The model of these settings; judges that ask it different questions share it."""
    key = (settings.model, settings.precision, device_of(settings))
    loaded = _shared.get(key)
    if loaded is None:
        loaded = _shared[key] = Weights(settings)
    return loaded


def check_model(name: str) -> None:
    """Raises ValueError for a path without a model that can be a judge; hub names are not read."""
    if find_spec("transformers") is None:
        raise ValueError("a judge in this process needs transformers: pip install 'groupwise[llm]'")
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"`model`: the folder {name!r} holds no model: no config.json")
        with errors_of(name):
            _kind(_config(name))
    elif path.is_file():
        raise ValueError(f"`model`: expected a folder or a hub name, found the file {name!r}")
    elif name.count("/") > 1 or name.startswith(("/", ".", "~")):
        raise ValueError(f"`model`: the folder {name!r} does not exist")


class Estimate(NamedTuple):
    """Bytes by purpose."""

    gpu: Mapping[str, int]
    cpu: Mapping[str, int]


def estimate(settings: ModelSettings) -> Estimate:
    """The weights, on the device of a judge and, where it leaves that between two uses, in CPU
    memory, too. Reads the model's configuration alone."""
    device = device_of(settings)
    with errors_of(settings.model):
        config = _config(settings.model)
        with torch.device("meta"):
            model = _kind(config).from_config(config, dtype=DTYPES[settings.precision])
    held = {f"judge {settings.model}, {settings.precision}, on {device}": size(model.parameters())}
    is_cpu = device.type == "cpu"
    return Estimate(gpu={} if is_cpu else held, cpu=held if is_cpu or settings.offload else {})


def device_of(settings: ModelSettings) -> torch.device:
    """The configured device, else a GPU if there is one. Raises ValueError for an unknown name."""
    try:
        return torch.device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ValueError(
            f"`device`: expected for instance 'cpu', 'cuda' or 'cuda:1', found {settings.device!r}"
        ) from error


def _config(name: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(name, trust_remote_code=False)


def _sees(config: Any) -> bool:
    """Whether it is the configuration of a model that reads pictures and writes text."""
    from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def _kind(config: Any) -> Any:
    """The class of transformers that loads the model."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    if _sees(config):
        return AutoModelForImageTextToText
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    raise ValueError(
        f"expected a causal or vision-language model of transformers, found the type "
        f"{config.model_type!r}"
    )


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """The context in which any error of loading a model becomes a one-line ValueError."""
    try:
        yield
    except Exception as error:  # transformers, torch, JSON and the hub raise a dozen kinds
        reason = trust.reason_of_reward(error, name)
        raise ValueError(f"`model`: {name!r} cannot be loaded: {reason}") from error
