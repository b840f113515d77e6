import json

import numpy as np
import pytest

from reticent.data.tokenizers import FileTokenizer, WordTokenizer, load_tokenizer, parse_tokenizer, words_of_file
from reticent.errors import Refused


def test_words():
    tokenizer = WordTokenizer(["the", "don't", "cat", "!"])
    ids = tokenizer.encode("The CAT don't, sat!")
    assert ids.tolist() == [1, 4, 6, 5, 3, 3, 7, 2]
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == "the cat don't <unknown> <unknown> !"
    assert (tokenizer.pad, tokenizer.begin, tokenizer.end, tokenizer.unknown, tokenizer.size) == (0, 1, 2, 3, 8)
    assert tokenizer.encode("").tolist() == [1, 2]


def test_spaces_keep_what_is_between_them():
    tokenizer = WordTokenizer(["The", "cat."], split="spaces")
    assert tokenizer.encode("The  cat. the\tcat").tolist() == [1, 4, 5, 3, 3, 2]


def test_batches_are_single_texts_end_to_end():
    tokenizer = WordTokenizer(["a", "b"])
    texts = ["a b", "", "b c b"]
    tokens, lengths = tokenizer.encode_batch(texts)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    assert [part.tolist() for part in parts] == [tokenizer.encode(text).tolist() for text in texts]


def test_the_digest_is_of_what_encodes():
    first = WordTokenizer(["a", "b"])
    assert first.digest == WordTokenizer(["a", "b"], origin={"source": "elsewhere"}).digest
    others = [WordTokenizer(["b", "a"]), WordTokenizer(["a", "b"], "spaces"), WordTokenizer(["a", "b", "c"])]
    assert len({first.digest, *(other.digest for other in others)}) == 4


def test_saved_and_loaded(tmp_path):
    tokenizer = WordTokenizer(["a", "ž", "\U0001f600"], "spaces", {"source": "test", "guarantee": {"rho": 1}})
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.to_bytes())
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokenizer(path)
        assert (loaded.digest, loaded.origin) == (tokenizer.digest, tokenizer.origin)
        assert loaded.encode("\U0001f600 a").tolist() == [1, 6, 4, 2]


@pytest.mark.parametrize(("words", "message"), [(["a", "b", "a"], "'a' twice"), ([], "empty"), (["a b"], "no single")])
def test_bad_vocabularies(words, message):
    with pytest.raises(Refused, match=message):
        WordTokenizer(words)


def test_vocabulary_files(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffthe\t123\n\ncat\t4\r\nsat\n".encode())
    assert words_of_file(path) == ["the", "cat", "sat"]
    assert words_of_file(path, 2) == ["the", "cat"]
    assert words_of_file(path, 4) == ["the", "cat", "sat"]
    path.write_bytes(b"\xff")
    with pytest.raises(Refused, match="not UTF-8"):
        words_of_file(path)
    with pytest.raises(Refused, match="no vocabulary file"):
        words_of_file(tmp_path / "none")


def trained(kind):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = ["the cat sat on the mat", "a cat and a dog, and a mat; hello world"] * 20
    if kind == "WordPiece":
        engine = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        engine.pre_tokenizer = pre_tokenizers.Whitespace()
        engine.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=80, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
        )
    elif kind == "BPE":
        engine = Tokenizer(models.BPE())
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        engine = Tokenizer(models.Unigram())
        engine.pre_tokenizer = pre_tokenizers.Metaspace()
        engine.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<pad>", "<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        )
    engine.train_from_iterator(text, trainer)
    engine.enable_truncation(4)
    engine.enable_padding(length=50)
    return engine.to_str().encode()


@pytest.mark.parametrize(
    ("kind", "frame"), [("WordPiece", (2, 3, 0, 1)), ("BPE", (0, 0, 0, -1)), ("Unigram", (1, 2, 0, 3))]
)
def test_tokenizer_files(tmp_path, kind, frame):
    content = trained(kind)
    (tmp_path / "tokenizer.json").write_bytes(content)
    tokenizer = load_tokenizer(tmp_path, {"source": "file"})
    assert isinstance(tokenizer, FileTokenizer)
    assert (tokenizer.begin, tokenizer.end, tokenizer.pad, tokenizer.unknown) == frame
    text = "the cat sat on a mat and a dog"
    ids = tokenizer.encode(text)
    # Neither cut nor padded, as the file would have it.
    assert ids[0] == tokenizer.begin
    assert ids[-1] == tokenizer.end
    assert len(ids) > 6
    assert ids.max() < tokenizer.size
    assert tokenizer.decode(ids) == text
    assert tokenizer.to_bytes() == content
    assert parse_tokenizer(tokenizer.to_bytes(), "copy").digest == tokenizer.digest


def test_bad_tokenizer_files(tmp_path):
    with pytest.raises(Refused, match="no tokenizer file"):
        load_tokenizer(tmp_path)
    for content in (b"{", b"[]", b'{"model": 1}', b"\xff", json.dumps({"format": "reticent-words"}).encode()):
        (tmp_path / "t.json").write_bytes(content)
        with pytest.raises(Refused, match=r"t\.json"):
            load_tokenizer(tmp_path / "t.json")
    from tokenizers import Tokenizer, models

    with pytest.raises(Refused, match="end tokens"):
        parse_tokenizer(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str().encode(), "plain")
