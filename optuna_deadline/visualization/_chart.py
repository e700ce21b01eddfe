"""Charts as values, independent of the library that draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optuna_deadline.history.records import History
from optuna_deadline.history.text import format_time_of_day
from optuna_deadline.values.deadlines import format_duration

# Okabe and Ito's colours, which are distinct for any colour vision.
BLUE, SKY, ORANGE, GREEN = "#0072B2", "#56B4E9", "#E69F00", "#009E73"
VERMILLION, PURPLE, YELLOW, GREY = "#D55E00", "#CC79A7", "#F0E442", "#8A8A8A"

Symbol = Literal["circle", "star", "x", "diamond", "open"]


@dataclass(frozen=True)
class Bar:
    """One horizontal bar."""

    row: float
    start: float
    length: float
    text: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of one kind."""

    name: str
    colour: str
    bars: tuple[Bar, ...]
    height: float = 0.8


@dataclass(frozen=True)
class Line:
    """A curve; a y of None interrupts it."""

    name: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    steps: bool = False  #: each value holds until the next
    dash: bool = False
    width: float = 2.0
    opacity: float = 1.0
    legend: bool = True
    markers: bool = False  #: to make a curve of one point visible
    texts: tuple[str, ...] = ()
    template: str = "{}"  #: the format of each text
    group: str = ""  #: the legend switches the curves of a group together


@dataclass(frozen=True)
class Area:
    """The area between two curves."""

    name: str
    colour: str
    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    steps: bool = False
    opacity: float = 0.2
    legend: bool = True
    group: str = ""


@dataclass(frozen=True)
class Points:
    """Single points of one kind."""

    name: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    symbol: Symbol = "circle"
    texts: tuple[str, ...] = ()
    size: float = 8.0


@dataclass(frozen=True)
class VerticalMark:
    """A vertical line with a label."""

    x: float
    words: str
    colour: str = VERMILLION
    dotted: bool = False


ChartPart = Bars | Line | Area | Points


@dataclass(frozen=True)
class Chart:
    """One figure."""

    title: str
    summary: str  #: the sentence above the figure
    x_title: str
    y_title: str
    parts: tuple[ChartPart, ...]
    marks: tuple[VerticalMark, ...] = ()
    x_range: tuple[float, float] | None = None
    from_zero: bool = False
    x_ticks: tuple[tuple[float, str], ...] = ()
    y_ticks: tuple[tuple[float, str], ...] = ()


class Axis:
    """Times since the study's start, in a suitable unit.

    Args:
        history: The study's history.
        to_deadline: Show the time until the deadline.
        since: Show nothing before this time.
    """

    def __init__(
        self, history: History, *, to_deadline: bool = False, since: float | None = None
    ) -> None:
        begin = history.started if since is None else since
        latest = history.end
        close = history.deadline - begin <= 3 * max(latest - begin, 1.0)
        self.shows_deadline = to_deadline or close
        if self.shows_deadline:
            latest = max(latest, history.deadline)
        span = max(latest - begin, 1.0)
        units = (("s", 1.0, 300.0), ("min", 60.0, 7200.0), ("h", 3600.0, float("inf")))
        self.unit, self._size = next((name, size) for name, size, most in units if span <= most)
        self._history = history
        self.range = (self(begin - 0.01 * span), self(latest + 0.03 * span))
        self.title = f"Time since the start [{self.unit}]"

    def __call__(self, instant: float) -> float:
        """The position of a time on the axis."""
        return round((instant - self._history.started) / self._size, 3)

    def length(self, seconds: float) -> float:
        """The length of a duration on the axis."""
        return round(seconds / self._size, 3)

    @property
    def marks(self) -> tuple[VerticalMark, ...]:
        """The lines at the deadline and, while the study runs, at the present."""
        history = self._history
        marks = []
        if self.shows_deadline:
            marks.append(
                VerticalMark(
                    self(history.deadline), f"deadline {format_time_of_day(history.deadline)}"
                )
            )
        else:
            left = format_duration(history.deadline - history.end)
            marks.append(VerticalMark(self(history.end), f"deadline in {left} →", dotted=True))
        if self.shows_deadline and history.settled is None and history.time_left > 0:
            low, high = self.range
            near = self(history.deadline) - self(history.now) < 0.2 * (high - low)
            marks.append(VerticalMark(self(history.now), "" if near else "now", GREY, dotted=True))
        return tuple(marks)
