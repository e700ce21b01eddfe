"""A figure as a value: what is drawn, without saying by which library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optuna_deadline.history.records import History
from optuna_deadline.history.text import format_length, format_time_of_day

# Okabe and Ito's colours, which people with any colour vision tell apart.
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
    markers: bool = False  #: so that a curve of one point is seen
    texts: tuple[str, ...] = ()
    template: str = "{}"  #: around each of the texts
    group: str = ""  #: curves of one group come and go together in the legend


@dataclass(frozen=True)
class Area:
    """What lies between two curves."""

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
    """A vertical line with a word."""

    x: float
    words: str
    colour: str = VERMILLION
    dotted: bool = False


ChartPart = Bars | Line | Area | Points


@dataclass(frozen=True)
class Chart:
    """One figure."""

    title: str
    summary: str  #: what a person reads at a glance
    x_title: str
    y_title: str
    parts: tuple[ChartPart, ...]
    marks: tuple[VerticalMark, ...] = ()
    x_range: tuple[float, float] | None = None
    from_zero: bool = False
    x_ticks: tuple[tuple[float, str], ...] = ()
    y_ticks: tuple[tuple[float, str], ...] = ()


class Axis:
    """Instants as lengths since the study began, in the unit that fits.

    Args:
        history: The study's.
        to_deadline: Show all the time until the deadline, however far it is.
        since: Show nothing before this instant.
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
        self.title = f"Time since the study began [{self.unit}]"

    def __call__(self, instant: float) -> float:
        """Where an instant lies on the axis."""
        return round((instant - self._history.started) / self._size, 3)

    def length(self, seconds: float) -> float:
        """How long a length is on the axis."""
        return round(seconds / self._size, 3)

    @property
    def marks(self) -> tuple[VerticalMark, ...]:
        """The deadline, and now while the study goes on."""
        history = self._history
        marks = []
        if self.shows_deadline:
            marks.append(
                VerticalMark(
                    self(history.deadline), f"deadline {format_time_of_day(history.deadline)}"
                )
            )
        else:
            left = format_length(history.deadline - history.end)
            marks.append(VerticalMark(self(history.end), f"deadline in {left} →", dotted=True))
        if self.shows_deadline and history.settled is None and history.time_left > 0:
            low, high = self.range
            near = self(history.deadline) - self(history.now) < 0.2 * (high - low)
            marks.append(VerticalMark(self(history.now), "" if near else "now", GREY, dotted=True))
        return tuple(marks)
