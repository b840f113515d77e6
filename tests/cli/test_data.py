import json

import pytest

from reticent.cli.main import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["data", *map(str, arguments)])
    output = capsys.readouterr()
    return stopped.value.code or 0, output.out, output.err


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,text\n" + "".join(f"u{index % 20},the cat sat number {index}\n" for index in range(200)))
    (tmp_path / "words.txt").write_text("the\ncat\nsat\n")
    return path


def test_import_show_forget(capsys, tmp_path, source):
    store, columns = tmp_path / "store", ("--user-column", "user", "--text-column", "text")
    words = ("--vocabulary", tmp_path / "words.txt")
    code, out, _ = run(capsys, "import", source, *columns, *words, "--out", store, "--json")
    summary = json.loads(out)
    assert (code, summary["rows"], summary["users"], summary["store"]) == (0, 200, 20, str(store))
    code, out, _ = run(capsys, "show", store, "--verify", "--plot", tmp_path / "h.png", "--json")
    facts = json.loads(out)
    assert (code, facts["users"], facts["tokenizer"]["size"]) == (0, 20, 7)
    assert facts["vocabulary"] == {"source": "file", "name": "words.txt"}
    assert (tmp_path / "h.png").exists()
    code, out, _ = run(capsys, "forget", store, "u3", "u4", "--json")
    assert (code, json.loads(out)["users_left"]) == (0, 18)
    code, out, err = run(capsys, "forget", store, "u3")
    assert (code, out) == (2, "")
    assert "no user 'u3'" in err
    code, out, _ = run(capsys, "show", store)
    assert code == 0
    assert "18 users" in out
    assert "2 users were forgotten" in out


def test_import_by_words_for_people(capsys, tmp_path, source):
    columns = ("--user-column", "user", "--text-column", "text")
    code, out, err = run(capsys, "import", source, *columns, "--leak-vocabulary", "--out", tmp_path / "store")
    assert code == 0
    assert "200 examples of 20 users" in out
    assert "reading ..." in err
    _, out, _ = run(capsys, "show", tmp_path / "store")
    assert "LEAKS" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vocabulary", "none.txt"), "no vocabulary file"),
        ((), "--discover"),
        (("--leak-vocabulary", "--user-column", "who"), "no column 'who'; it has 'user', 'text'"),
    ],
)
def test_refusals_are_one_sentence(capsys, tmp_path, source, arguments, message):
    columns = ("--user-column", "user", "--text-column", "text")
    code, out, err = run(capsys, "import", source, *columns, *arguments, "--out", tmp_path / "store")
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
