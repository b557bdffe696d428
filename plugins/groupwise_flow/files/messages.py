"""The messages of diffusers and transformers: hidden, or errors for the user."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, NOTSET, WARNING, LogRecord

from diffusers.utils import logging
from transformers.utils import logging as transformers_logging

from groupwise import trust
from groupwise.errors import UserError
from groupwise_flow.settings import Settings


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
    """The context in which unknown arguments are an error; diffusers only logs a warning."""

    def refuse(record: LogRecord) -> bool:
        if "are not expected by" in record.getMessage():
            raise ValueError(record.getMessage())
        return record.levelno >= ERROR

    logger = logging.get_logger("diffusers.pipelines.pipeline_utils")
    level, off, below = logger.level, logger.disabled, logger.manager.disable
    logger.setLevel(WARNING)
    logger.disabled, logger.manager.disable = False, NOTSET  # even where logging is switched off
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
        logger.disabled, logger.manager.disable = off, below
        logger.setLevel(level)
