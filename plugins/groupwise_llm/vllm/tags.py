"""Tags: the names of the weights that servers were sent in this run, in order."""

from collections.abc import Collection


class Tags:
    """Tells which weights may have drawn a completion.

    last: the tag of the weights that all servers have; "" before they were sent any.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self.last = ""

    def begin(self, tag: str, version: int) -> None:
        """From now on servers may draw with these weights, too."""
        self._versions[tag], self._places[tag] = version, len(self._places)

    def finish(self, tag: str) -> None:
        """All servers have them."""
        self.last = tag

    def version(self, tag: str) -> int:
        return self._versions[tag]

    def may_draw(self, tags: Collection[str], since: str) -> bool:
        """Whether all are of this run, and none older than `since`, the last one at a request."""
        least = self._places[since]
        return bool(tags) and all(self._places.get(tag, -1) >= least for tag in tags)
