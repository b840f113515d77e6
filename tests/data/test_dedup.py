import gzip
import json

import numpy as np
import pytest

from reticent.data.dedup import PrivateTexts, dedup
from reticent.data.domains import domain, domains, listed, read_domains
from reticent.data.importing import import_store
from reticent.data.sources import Source
from reticent.data.store import Store, StoreWriter
from reticent.data.tokenizers import WordTokenizer
from reticent.errors import Refused

WORDS = [f"word{number}" for number in range(400)]
generator = np.random.default_rng(0)


def some_text(words=30):
    return " ".join(generator.choice(WORDS, words))


@pytest.fixture(scope="module")
def private():
    return [some_text() for _ in range(40)] + ["only four words here"]


@pytest.fixture(scope="module")
def store(private, tmp_path_factory):
    pytest.importorskip("datasketch")
    path, tokenizer = tmp_path_factory.mktemp("dedup") / "store", WordTokenizer(WORDS)
    with StoreWriter(path, tokenizer) as writer:
        for number, text in enumerate(private):
            writer.add_user(f"person {number}", [tokenizer.encode(text)])
    return Store.open(path)


def with_changes(text, count):
    words = text.split()
    for place in range(count):
        words[place * 7 + 3] = "changed"
    return " ".join(words)


def jaccard(one, other, shingle=5):
    first, second = (
        {tuple(words[place : place + shingle]) for place in range(len(words) - shingle + 1)}
        for words in (one.split(), other.split())
    )
    return len(first & second) / len(first | second)


def test_what_is_nearly_the_same_is_found_and_nothing_else(store, private):
    texts = PrivateTexts(store)
    assert (len(texts), texts.too_short) == (40, 1)
    assert all(texts.repeated(text) for text in private[:40])
    assert all(texts.repeated(text.upper() + " !") for text in private[:40])
    assert not any(texts.repeated(some_text()) for _ in range(200))
    assert not texts.repeated("only four words here")
    assert not texts.repeated("nothing of which the vocabulary knows a single word at all")
    assert not texts.repeated("")
    # A line that repeats a private text is enough, wherever it stands.
    assert texts.repeated(f"{some_text()}\n{private[3]}\n{some_text()}")


def test_the_threshold_is_a_jaccard_similarity(store, private):
    near = [(text, with_changes(text, 1)) for text in private[:40]]
    far = [(text, with_changes(text, 3)) for text in private[:40]]
    assert all(0.6 < jaccard(*pair) < 0.85 for pair in near)
    assert all(jaccard(*pair) < 0.45 for pair in far)
    loose = PrivateTexts(store, threshold=0.5)
    # An estimate from 128 values: hardly any pair is on the wrong side of a distance of 0.1.
    assert sum(loose.repeated(changed) for _, changed in near) >= 38
    assert sum(loose.repeated(changed) for _, changed in far) <= 4
    assert sum(PrivateTexts(store, threshold=0.95).repeated(changed) for _, changed in near) == 0


def c4_rows(private):
    return [
        {"text": some_text(), "timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/a"},
        {"text": private[0], "timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/b"},
        {
            "text": some_text(),
            "timestamp": "2019-04-25T12:57:54Z",
            "url": "http://meta.stackoverflow.com:80/questions?x=1",
        },
        {"text": f"{some_text()}\n{private[7]}", "timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/c"},
        {"text": None, "timestamp": "2019-04-25T12:57:54Z", "url": "https://example.org/ž"},
    ]


def test_files_shaped_as_c4_keep_their_other_rows_byte_for_byte(store, private, tmp_path):
    rows = c4_rows(private)
    (tmp_path / "c4").mkdir()
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    with gzip.open(tmp_path / "c4" / "c4-train.00000-of-00001.json.gz", "wb") as file:
        file.writelines(lines)
    (tmp_path / "names").write_text("# as in the paper\nhttps://www.stackoverflow.com/\n")
    found = dedup(
        tmp_path / "c4",
        [store],
        tmp_path / "out",
        url_column="url",
        drop=read_domains(tmp_path / "names"),
    )
    assert {key: found[key] for key in ("rows", "kept", "near_duplicates", "listed_domains")} == {
        "rows": 5, "kept": 2, "near_duplicates": 2, "listed_domains": 1,
    }  # fmt: skip
    with gzip.open(tmp_path / "out" / "c4-train.00000-of-00001.json.gz") as file:
        assert file.read() == lines[0] + lines[4]
    assert not list(tmp_path.glob(".*"))


def test_parquet_keeps_its_columns(store, private, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(c4_rows(private))
    pq.write_table(table, tmp_path / "in.parquet")
    found = dedup(tmp_path / "in.parquet", [store], tmp_path / "out.parquet")
    assert (found["kept"], found["near_duplicates"], found["private_texts"]) == (3, 2, 40)
    assert pq.read_table(tmp_path / "out.parquet").equals(table.take([0, 2, 4]))


def test_what_cannot_be_compared_is_refused(store, tmp_path):
    with pytest.raises(Refused, match="no file or folder"):
        dedup(tmp_path / "none", [store], tmp_path / "out")
    path = tmp_path / "in.jsonl"
    path.write_text('{"body": "x"}\n')
    with pytest.raises(Refused, match="no column 'text'; name another with --text-column: 'body'"):
        dedup(path, [store], tmp_path / "out")
    with pytest.raises(Refused, match="say --url-column"):
        dedup(path, [store], tmp_path / "out", drop=frozenset({"a.b"}))
    with pytest.raises(Refused, match="threshold is a similarity"):
        dedup(path, [store], tmp_path / "out", text_column="body", threshold=0)
    path.write_text('{"text": "x"}\n[1]\n')
    with pytest.raises(Refused, match=r"line 2, is no JSON object"):
        dedup(path, [store], tmp_path / "out")
    (tmp_path / "there").touch()
    with pytest.raises(Refused, match="exists"):
        dedup(path, [store], tmp_path / "there")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", "there"]
    (tmp_path / "names").write_text("not a domain\n")
    with pytest.raises(Refused, match="is no domain"):
        read_domains(tmp_path / "names")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://www.Example.org/a/b?c=d#e", "example.org"),
        ("http://user:secret@news.example.co.uk:8080/x", "news.example.co.uk"),
        ("//example.org", "example.org"),
        ("example.org./x", "example.org"),
        ("https://example.org?u=http://other.net/", "example.org"),
        ("mailto:ann@example.org", "example.org"),
        ("localhost", None),
        ("not a url", None),
        ("", None),
    ],
)
def test_the_domain_of_a_url(url, expected):
    import pyarrow as pa

    assert domain(url) == expected
    assert domains(pa.array([url], pa.large_string())).to_pylist() == [expected]


def test_a_listed_domain_covers_what_is_below_it():
    names = frozenset({"stackoverflow.com"})
    assert listed("https://meta.stackoverflow.com/q", names)
    assert not listed("https://notstackoverflow.com/q", names)
    assert not listed("nonsense", names)


def test_files_shaped_as_cc_news_are_divided_by_domain(tmp_path):
    more = {"title": "t", "domain": "www.news.org", "date": "2019", "description": "", "image_url": ""}
    rows = [
        {**more, "text": "word1 word2", "url": url}
        for url in ("https://www.news.org/1", "http://news.org/2", "https://daily.net/3", "gone")
    ]
    (tmp_path / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Source(str(tmp_path / "news.jsonl"), "url", "text", by_domain=True)
    summary = import_store(source, tmp_path / "news", WordTokenizer(WORDS))
    opened = Store.open(tmp_path / "news")
    assert sorted(opened.user_ids) == ["daily.net", "news.org"]
    assert len(opened.examples(opened.index("news.org"))) == 2
    assert (summary["rows"], summary["kept"], summary["missing_user"]) == (4, 3, 1)
    assert opened.header["about"]["users_are"] == "base domains of URLs"
