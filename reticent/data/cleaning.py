"""Which rows of text can be used, and what became of the others.

A row is used unless its user is missing (null, NaN or blank), its text is empty (null or blank), its text is longer
than 16 MiB or its user id than 1 KiB, or it is malformed (a CSV row with another number of fields than the header, a
line that is no JSON object); each of these is counted. Invalid UTF-8 is kept and counted: in a text each bad byte
becomes U+FFFD, in a user id it is spelt out (`\\xff`), so that two users stay two.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXT_BYTES = 16 * 2**20
MAX_USER_BYTES = 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class Counts:
    """What became of the rows that were read: `rows` is the sum of `kept` and the four reasons to leave one out."""

    rows: int = 0
    kept: int = 0
    missing_user: int = 0
    empty_text: int = 0
    too_long: int = 0
    malformed: int = 0
    invalid_utf8: int = 0


def clean(users: "pa.Array", texts: "pa.Array", counts: Counts) -> "pa.RecordBatch":
    """The rows that can be used, as `user` and `text`; counts all of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    users, bad_users = _valid_unicode(users, _spell_out)
    texts, bad_texts = _valid_unicode(texts, _replace)
    missing = _blank(users)
    empty = pc.and_not(_blank(texts), missing)
    long = pc.or_(
        pc.greater(pc.fill_null(pc.binary_length(texts), 0), MAX_TEXT_BYTES),
        pc.greater(pc.fill_null(pc.binary_length(users), 0), MAX_USER_BYTES),
    )
    long = pc.and_not(long, pc.or_(missing, empty))
    keep = pc.invert(pc.or_(pc.or_(missing, empty), long))
    counts.rows += len(users)
    counts.missing_user += pc.sum(missing).as_py() or 0
    counts.empty_text += pc.sum(empty).as_py() or 0
    counts.too_long += pc.sum(long).as_py() or 0
    counts.kept += pc.sum(keep).as_py() or 0
    if bad_users or bad_texts:
        kept = keep.to_pylist()
        counts.invalid_utf8 += sum(kept[row] for row in bad_users | bad_texts)
    return pa.record_batch([users.filter(keep), texts.filter(keep)], names=["user", "text"])


def _blank(column: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    return pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)


def _valid_unicode(column: "pa.Array", mend: Callable[[str], str]) -> "tuple[pa.Array, set[int]]":
    """The column as valid strings, and the places that had to be mended."""
    import pyarrow as pa

    try:
        column.validate(full=True)
        return column, set()
    except pa.ArrowInvalid:
        values, bad = [], set()
        for place, value in enumerate(column.cast(pa.large_binary()).to_pylist()):
            text = None if value is None else value.decode("utf-8", "surrogateescape")
            if text is not None and _SURROGATE.search(text):
                text = mend(text)
                bad.add(place)
            values.append(text)
        return pa.array(values, pa.large_string()), bad


def _replace(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _spell_out(text: str) -> str:
    # `surrogateescape` has put the byte b at U+DC00 + b.
    return _SURROGATE.sub(
        lambda found: (
            f"\\x{ord(found[0]) - 0xDC00:02x}" if 0xDC80 <= ord(found[0]) <= 0xDCFF else ascii(found[0])[1:-1]
        ),
        text,
    )
