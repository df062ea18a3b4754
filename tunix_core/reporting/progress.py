"""What a running training says on the console: live on a terminal, one line a step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table


class Progress:
    """Shows steps, per-suite scores, speed, staleness, and what the run waits for.

    Args:
        steps: how many the run will take.
        done: how many it has taken.
        waiting: what the run waits for now, in words; asked whenever the screen is drawn.
    """

    def __init__(
        self, steps: int, *, done: int = 0, waiting: Callable[[], str] = str, console: Console | None = None
    ) -> None:
        self.console = console or Console()
        self._waiting = waiting
        self._row: Mapping[str, float] = {}
        self._bar = Bar(
            "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=self.console
        )
        self._task = self._bar.add_task("step", total=steps, completed=done)
        self._live = Live(get_renderable=self._draw, console=self.console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays, however long."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, row: Mapping[str, float]) -> None:
        """Takes a step's metrics row."""
        self._row = row
        self._bar.update(self._task, completed=row["step"] + 1)
        if not self.console.is_terminal:
            self.say(_line(row))

    def _draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, value in _shown(self._row):
            table.add_row(escape(name), value)
        table.add_row("waiting for", escape(self._waiting()))
        return Group(self._bar, table)


def _shown(row: Mapping[str, float]) -> list[tuple[str, str]]:
    suites = [
        (name.split("/", 1)[1].rsplit("/", 1)[0], value) for name, value in row.items() if name.endswith("/score")
    ]
    shown = [(name, f"{value:.3f}") for name, value in suites]
    for key, label, form in (
        ("tokens_per_s", "sampled tokens/s", "{:,.0f}"),
        ("staleness_mean", "staleness", "{:.2f}"),
        ("grad_norm", "gradient norm", "{:.3f}"),
    ):
        if key in row:
            none = key == "staleness_mean" and not row["trained_tokens"]  # the mean over no tokens is told as 0
            shown.append((label, "–" if none else form.format(row[key])))
    return shown


def _line(row: Mapping[str, float]) -> str:
    return f"step {row['step'] + 1:.0f}  " + "  ".join(f"{name} {value}" for name, value in _shown(row))
