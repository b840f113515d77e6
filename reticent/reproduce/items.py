"""All tables and figures by name: one line each. Their code is imported when they are asked for."""

import importlib
from dataclasses import dataclass

from reticent.errors import Refused
from reticent.reproduce.result import Result


@dataclass(frozen=True)
class Item:
    """Where one is made, by a function of `fast`, and about how many seconds that takes on two cores: `fast` with fewer
    points or without its dearest mechanisms, and all of it."""

    module: str
    function: str
    fast: int
    slow: int

    def make(self, fast: bool) -> Result:
        """The table or figure."""
        return getattr(importlib.import_module(f"reticent.reproduce.{self.module}"), self.function)(fast)

    @property
    def what(self) -> str:
        """What it shows, in a line."""
        function = getattr(importlib.import_module(f"reticent.reproduce.{self.module}"), self.function)
        return function.__doc__.splitlines()[0]


ITEMS = {
    "blt-tab1": Item("blt", "table1", 30, 30),
    "blt-tab2": Item("blt", "table2", 1, 1),
    "blt-tab4": Item("blt", "table4", 5, 5),
    "blt-fig1": Item("blt_figures", "figure1", 60, 300),
    "blt-fig3": Item("blt_figures", "figure3", 20, 120),
    "blt-fig4": Item("blt_figures", "figure4", 10, 10),
    "blt-fig5": Item("blt_figures", "figure5", 10, 10),
    "blt-fig6": Item("blt_figures", "figure6", 20, 20),
    "blt-fig7": Item("blt_figures", "figure7", 5, 5),
    "blt-fig8": Item("blt_figures", "figure8", 1, 1),
    "blt-fig12": Item("blt_figures", "figure12", 10, 10),
    "gboard-tab1": Item("gboard", "table1", 1, 1),
    "gboard-tab2": Item("gboard", "table2", 1, 1),
    "gboard-fig4": Item("gboard", "figure4", 2, 5),
    "dpfedavg-tab1": Item("dpfedavg", "table1", 8, 8),
    "dpfedavg-tab2": Item("dpfedavg", "table2", 2, 2),
}


def item_named(name: str) -> Item:
    """The line of a table or figure."""
    if name not in ITEMS:
        raise Refused(f"There is no table or figure {name!r}; `reticent reproduce list` shows all, such as blt-tab1.")
    return ITEMS[name]
