"""The messages of diffusers and transformers: hidden, or errors for the user."""

import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from logging import ERROR, NOTSET, WARNING, Logger, LogRecord

from diffusers.utils import logging
from transformers.utils import logging as transformers_logging

from groupwise.kit import trust
from groupwise.kit.errors import UserError
from groupwise_flow.settings import Settings

SIGNS = {
    "diffusers.pipelines.pipeline_utils": "are not expected by",
    "transformers.modeling_utils": "newly initialized",
}
"""By logger, what a warning says that is an error here."""
STYLE = re.compile(r"\x1b\[[\d;]*m|[-+|]{3,}")
"""Colours, and the lines of tables."""
MOST = 300
"""Characters of such a warning that are shown."""


@contextmanager
def explained(settings: Settings, problem: str) -> Iterator[None]:
    """The context in which any error becomes a UserError of one line."""
    try:
        yield
    except Exception as error:  # diffusers, transformers and safetensors raise a dozen kinds
        reason = trust.reason_of_policy(error)
        raise UserError(f"policy.model: {problem} {settings.model!r}: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """The context without progress bars, which would break the run's own line, and without
    diffusers' warnings, such as for a missing T5."""
    logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    trust.ask_nobody()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries' warnings about each other's arguments
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def silent() -> Iterator[None]:
    """As `quiet`, and without transformers' warnings: some come with every prompt."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with quiet():
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def strict() -> Iterator[None]:
    """The context in which what is only logged as a warning is an error: arguments that diffusers
    does not know, and weights that transformers draws at random, since its files lack them."""
    with ExitStack() as stack:
        for name, sign in SIGNS.items():
            stack.enter_context(_refusing(logging.get_logger(name), sign))
        yield


@contextmanager
def _refusing(logger: Logger, sign: str) -> Iterator[None]:
    """The context in which a warning of the logger that contains `sign` is an error."""

    def refuse(record: LogRecord) -> bool:
        if sign in record.getMessage():
            raise ValueError(" ".join(STYLE.sub("", record.getMessage()).split())[:MOST])
        return record.levelno >= ERROR

    level, off, below = logger.level, logger.disabled, logger.manager.disable
    logger.setLevel(WARNING - 1)  # at WARNING itself transformers checks plans of sharding, too
    logger.disabled, logger.manager.disable = False, NOTSET  # even where logging is switched off
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
        logger.disabled, logger.manager.disable = off, below
        logger.setLevel(level)
