"""Errors of a banded mechanism, and their gradient, in time rounds x bands^2.

The rows of B = A C^-1 are what the noise does to the model. A^-1 has three diagonals, so E = C A^-1 = B^-1 is banded
like C with one or two diagonals more, and a row of B follows from the few rows before it: the sum over l of E[i, i -
l] B[i - l] is a row of the identity. Going through the rounds in panels of a few rows, the products of the last rows
of B with each other are all that has to be carried; their adjoint, carried backwards, gives the gradient of any
function of the row norms. Panels as high as E is wide would make E block-bidiagonal; low ones need half the work.

Matrices with few diagonals are held by their columns: `columns[j, l]` is entry (j + l, j).
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from reticent.mechanisms.objective import Weigh
from reticent.mechanisms.workload import Workload


def inverse_workload(workload: Workload, rounds: int) -> np.ndarray:
    """A^-1, which has three diagonals, by columns. The learning rates must all be positive."""
    rates = np.append(workload.rates(rounds), [np.inf, np.inf])
    columns = np.zeros((rounds, 3))
    columns[:, 0] = 1 / rates[:-2]
    columns[:, 1] = -1 / rates[1:-1] - workload.momentum / rates[:-2]
    columns[:, 2] = workload.momentum / rates[1:-1]
    columns[-1, 1:] = 0
    columns[-2:, 2] = 0
    return columns


@dataclass(frozen=True)
class Panels:
    """How the rounds are cut: `reach` diagonals below the main one in E, `height` rows at a time."""

    rounds: int
    reach: int
    height: int

    @classmethod
    def of(cls, rounds: int, diagonals: int) -> "Panels":
        # Low panels save work and high ones overhead; measured best between, and as many as fill the reach.
        steps = max(1, round(diagonals / min(max(diagonals / 3, 8), 40)))
        height = -(-diagonals // steps)
        return cls(rounds, steps * height, height)

    @property
    def count(self) -> int:
        return -(-self.rounds // self.height)

    def cut(self, columns: np.ndarray) -> np.ndarray:
        """E by columns to panels: `[t, r, c]` is entry (row, column) = (t height + r, t height - reach + c)."""
        reach, height = self.reach, self.height
        padded = np.zeros((self.count * height + reach, reach + 1))
        padded[reach : reach + self.rounds, : columns.shape[1]] = columns
        padded[reach + self.rounds :, 0] = 1
        panels = np.zeros((self.count, height, reach + height))
        self._slanted(panels)[...] = self._by_rows(padded)
        return panels

    def uncut(self, panels: np.ndarray, diagonals: int) -> np.ndarray:
        """The transpose of `cut`."""
        padded = np.zeros((self.count * self.height + self.reach, self.reach + 1))
        self._by_rows(padded)[...] = self._slanted(panels)
        return padded[self.reach : self.reach + self.rounds, :diagonals]

    def _slanted(self, panels: np.ndarray) -> np.ndarray:
        item, height, width = panels.itemsize, self.height, self.reach + self.height
        shape, strides = (self.count, height, self.reach + 1), (height * width * item, (width + 1) * item, item)
        return as_strided(panels, shape, strides)

    def _by_rows(self, padded: np.ndarray) -> np.ndarray:
        item, height, width = padded.itemsize, self.height, self.reach + 1
        shape, strides = (self.count, height, width), (height * width * item, width * item, self.reach * item)
        return as_strided(padded.ravel()[self.reach :], shape, strides)


def times_inverse_workload(columns: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """E = C A^-1 by columns."""
    rounds, bands = columns.shape
    product = np.zeros((rounds, bands + (2 if inverse[:, 2].any() else 1)))
    product[:, :bands] = inverse[:, :1] * columns
    product[:-1, 1 : bands + 1] += inverse[:-1, 1:2] * columns[1:]
    if product.shape[1] > bands + 1:
        product[:-2, 2:] += inverse[:-2, 2:] * columns[2:]
    return product


def _times_inverse_workload_back(gradient: np.ndarray, inverse: np.ndarray, bands: int) -> np.ndarray:
    back = inverse[:, :1] * gradient[:, :bands]
    back[1:] += inverse[:-1, 1:2] * gradient[:-1, 1 : bands + 1]
    if gradient.shape[1] > bands + 1:
        back[2:] += inverse[:-2, 2:] * gradient[:-2, 2:]
    return back


def squared_errors(columns: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """The squared norms of the rows of A C^-1, for C by columns and A^-1 of `inverse_workload`."""
    product = times_inverse_workload(columns, inverse)
    panels = Panels.of(len(product), product.shape[1] - 1)
    return _forward(panels, panels.cut(product))[-1].diagonal(panels.reach, 1, 2).ravel()[: len(columns)].copy()


def loss_and_gradient(columns: np.ndarray, inverse: np.ndarray, weigh: Weigh) -> tuple[float, np.ndarray]:
    """`weigh` of the squared row norms of A C^-1, and its gradient with respect to C by columns."""
    product = times_inverse_workload(columns, inverse)
    panels = Panels.of(len(product), product.shape[1] - 1)
    factors, solved, covariances = _forward(panels, panels.cut(product))
    squares = covariances.diagonal(panels.reach, 1, 2).ravel()[: len(columns)]
    loss, weights = weigh(squares)
    if not np.isfinite(loss):
        return np.inf, columns
    slopes = _backward(panels, factors, solved, covariances, weights)
    return loss, _times_inverse_workload_back(panels.uncut(slopes, product.shape[1]), inverse, columns.shape[1])


def _forward(panels: Panels, cut: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per panel: the inverse R of its diagonal block, T = R S with S what is left of that, and the products of its
    rows of B with the `reach` rows before it and with themselves."""
    from scipy.linalg.lapack import dtrtri

    reach, height = panels.reach, panels.height
    factors = np.empty((panels.count, height, height))
    for panel, factor in zip(cut, factors, strict=True):
        factor[...] = dtrtri(np.ascontiguousarray(panel[:, reach:]).T, lower=0)[0].T
    solved = factors @ cut[:, :, :reach]
    covariances = np.empty_like(cut)
    covariances[:, :, reach:] = factors @ factors.transpose(0, 2, 1)
    window, spare = np.zeros((reach, reach)), np.empty((reach, reach))
    kept = reach - height
    for left, covariance in zip(solved, covariances, strict=True):
        cross = left @ window
        np.negative(cross, out=covariance[:, :reach])
        covariance[:, reach:] += cross @ left.T
        spare[:kept, :kept] = window[height:, height:]
        spare[kept:, :] = covariance[:, height:]
        spare[:kept, kept:] = spare[kept:, :kept].T
        window, spare = spare, window
    return factors, solved, covariances


def _backward(
    panels: Panels, factors: np.ndarray, solved: np.ndarray, covariances: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The gradient with respect to each panel of E."""
    reach, height = panels.reach, panels.height
    kept, steps = reach - height, panels.reach // panels.height
    padded = np.zeros(panels.count * height)
    padded[: len(weights)] = weights
    adjoint, spare = np.zeros((reach, reach)), np.empty((reach, reach))
    own = np.empty_like(factors)  # the adjoints of the products of a panel's rows with themselves
    to_solved = np.empty_like(solved)
    window = np.zeros((reach, reach))
    _restore(window, covariances, panels.count - 1, range(steps), panels)
    for t in range(panels.count - 1, -1, -1):
        left = solved[t]
        own[t] = adjoint[kept:, kept:]
        own[t].flat[:: height + 1] += padded[t * height : (t + 1) * height]
        pushed = own[t] @ left
        pulled = pushed.copy()  # adjoint of the products of this panel's rows with the rows before
        pulled[:, height:] -= adjoint[kept:, :kept]
        np.matmul(2 * pulled, window, out=to_solved[t])
        pulled[...] -= 0.5 * pushed
        half = left.T @ pulled
        np.add(half, half.T, out=spare)
        spare[height:, height:] += adjoint[:kept, :kept]
        adjoint, spare = spare, adjoint
        if t:  # one panel back: the rows that left the window come in again
            window[height:, height:] = window[:kept, :kept].copy()
            _restore(window, covariances, t - 1, range(1), panels)
    slopes = np.empty_like(covariances)
    transposed = factors.transpose(0, 2, 1)
    np.matmul(transposed, to_solved, out=slopes[:, :, :reach])
    inner = to_solved @ solved.transpose(0, 2, 1) + 2 * own @ (factors @ transposed)
    slopes[:, :, reach:] = -(transposed @ inner)
    return slopes


def _restore(window: np.ndarray, covariances: np.ndarray, t: int, columns: range, panels: Panels) -> None:
    """Fills block columns of the covariance of the `reach` rows before panel t, and the same block rows."""
    reach, height = panels.reach, panels.height
    steps = reach // height
    for column in columns:
        for row in range(column, steps):
            source, at = t - steps + row, reach - (row - column) * height
            block = covariances[source][:, at : at + height] if source >= 0 else 0.0
            rows, across = slice(row * height, (row + 1) * height), slice(column * height, (column + 1) * height)
            window[rows, across] = block
            window[across, rows] = np.transpose(block)
