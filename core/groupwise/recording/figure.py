"""ShownFigure: a figure of matplotlib that a notebook shows, whatever its backend."""

from io import BytesIO

from matplotlib.figure import Figure


class ShownFigure(Figure):
    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=100)
        return content.getvalue()
