"""Draws docs/protected.png: what is released, with one person and without, and what an attacker can make of it."""

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot

from reticent.accounting.gaussian import rho_of_gaussian

EPSILON, DELTA = 2.0, 1e-6

# One release of one Gaussian: what one person moves it by, in standard deviations of its noise.
shift = float(np.sqrt(2 * rho_of_gaussian(EPSILON, DELTA)))
place = np.linspace(-4, 4 + shift, 600)
figure, axes = pyplot.subplots(figsize=(9, 3.2), layout="constrained")
for centre, name, colour in ((0.0, "trained without you", "tab:blue"), (shift, "trained with you", "tab:orange")):
    density = np.exp(-((place - centre) ** 2) / 2) / np.sqrt(2 * np.pi)
    axes.plot(place, density, label=name, color=colour, linewidth=1.6)
    axes.fill_between(place, density, color=colour, alpha=0.12)
axes.set(xlabel="what is released (one number of it)", yticks=[], title=f"It may come from either: ε = {EPSILON:g}")
axes.legend(frameon=False)
axes.spines[["top", "right", "left"]].set_visible(False)
figure.savefig("docs/protected.png", dpi=130)
