"""Forks: a process that called code forks ends where that code does."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_forks() -> Iterator[None]:
    """A context that only the process which entered it leaves; one forked within it ends there.

    It would go on as a second run in the same folder, or answer a worker's request again.
    """
    own, code = os.getpid(), 0
    try:
        yield
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        raise
    except BaseException:
        code = 1
        if os.getpid() != own:
            traceback.print_exc()
        raise
    finally:
        if os.getpid() != own:
            os._exit(code)
