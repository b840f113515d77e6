import collections
import csv
import gzip
import json
import os
import random
import sqlite3
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.data import importing, rowfiles
from reticent.data.importing import import_store
from reticent.data.sources import Source
from reticent.data.store import Store
from reticent.data.tokenizers import WordTokenizer
from reticent.errors import Refused

WORDS = [f"w{index}" for index in range(40)]


@pytest.fixture
def rows():
    generator = random.Random(0)
    users = [f"user {index}" for index in range(30)] + ["Ann", "ann", "žofie"]
    made = [
        (generator.choice(users), " ".join(generator.choices(WORDS, k=generator.randint(1, 12)))) for _ in range(700)
    ]
    return [*made, ("single", "w1"), ("quote", 'w1 "w2", w3\nw4 w5')]


def grouped(rows, tokenizer):
    """What must be in the store: said with a dictionary."""
    result = collections.defaultdict(list)
    for user, text in rows:
        result[user].append(tokenizer.encode(text).tolist())
    return dict(result)


def content(store):
    return {user: [example.tolist() for example in store.examples(index)] for index, user in enumerate(store.user_ids)}


def write_csv(path, rows, delimiter=",", opener=open):
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([("extra", "user", "text"), *(("x", *row) for row in rows)])


def write_jsonl(path, rows, opener=open):
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"user": user, "text": text}) + "\n" for user, text in rows)


def write_parquet(path, rows, **types):
    columns = {"user": pa.array([user for user, _ in rows]), "text": pa.array([text for _, text in rows])}
    pq.write_table(
        pa.table({name: column.cast(types.get(name, pa.string())) for name, column in columns.items()}), path
    )


def serialised(features):
    """A tf.train.Example as bytes."""

    def field(number, payload):
        size, prefix = len(payload), b""
        while size > 127:
            prefix += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + prefix + bytes([size]) + payload

    entries = b"".join(
        field(1, field(1, name.encode()) + field(2, field(1, field(1, value)) if isinstance(value, bytes) else value))
        for name, value in features.items()
    )
    return field(1, entries)


def write_sqlite(path, rows, split="train"):
    # Int64List{value: [5]} beside the text, as `score` is in StackOverflow.
    number = bytes([3 << 3 | 2, 3, 1 << 3 | 2, 1, 5])
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        database.executemany(
            "INSERT INTO examples VALUES (?, ?, ?)",
            [
                (split, user, serialised({"score": number, "tokens": text.encode(), "title": b"w0"}))
                for user, text in rows
            ],
        )
    database.close()


def write_folder(path, rows):
    path.mkdir()
    write_parquet(path / "part-0.parquet", rows[:100])
    write_parquet(path / "part-1.parquet", rows[100:], user=pa.large_string())


def write_dataset(path, rows):
    import datasets

    table = {"user": [user for user, _ in rows], "text": [text for _, text in rows]}
    datasets.Dataset.from_dict(table).save_to_disk(path)


def write_dataset_dict(path, rows):
    import datasets

    table = {"user": [user for user, _ in rows], "text": [text for _, text in rows]}
    parts = {
        "train": datasets.Dataset.from_dict(table),
        "test": datasets.Dataset.from_dict({"user": ["t"], "text": ["w0"]}),
    }
    datasets.DatasetDict(parts).save_to_disk(path)


FORMATS = {
    "a.csv": write_csv,
    "a.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "a.csv.gz": lambda path, rows: write_csv(path, rows, opener=gzip.open),
    "a.jsonl": write_jsonl,
    "a.jsonl.gz": lambda path, rows: write_jsonl(path, rows, opener=gzip.open),
    "a.parquet": write_parquet,
    "b.parquet": lambda path, rows: write_parquet(path, rows, user=pa.dictionary(pa.int32(), pa.string())),
    "c.parquet": lambda path, rows: write_parquet(path, rows, user=pa.binary(), text=pa.large_string()),
    "a.sqlite": write_sqlite,
    "folder": write_folder,
    "dataset": write_dataset,
    "datasets": write_dataset_dict,
}


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_source_gives_the_same_store(tmp_path, rows, name):
    FORMATS[name](tmp_path / name, rows)
    columns = (None, None) if name == "a.sqlite" else ("user", "text")
    tokenizer = WordTokenizer(WORDS)
    split = "train" if name == "datasets" else None
    summary = import_store(Source(str(tmp_path / name), *columns, split), tmp_path / "store", tokenizer)
    store = Store.open(tmp_path / "store")
    store.verify()
    assert content(store) == grouped(rows, tokenizer)
    assert list(store.user_ids) == sorted({user for user, _ in rows}, key=str.encode)
    assert summary == store.header["about"]["import"]
    assert (summary["rows"], summary["kept"], summary["examples"]) == (len(rows),) * 3
    assert (summary["users"], summary["users_with_one_word"], summary["users_differing_in_case"]) == (35, 1, 2)
    assert "last_user" not in store.header["about"]
    assert sorted(os.listdir(tmp_path)) == sorted([name, "store"])


texts = st.text(st.sampled_from("ab .,'\"\n\té\x00\u2028"), max_size=12)
names = st.sampled_from(["a", "A", "b", " b", "b,c", 'q"', "é", "l\nm", "\u2028", ""])


@settings(deadline=None, max_examples=20)
@given(rows=st.lists(st.tuples(names, texts), min_size=1, max_size=30), kind=st.sampled_from([".csv", ".jsonl"]))
def test_every_row_is_in_the_store_or_counted(tmp_path_factory, rows, kind):
    folder = tmp_path_factory.mktemp("rows")
    tokenizer = WordTokenizer(["a", "b"], split="spaces")
    kept = [(user, text) for user, text in rows if user.strip() and text.split()]
    FORMATS["a" + kind](folder / f"a{kind}", rows)
    source = Source(str(folder / f"a{kind}"), "user", "text")
    if not kept:
        with pytest.raises(Refused, match=r"no row to import|no text"):
            import_store(source, folder / "store", tokenizer)
        assert os.listdir(folder) == [f"a{kind}"]
        return
    summary = import_store(source, folder / "store", tokenizer)
    assert content(Store.open(folder / "store")) == grouped(kept, tokenizer)
    left_out = ("missing_user", "empty_text", "too_long", "malformed", "without_tokens")
    assert summary["rows"] == len(rows) == summary["examples"] + sum(summary[reason] for reason in left_out)
    assert summary["missing_user"] == sum(not user.strip() for user, _ in rows)


def test_users_over_many_batches_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "rows_at_once", lambda metadata, size=0: 7)
    generator = random.Random(1)
    rows = [
        (generator.choice(["big"] * 30 + list("abcdefgh")), generator.choice([*WORDS, "..", "..."])) for _ in range(400)
    ]
    write_csv(tmp_path / "a.csv", rows)
    tokenizer = WordTokenizer(WORDS)
    # Dots are words that the tokenizer splits off; a text without a token needs a tokenizer that makes none.
    tokenizer.encode_batch = lambda texts, real=tokenizer.encode_batch: real([text.strip(".") for text in texts])
    summary = import_store(Source(str(tmp_path / "a.csv"), "user", "text"), tmp_path / "store", tokenizer)
    kept = [row for row in rows if row[1].strip(".")]
    assert content(Store.open(tmp_path / "store")) == grouped(kept, WordTokenizer(WORDS))
    assert summary["without_tokens"] == len(rows) - len(kept)
    assert summary["users_without_text"] == len({user for user, _ in rows}) - len({user for user, _ in kept})


def run(tmp_path, name, data, **options):
    (tmp_path / name).write_bytes(data)
    source = Source(str(tmp_path / name), options.pop("user", "user"), options.pop("text", "text"), **options)
    summary = import_store(source, tmp_path / "store", WordTokenizer(["hello", "\ufffd"], "spaces"))
    return summary, content(Store.open(tmp_path / "store"))


def test_bad_rows_of_csv_are_counted(tmp_path):
    data = b'\xef\xbb\xbfuser,text\nann,hello\n,hello\n  ,hello\nann,\nann,"  "\nann\nann,hello,more\n\nbob,hello'
    summary, found = run(tmp_path, "a.csv", data)
    assert found == {"ann": [[1, 4, 2]], "bob": [[1, 4, 2]]}
    counted = {name: summary[name] for name in ("rows", "kept", "missing_user", "empty_text", "malformed")}
    assert counted == {"rows": 8, "kept": 2, "missing_user": 2, "empty_text": 2, "malformed": 2}


def test_bad_rows_of_jsonl_are_counted(tmp_path):
    lines = [
        '{"user": "ann", "text": "hello"}',
        '{"user": null, "text": "hello"}',
        '{"text": "hello"}',
        '{"user": NaN, "text": "hello"}',
        '{"user": 7, "text": "hello"}',
        '{"user": "ann", "text": null}',
        '{"user": "ann", "text": ["hello"]}',
        '{"user": true, "text": "hello"}',
        "[1, 2]",
        "{broken",
        "",
    ]
    summary, found = run(tmp_path, "a.jsonl", "\n".join(lines).encode())
    assert found == {"ann": [[1, 4, 2]], "7": [[1, 4, 2]]}
    counted = {name: summary[name] for name in ("rows", "kept", "missing_user", "empty_text", "malformed")}
    assert counted == {"rows": 10, "kept": 2, "missing_user": 3, "empty_text": 1, "malformed": 4}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"user,text\n\xff,hello\n\xfe,hello\nann,hello \xff\nann,hello\n"),
        (
            "a.jsonl",
            b'{"user": "\xff", "text": "hello"}\n{"user": "\xfe", "text": "hello"}\n'
            b'{"user": "ann", "text": "hello \\ud800"}\n{"user": "ann", "text": "hello"}\n',
        ),
    ],
)
def test_invalid_utf8_is_kept_and_counted(tmp_path, name, data):
    summary, found = run(tmp_path, name, data)
    text = found.pop("ann")
    assert found == {r"\xff": [[1, 4, 2]], r"\xfe": [[1, 4, 2]]}
    # One bad byte, or the three of a lone surrogate.
    assert text[0] in ([1, 4, 5, 2], [1, 4, 3, 2])
    assert text[1] == [1, 4, 2]
    assert summary["invalid_utf8"] == 3


def test_invalid_utf8_in_parquet(tmp_path):
    raw = pa.array([b"\xff", b"ann"], pa.binary())
    table = pa.table({"user": raw, "text": pa.array([b"hello", b"\xe9"], pa.binary())})
    pq.write_table(table, tmp_path / "x.parquet")
    summary, found = run(tmp_path, "a.parquet", (tmp_path / "x.parquet").read_bytes())
    assert found == {r"\xff": [[1, 4, 2]], "ann": [[1, 5, 2]]}
    assert summary["invalid_utf8"] == 2


def test_numbers_as_users(tmp_path):
    table = pa.table({"user": pa.array([3, None, 3, 12]), "text": ["hello"] * 4})
    pq.write_table(table, tmp_path / "x.parquet")
    summary, found = run(tmp_path, "a.parquet", (tmp_path / "x.parquet").read_bytes())
    assert found == {"3": [[1, 4, 2]] * 2, "12": [[1, 4, 2]]}
    assert summary["missing_user"] == 1
    table = pa.table({"user": pa.array([float("nan"), 2.5]), "text": ["hello"] * 2})
    pq.write_table(table, tmp_path / "y.parquet")
    (tmp_path / "more").mkdir()
    summary, found = run(tmp_path / "more", "a.parquet", (tmp_path / "y.parquet").read_bytes())
    assert found == {"2.5": [[1, 4, 2]]}
    assert summary["missing_user"] == 1


def test_long_lines_are_left_out_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(rowfiles, "MAX_TEXT_BYTES", 100)
    long = b"x" * 1005
    data = b"user,text\nann,hello\nann," + long + b'\nbob,hello\nbob,"' + long + b'"\ncid,hello\ncid,' + long
    summary, found = run(tmp_path, "a.csv", data)
    assert found == {"ann": [[1, 4, 2]], "bob": [[1, 4, 2]], "cid": [[1, 4, 2]]}
    assert (summary["rows"], summary["too_long"]) == (6, 3)
    lines = [
        b'{"user": "a", "text": "hello"}',
        b'{"user": "a", "text": "' + long + b'"}',
        b'{"user": "b", "text": "hello"}',
    ]
    (tmp_path / "more").mkdir()
    summary, found = run(tmp_path / "more", "a.jsonl", b"\n".join(lines))
    assert found == {"a": [[1, 4, 2]], "b": [[1, 4, 2]]}
    assert (summary["rows"], summary["too_long"]) == (3, 1)


@pytest.mark.full
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_line_of_ten_gigabytes(tmp_path, name):
    parts = {
        "a.csv": (b'user,text\na,w1\nb,"', b'"\nc,w1\n'),
        "a.jsonl": (b'{"user": "a", "text": "w1"}\n{"user": "b", "text": "', b'"}\n{"user": "c", "text": "w1"}\n'),
    }
    with open(tmp_path / name, "wb") as file:
        file.write(parts[name][0])
        # A hole: ten gigabytes to whoever reads it, nothing on disk.
        file.seek(10 * 2**30, os.SEEK_CUR)
        file.write(parts[name][1])
    code = (
        "import json, resource, sys; from reticent.data.importing import import_store;"
        "from reticent.data.sources import Source; from reticent.data.tokenizers import WordTokenizer;"
        "summary = import_store(Source(sys.argv[1], 'user', 'text'), sys.argv[2], WordTokenizer(['w1']));"
        "print(json.dumps([summary, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / name), str(tmp_path / "store")]
    summary, kilobytes = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    assert (summary["rows"], summary["examples"], summary["too_long"]) == (3, 2, 1)
    assert kilobytes < 2**19


def test_texts_that_were_sorted_in_pieces_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_PIECE", 3)
    monkeypatch.setattr(importing, "rows_at_once", lambda metadata, size=0: 5)
    generator = random.Random(2)
    rows = [
        (generator.choice("abc"), "é" * generator.randint(1, 3) + "x" * generator.randint(0, 40)) for _ in range(60)
    ]
    words = sorted({text for _, text in rows})
    write_csv(tmp_path / "a.csv", rows)
    import_store(Source(str(tmp_path / "a.csv"), "user", "text"), tmp_path / "store", WordTokenizer(words, "spaces"))
    assert content(Store.open(tmp_path / "store")) == grouped(rows, WordTokenizer(words, "spaces"))


def test_long_user_ids_are_counted(tmp_path):
    summary, found = run(
        tmp_path, "a.csv", b"user,text\na,hello\n" + b"b" * 1025 + b",hello\n" + b"c" * 1024 + b",hello"
    )
    assert sorted(found) == ["a", "c" * 1024]
    assert summary["too_long"] == 1


def test_long_texts_of_parquet_are_counted(tmp_path):
    write_parquet(tmp_path / "x.parquet", [("a", "hello"), ("a", "x" * (16 * 2**20 + 1)), ("b", "hello")])
    summary, found = run(tmp_path, "a.parquet", (tmp_path / "x.parquet").read_bytes())
    assert found == {"a": [[1, 4, 2]], "b": [[1, 4, 2]]}
    assert summary["too_long"] == 1


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.csv", b"user,text\na,hello\n", {"user": "usr"}, "no column 'usr'; it has 'user', 'text'"),
        ("a.csv", b"user,text\na,hello\n", {"text": None}, "--text-column; .* has 'user', 'text'"),
        ("a.jsonl", b'{"id": 1, "text": "a"}\n', {}, "no column 'user'; it has 'id', 'text'"),
        ("a.csv", b"user,text\n", {}, "no row to import: 0 rows"),
        ("a.csv", b"user,text\n,hello\na,\n", {}, "no row to import: 2 rows, 1 missing user, 1 empty text"),
        ("a.csv", b"", {}, "no column"),
        ("a.jsonl", b"hello\n", {}, "no JSON object"),
        ("a.parquet", b"PAR1 no", {}, "not a readable Parquet"),
        ("a.sqlite", b"no database at all, whatever it is called", {}, "not a readable SQLite"),
        ("a.csv.gz", b"not zipped", {}, "could not be read"),
        ("a.zip", b"PK", {}, "compressed"),
        ("a.doc", b"", {}, "no known kind"),
    ],
)
def test_refusals_leave_nothing(tmp_path, name, data, options, message):
    with pytest.raises(Refused, match=message):
        run(tmp_path, name, data, **options)
    assert os.listdir(tmp_path) == [name]


def test_an_open_quote_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rowfiles, "MAX_TEXT_BYTES", 100)
    with pytest.raises(Refused, match="closing quote"):
        run(tmp_path, "a.csv", b'user,text\na,"hello\n' + b"b,hello\n" * 1000)
    with pytest.raises(Refused, match="closing quote"):
        run(tmp_path, "a.csv", b'user,text\na,"hello' + b"b" * 1000)


def test_wrong_types_and_places(tmp_path):
    pq.write_table(pa.table({"user": ["a"], "text": pa.array([["hello"]])}), tmp_path / "a.parquet")
    with pytest.raises(Refused, match=r"'text' .* holds list<.*>, not text"):
        import_store(Source(str(tmp_path / "a.parquet"), "user", "text"), tmp_path / "store", WordTokenizer("a"))
    with pytest.raises(Refused, match="no file or folder"):
        import_store(Source(str(tmp_path / "none.csv"), "user", "text"), tmp_path / "store", WordTokenizer("a"))
    with pytest.raises(Refused, match="does not exist; create"):
        import_store(Source("x", "user", "text"), tmp_path / "no" / "store", WordTokenizer("a"))
    (tmp_path / "store").mkdir()
    with pytest.raises(Refused, match="exists"):
        import_store(Source("x", "user", "text"), tmp_path / "store", WordTokenizer("a"))


def test_splits_of_sqlite_and_datasets(tmp_path, rows):
    write_sqlite(tmp_path / "a.sqlite", rows[:50], "train")
    write_sqlite(tmp_path / "a.sqlite", rows[50:90], "test")
    with pytest.raises(Refused, match="several splits; name one with --split: 'test', 'train'"):
        import_store(Source(str(tmp_path / "a.sqlite"), None, None), tmp_path / "store", WordTokenizer(WORDS))
    with pytest.raises(Refused, match="no feature 'body'; its examples have 'score', 'title', 'tokens'"):
        import_store(Source(str(tmp_path / "a.sqlite"), None, "body", "test"), tmp_path / "store", WordTokenizer(WORDS))
    import_store(Source(str(tmp_path / "a.sqlite"), None, None, "test"), tmp_path / "store", WordTokenizer(WORDS))
    assert content(Store.open(tmp_path / "store")) == grouped(rows[50:90], WordTokenizer(WORDS))
    write_dataset_dict(tmp_path / "datasets", rows)
    with pytest.raises(Refused, match="several splits; name one with --split: 'train', 'test'"):
        import_store(Source(str(tmp_path / "datasets"), "user", "text"), tmp_path / "s", WordTokenizer(WORDS))
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE posts (a)")
    with pytest.raises(Refused, match="not TFF's format"):
        import_store(Source(str(tmp_path / "other.sqlite"), None, None), tmp_path / "s", WordTokenizer(WORDS))


KILLED = """
import os, sys
from reticent.data import importing, writer
from reticent.data.sources import Source
from reticent.data.tokenizers import WordTokenizer
writer._CHECKPOINT_TOKENS = 50
importing.rows_at_once = lambda metadata, size=0: 20
stop, calls = int(sys.argv[3]), []
real = writer.StoreWriter.add_users
def add_users(self, *arguments):
    calls.append(1)
    if len(calls) > stop:
        os.kill(os.getpid(), 9)
    real(self, *arguments)
writer.StoreWriter.add_users = add_users
real_batches = Source.batches
def batches(self, progress):
    print("read", flush=True)
    return real_batches(self, progress)
Source.batches = batches
importing.import_store(Source(sys.argv[1], "user", "text"), sys.argv[2], WordTokenizer([f"w{i}" for i in range(40)]))
print("done", len(calls), flush=True)
"""


def test_a_killed_import_goes_on(tmp_path, rows):
    write_csv(tmp_path / "a.csv", [*rows, ("b", "  "), ("a", " ")])
    expected = import_store(Source(str(tmp_path / "a.csv"), "user", "text"), tmp_path / "whole", WordTokenizer(WORDS))
    output = []
    for stop in (20, 10, 1, 1000):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "a.csv"), str(tmp_path / "store"), str(stop)]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, env={**os.environ})
        output.append(done.stdout.split())
        assert done.returncode == (0 if stop == 1000 else -9), done.stderr
    # Read and sorted once; the last run added fewer than all.
    assert [words[:1] for words in output] == [["read"], [], [], ["done"]]
    assert int(output[-1][1]) < 40
    store, whole = Store.open(tmp_path / "store"), Store.open(tmp_path / "whole")
    assert content(store) == content(whole)
    assert store.header["about"]["import"] == expected
    assert store.digest == whole.digest


def test_a_changed_source_begins_anew(tmp_path, rows, monkeypatch):
    write_csv(tmp_path / "a.csv", rows[:300])
    source = Source(str(tmp_path / "a.csv"), "user", "text")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_encode", interrupt)
        with pytest.raises(KeyboardInterrupt):
            import_store(source, tmp_path / "store", WordTokenizer(WORDS))
    write_csv(tmp_path / "a.csv", rows)
    import_store(Source(str(tmp_path / "a.csv"), "user", "text"), tmp_path / "store", WordTokenizer(WORDS))
    assert content(Store.open(tmp_path / "store")) == grouped(rows, WordTokenizer(WORDS))
