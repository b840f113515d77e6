"""What is in a store, as numbers, lines and a picture: facts about private text, covered by no guarantee."""

from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.store import Store
from reticent.errors import Refused

PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)


def describe(store: Store) -> dict[str, Any]:
    """Counts and percentiles of a store."""
    examples, tokens = store.examples_per_user, store.tokens_per_user
    return {
        "store": str(store.path),
        "digest": store.digest,
        "users": store.users,
        "examples": int(examples.sum()),
        "tokens": int(tokens.sum()),
        "examples_per_user": _percentiles(examples),
        "tokens_per_user": _percentiles(tokens),
        "tokenizer": store.header["tokenizer"],
        "vocabulary": store.header["vocabulary"],
        "about": store.header["about"],
        "forgotten": store.header.get("forgotten", 0),
    }


def _percentiles(values: np.ndarray) -> dict[str, float]:
    points = np.percentile(values, PERCENTILES).tolist()
    return {f"p{percent}": point for percent, point in zip(PERCENTILES, points, strict=True)} | {
        "mean": float(values.mean())
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """The facts as lines for people."""
    kind = facts["tokenizer"]
    result = [f"{facts['store']}  (digest {facts['digest'][:12]})"]
    if facts["about"].get("generated"):
        result.append("GENERATED data: no real person wrote this.")
    result += [
        f"{facts['users']:,} users, {facts['examples']:,} examples, {facts['tokens']:,} tokens (frames included)",
        f"tokenizer: {kind['kind']}, {kind['size']:,} ids; vocabulary: {vocabulary_line(facts['vocabulary'])}",
        "per user   " + "".join(f"{name:>10}" for name in facts["tokens_per_user"]),
    ]
    for name in ("examples", "tokens"):
        result.append(f"{name:<11}" + "".join(f"{value:>10,.0f}" for value in facts[f"{name}_per_user"].values()))
    if facts["forgotten"]:
        result.append(f"{facts['forgotten']:,} users were forgotten")
    if "import" in facts["about"]:
        result += import_lines(facts["about"]["import"])
    return result


def vocabulary_line(origin: dict[str, Any]) -> str:
    """Where a vocabulary comes from, in words."""
    if "guarantee" in origin:
        found = origin["guarantee"]
        return f"{origin['source']}, rho {found['rho']:g} and delta {found['delta']:g} per user"
    if origin["source"] == "leak":
        return f"LEAKS, {origin['meaning']}"
    return " ".join(str(part) for part in (origin["source"], origin.get("name", "")) if part)


def import_lines(summary: dict[str, Any]) -> list[str]:
    """The summary of an import: every row that was read, and what became of it."""
    reasons = {
        "missing_user": "without a user",
        "empty_text": "without text",
        "too_long": "too long (text above 16 MiB or user id above 1 KiB)",
        "malformed": "malformed",
        "without_tokens": "without a token",
    }
    left_out = {said: summary[name] for name, said in reasons.items() if summary[name]}
    result = [
        f"read {summary['rows']:,} rows: {summary['examples']:,} examples of {summary['users']:,} users, "
        f"{summary['tokens']:,} tokens"
    ]
    if left_out:
        result.append("left out: " + ", ".join(f"{number:,} {said}" for said, number in left_out.items()))
    if summary["users_without_text"]:
        result.append(f"{summary['users_without_text']:,} users had no text with a token and are not in the store")
    if summary["invalid_utf8"]:
        result.append(f"{summary['invalid_utf8']:,} rows had invalid UTF-8; the bad bytes were replaced")
    if summary["users_with_one_word"]:
        result.append(f"{summary['users_with_one_word']:,} users have one word in all; they are kept")
    if summary["users_differing_in_case"]:
        result.append(
            f"{summary['users_differing_in_case']:,} users have ids that differ only in case and are kept apart; if "
            "they are the same people, put all ids in one case and import again: two ids of a person protect it less"
        )
    words = max(summary["tokens"] - 2 * summary["examples"], 1)
    result.append(f"{100 * summary['unknown_tokens'] / words:.2f} % of the words are unknown to the vocabulary")
    return result


def draw(store: Store, path: Path) -> None:
    """Writes a PNG with histograms of examples and tokens per user, on logarithmic axes."""
    if path.suffix.lower() != ".png":
        raise Refused(f"The histogram is a PNG file; name it so, not {path.name}.")
    if not path.parent.is_dir():
        raise Refused(f"The folder {path.parent} does not exist; create it first.")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, (name, values) in zip(
        figure.subplots(1, 2),
        (("examples", store.examples_per_user), ("tokens", store.tokens_per_user)),
        strict=True,
    ):
        values = values[values > 0]
        edges = np.unique(np.floor(np.geomspace(1, values.max() + 1, 50)))
        axes.hist(values, bins=np.append(edges, values.max() + 1), color="#3b6ea5")
        axes.set(xscale="log", yscale="log", xlabel=f"{name} per user", ylabel="users")
        axes.axvline(np.median(values), color="#c44", linewidth=1)
        axes.set_title(f"median {np.median(values):,.0f}")
    figure.savefig(path, dpi=120, metadata={"Software": None})
