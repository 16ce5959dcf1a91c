"""One look for the book's figures: `figures.use()` in a chapter's first cell.

A figure becomes a picture file, which the page's colours cannot reach. So its ground is transparent
and every colour here keeps a contrast of at least 3 : 1 on white and on the dark theme's #14181e.
Figures are SVG, and the same code gives the same file.
"""

from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.colors import LinearSegmentedColormap

from tx.course.drawing import COLOURS

INK = COLOURS["hidden"]  # text, axes, grid
BLUE, ORANGE, GREEN, VIOLET = (COLOURS[kind] for kind in ("key", "query", "value", "out"))

# Colour and dash change together, so that nobody needs the colour to tell two curves apart.
_CYCLE = cycler(color=[BLUE, ORANGE, GREEN, VIOLET]) + cycler(linestyle=["-", "--", "-.", ":"])

# From nothing to BLUE: the ground shows through where a weight is zero, on either theme.
_WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", [(0.17, 0.48, 0.75, 0.0), (0.17, 0.48, 0.75, 1.0)]
)

_STYLE: dict = {
    "figure.figsize": (5.0, 3.0),  # 6.2 in at most: 10 pt stay readable on a phone
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": _CYCLE,
    "lines.linewidth": 2,
    "image.cmap": "weights",
    "svg.hashsalt": "tx",  # ids inside the file do not change from run to run
    "svg.fonttype": "path",  # the same letters on every machine
}


def use():
    """Set matplotlib up for the book, and the notebook to show figures as SVG.

    The colours are `figures.BLUE`, `ORANGE`, `GREEN`, `VIOLET` (in this order by default) and
    `figures.INK` for everything that is not data; `cmap="weights"`, the default of `imshow`, runs
    from transparent to BLUE. Keep figures at most 6.2 in wide.

    Example:
        >>> figures.use()
        >>> plt.plot(steps, losses, label="one head"); plt.xlabel("step"); plt.ylabel("loss (nats)")
    """
    matplotlib.colormaps.register(_WEIGHTS, force=True)
    plt.rcParams.update(_STYLE)
    _show_svg()


def _show_svg():
    """Inline figures as SVG without a date; nothing to do outside a notebook."""
    try:
        from IPython import get_ipython
        from matplotlib_inline.config import InlineBackend
    except ImportError:
        return
    shell = get_ipython()
    if shell is None:
        return
    inline: Any = InlineBackend.instance(parent=shell)
    inline.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Date": None}}
    inline.figure_formats = {"svg"}
