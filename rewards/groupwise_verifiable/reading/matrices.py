"""Matrices and vectors: their rows, their sums and multiples, and sums of unit vectors."""

from groupwise_verifiable.reading.node import Node, factors, joined, number, terms

Rows = list[tuple[Node, ...]]


def rows(node: Node) -> Rows | None:
    """Returns the rows of a matrix, of a tuple as a column, and of sums and multiples of these;
    None for anything else."""
    if node.kind == "relation" and node.text == "=":
        node = node.args[-1]
    if node.kind == "call" and node.text == "binom":  # written as a column
        return [(part,) for part in node.args]
    return _rows(node)


def column(node: Node) -> Node:
    """Returns a matrix of one column as a tuple; any other node as it is."""
    if node.kind != "matrix" or any(len(row.args) > 1 for row in node.args):
        return node
    return Node("tuple", tuple(row.args[0] for row in node.args), "()")


def is_computed(node: Node) -> bool:
    """Returns whether a node is a sum or a multiple of matrices or vectors."""
    return node.kind in ("add", "neg", "mul") and _rows(node) is not None


def _rows(node: Node) -> Rows | None:
    if node.kind == "matrix":
        return [row.args for row in node.args]
    if node.kind == "tuple" and all(part.kind == "tuple" for part in node.args):
        return [part.args for part in node.args] if node.text == "[]" else None
    if node.kind == "tuple" and node.text == "()":
        return [(part,) for part in node.args]
    if node.kind == "add":
        return _sum([_rows(part) for part in node.args])
    return _multiple(node) if node.kind in ("neg", "mul") else None


def _sum(every: list[Rows | None]) -> Rows | None:
    added = [each for each in every if each is not None]
    shapes = {tuple(map(len, each)) for each in added}
    if len(added) < len(every) or len(shapes) > 1:
        return None
    lines = zip(*added, strict=True)
    return [tuple(Node("add", cells) for cells in zip(*line, strict=True)) for line in lines]


def _multiple(node: Node) -> Rows | None:
    matrices = [each for part in node.args if (each := _rows(part)) is not None]
    scalars = [part for part in node.args if _rows(part) is None]
    if len(matrices) != 1:
        return None
    if node.kind == "neg":
        return [tuple(Node("neg", (cell,)) for cell in row) for row in matrices[0]]
    return [tuple(joined("mul", [*scalars, cell]) for cell in row) for row in matrices[0]]


def components(node: Node) -> Node | None:
    """Returns a sum of unit vectors, 3i - 2j + 5k, as a column; None for anything else."""
    places = dict.fromkeys("ijk", number(0))
    for sign, term in terms(node):
        parts = factors(term)
        axes = [part.text for part in parts if part.kind == "name" and part.text in places]
        if len(axes) != 1 or places[axes[0]] != number(0):
            return None
        rest = [part for part in parts if part.text != axes[0]] or [number(1)]
        places[axes[0]] = joined("mul", rest if sign > 0 else [Node("neg", (rest[0],)), *rest[1:]])
    size = 2 if places["k"] == number(0) else 3
    return Node("tuple", tuple(places.values())[:size], "()")
