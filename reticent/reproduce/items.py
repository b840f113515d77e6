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
    "blt-tab1": Item("blt", "table1", 40, 40),
    "blt-tab2": Item("blt", "table2", 1, 1),
    "blt-tab4": Item("blt", "table4", 5, 5),
    "blt-fig1": Item("blt_figures", "figure1", 25, 90),
    "blt-fig3": Item("blt_figures", "figure3", 10, 60),
    "blt-fig4": Item("blt_figures", "figure4", 5, 5),
    "blt-fig5": Item("blt_figures", "figure5", 5, 5),
    "blt-fig6": Item("blt_figures", "figure6", 10, 10),
    "blt-fig7": Item("blt_figures", "figure7", 2, 5),
    "blt-fig8": Item("blt_figures", "figure8", 1, 1),
    "blt-fig9": Item("blt_launches", "figure9", 3, 5),
    "blt-fig10": Item("blt_launches", "figure10", 5, 120),
    "blt-fig12": Item("blt_figures", "figure12", 10, 15),
    "bandmf-tab2": Item("bandmf", "table2", 30, 600),
    "bandmf-tab3": Item("bandmf_figures", "table3", 12, 120),
    "bandmf-tab4": Item("bandmf", "table4", 1, 300),
    "bandmf-tab5": Item("bandmf", "table5", 2, 2),
    "bandmf-fig5": Item("bandmf_figures", "figure5", 30, 900),
    "bandmf-fig11": Item("bandmf_figures", "figure11", 10, 300),
    "gboard-tab1": Item("gboard", "table1", 1, 1),
    "gboard-tab2": Item("gboard", "table2", 1, 1),
    "gboard-fig4": Item("gboard", "figure4", 2, 5),
    "uldp-fig1": Item("uldp", "figure1", 6, 8),
    "uldp-fig2": Item("uldp", "figure2", 2, 5),
    "uldp-fig6": Item("uldp", "figure6", 3, 12),
    "uldp-fig7": Item("uldp_mean", "figure7", 12, 600),
    "dpfedavg-tab1": Item("dpfedavg", "table1", 8, 8),
    "dpfedavg-tab2": Item("dpfedavg", "table2", 2, 2),
}


def item_named(name: str) -> Item:
    """The line of a table or figure."""
    if name not in ITEMS:
        raise Refused(f"There is no table or figure {name!r}; `reticent reproduce list` shows all, such as blt-tab1.")
    return ITEMS[name]
