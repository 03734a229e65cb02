"""How every figure looks and how it is saved: one style, bundled fonts, no trace of the day or the machine.

matplotlib is imported inside the functions: only `harness report` and the end of a run pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.report.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, told apart with every common colour blindness; yellow left out, too pale on white.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
INK: Final = "#222222"
FAINT: Final = "#9a9a9a"
GRID: Final = "#e4e4e4"
#: Width that a README shows without scaling text below 9 pixels: about 900 pixels.
WIDTH: Final = 9.0
DPI: Final = 100
_FAMILY: Final = "harness sans"
_LONGEST_NAME: Final = 24

_STYLE: Final[dict[str, Any]] = {
    "font.family": _FAMILY,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "text.parse_math": False,  # an arm may be named `$a$`
    "axes.unicode_minus": False,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "harness",
    "path.simplify": True,
    "timezone": "UTC",
}


@contextmanager
def style() -> Iterator[None]:
    """The figures' style, whatever the user's own matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        _bundled_font()
        mpl.rcParams.update(_STYLE)
        yield


def _bundled_font() -> None:
    """Make matplotlib's own DejaVu known under our name: a system's copy of another version would shift every pixel."""
    import matplotlib as mpl
    from matplotlib.font_manager import FontEntry, fontManager

    if any(entry.name == _FAMILY for entry in fontManager.ttflist):
        return
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    for file, weight in (("DejaVuSans.ttf", 400), ("DejaVuSans-Bold.ttf", 700)):
        fontManager.ttflist.append(FontEntry(fname=str(folder / file), name=_FAMILY, weight=weight))


def figure(width: float, height: float) -> Figure:
    """An empty figure, inches, with its own Agg canvas: no global state of pyplot, no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(made: Figure, path: Path) -> None:
    """Write a PNG whose bytes depend on the picture alone (no program name, no date in its metadata)."""
    made.savefig(path, format="png", metadata={"Software": None})


def label(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name that fits and that the font can draw: letters without a glyph become their number."""
    text = "".join(char if ord(char) in _glyphs() else f"[U+{ord(char):04X}]" for char in visible(name))
    return text if len(text) <= longest else f"{text[: longest - 9]}...{text[-6:]}"


@cache
def _glyphs() -> frozenset[int]:
    """Code points that the bundled font can draw."""
    import matplotlib as mpl
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")).get_charmap())
