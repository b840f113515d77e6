import numpy as np
import pytest

from reticent.data.show import describe, draw, import_lines, lines
from reticent.errors import Refused


def test_facts(store, people):
    facts = describe(store)
    counts = [len(examples) for examples in people.values()]
    assert facts["users"] == len(people)
    assert facts["examples"] == sum(counts)
    assert facts["examples_per_user"]["p50"] == np.median(counts)
    assert facts["examples_per_user"]["p100"] == max(counts)
    assert facts["tokens"] == store.header["tokens"]
    text = "\n".join(lines(facts))
    assert f"{len(people)} users" in text
    assert "54 ids" in text


def test_generated_data_and_leaks_are_labelled(store):
    facts = {**describe(store), "about": {"generated": True}}
    assert "GENERATED" in "\n".join(lines(facts))
    facts["vocabulary"] = {"source": "leak", "meaning": "counted"}
    assert "LEAKS" in "\n".join(lines(facts))
    facts["vocabulary"] = {"source": "private discovery", "guarantee": {"rho": 0.5, "delta": 1e-9}}
    assert "rho 0.5 and delta 1e-09" in "\n".join(lines(facts))


def test_every_count_of_an_import_is_shown():
    names = "rows kept missing_user empty_text too_long malformed invalid_utf8 without_tokens users_without_text"
    names += " users_with_one_word users_differing_in_case unknown_tokens users examples tokens"
    summary = {name: 1000 + place for place, name in enumerate(names.split())}
    text = "\n".join(import_lines(summary))
    for name, number in summary.items():
        assert name in ("kept", "unknown_tokens") or f"{number:,}" in text, name


def test_the_histogram(store, tmp_path):
    draw(store, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(Refused, match="PNG"):
        draw(store, tmp_path / "a.pdf")
    with pytest.raises(Refused, match="does not exist"):
        draw(store, tmp_path / "no" / "a.png")
