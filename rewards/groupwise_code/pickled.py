"""Pickled: the text inside a pickle that holds nothing else.

The pickle is never loaded: its operations are listed, and any but those that write one text is
refused. So there is no class to be found, no object to be built, and no memory to be filled.
"""

import pickletools

from groupwise_code.problem import FormatError

_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_FRAMING = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


def text_of(pickled: bytes) -> str:
    """The text that a pickle holds. Raises FormatError if it holds anything else."""
    texts = list[str]()
    try:
        for operation, argument, _ in pickletools.genops(pickled):
            if operation.name in _TEXTS:
                texts.append(str(argument))
            elif operation.name not in _FRAMING:
                raise FormatError(f"a pickle of more than a text: it has {operation.name}")
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"not a pickle: {error}") from error
    if len(texts) != 1:
        raise FormatError(f"a pickle of {len(texts)} texts, expected one")
    return texts[0]
