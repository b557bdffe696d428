"""Fixtures of the tests of commands."""

from tests.core.conftest import lab

__all__ = ["lab"]
