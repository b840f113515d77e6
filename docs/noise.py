"""Draws docs/noise.png: the error of a model under independent noise, a tree and a BLT, at the same guarantee."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from reticent.mechanisms import Participation, make

participation = Participation(rounds=2052, min_separation=342)
figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
for kind, name in (("independent", "independent noise"), ("tree", "tree aggregation"), ("blt", "BLT, 4 buffers")):
    mechanism = make(kind, participation)
    axes.plot(mechanism.errors(2052) * mechanism.sensitivity(participation).value, label=name, linewidth=1.6)
axes.set(xlabel="round", ylabel="noise in the model", title="The same guarantee, three mechanisms", yscale="log")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure.savefig("docs/noise.png", dpi=130)
