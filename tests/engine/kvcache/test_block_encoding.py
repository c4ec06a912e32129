"""The layout of many blocks: equal to what pickle and cbor2 write, and left alone where it could not be."""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256

import numpy
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import MissingPackage
from engine.kvcache import block_encoding
from engine.kvcache.block_encoding import CborEncoding, PickleEncoding
from labs.recorded.engine_hashes import vllm_block_hashes

ENCODINGS = {"sha256": PickleEncoding, "xxhash": PickleEncoding, "sha256_cbor": CborEncoding, "xxhash_cbor": CborEncoding}
EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**31 - 1]


def bodies(encoding, token_ids):
    return [body for run in encoding.runs(token_ids) for body in run.bodies()]


def laid_out(encoding, parent, token_ids, extra_keys=None):
    """All that is digested for one block, by the layout."""
    (body,) = bodies(encoding, token_ids)
    if extra_keys is not None:
        body = body[: -len(encoding.keys(None))] + encoding.keys(extra_keys)
    return encoding.head(len(body)) + parent + body


BLOCKS = [entry for entry in vllm_block_hashes() if not entry.is_none_hash]


@pytest.mark.parametrize("recorded", BLOCKS, ids=lambda recorded: recorded.name)
def test_every_recorded_digest_of_vllm_is_that_of_the_laid_out_bytes(recorded):
    parent = recorded.parent_or_start
    encoding = ENCODINGS[recorded.algorithm](len(recorded.token_ids), len(parent))
    message = laid_out(encoding, parent, recorded.token_ids, recorded.extra_keys)
    digest = sha256(message).hexdigest() if recorded.algorithm.startswith("sha256") else xxhash.xxh3_128_hexdigest(message)
    assert digest == recorded.digest


@pytest.mark.parametrize("encoding_type", [PickleEncoding, CborEncoding])
@pytest.mark.parametrize("name_bytes", [16, 32])
@given(
    token_ids=st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 2**31 - 1), st.integers(0, 300)), min_size=1, max_size=90),
    block_size=st.integers(1, 45),
)
def test_bodies_are_what_pickle_and_cbor2_write(encoding_type, name_bytes, token_ids, block_size):
    encoding = encoding_type(block_size, name_bytes)
    assert encoding.has_layout()
    parent = bytes(range(name_bytes))
    found = bodies(encoding, token_ids)
    assert len(found) == len(token_ids) // block_size
    for number, body in enumerate(found):
        block = tuple(token_ids[number * block_size : (number + 1) * block_size])
        assert encoding.head(len(body)) + parent + body == encoding.serialise((parent, block, None))


@pytest.mark.parametrize("encoding_type", [PickleEncoding, CborEncoding])
def test_a_long_prompt_comes_in_several_runs(encoding_type):
    encoding = encoding_type(16, 32)
    token_ids = [position * 37 % 49_152 for position in range(40_000)]
    assert len(list(encoding.runs(token_ids))) == 3
    blocks = [tuple(token_ids[start : start + 16]) for start in range(0, 40_000, 16)]
    expected = [encoding.serialise((b"p" * 32, block, None)) for block in blocks]
    assert [encoding.head(len(body)) + b"p" * 32 + body for body in bodies(encoding, token_ids)] == expected


@pytest.mark.parametrize("encoding_type, limit", [(PickleEncoding, 2**31), (CborEncoding, 2**32)])
def test_ids_without_a_place_in_the_layout_are_left_to_the_definition(encoding_type, limit):
    encoding = encoding_type(2, 32)
    for token_id in (-1, limit, 2**64):
        assert encoding.runs([1, token_id]) is None
        assert encoding.block(b"p" * 32, [1, token_id], None) == encoding.serialise((b"p" * 32, (1, token_id), None))
    assert encoding.runs([1, limit - 1]) is not None


@pytest.mark.parametrize("encoding_type", [PickleEncoding, CborEncoding])
@pytest.mark.parametrize(
    "same", [numpy.array([7, 300, 70_000]), [numpy.int64(7), 300, numpy.uint32(70_000)], (7, 300, 70_000)], ids=["array", "mixed", "tuple"]
)
def test_ids_count_by_value_whatever_holds_them(encoding_type, same):
    encoding, parent = encoding_type(3, 32), b"p" * 32
    expected = encoding.serialise((parent, (7, 300, 70_000), None))
    assert encoding.block(parent, same, None) == laid_out(encoding, parent, same) == expected
    assert encoding.block(parent, [7, 300, 70_000], None, exact_ints=True) == expected
    small = bytes([7, 8, 9])
    assert encoding.block(parent, small, None) == laid_out(encoding, parent, small) == encoding.serialise((parent, (7, 8, 9), None))


class Word(IntEnum):
    YES = 7


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("encoding_type", [PickleEncoding, CborEncoding])
@pytest.mark.parametrize(
    "same, ids",
    [
        ([True, False, 5], (1, 0, 5)),
        ([Word.YES, 1, 2], (7, 1, 2)),
        (numpy.array([200, 200, 200], numpy.uint8), (200, 200, 200)),
        ([numpy.int64(1), 2**31 - 1, 3], (1, 2**31 - 1, 3)),
        (range(5, 8), (5, 6, 7)),
    ],
    ids=["bool", "enum", "uint8", "int64", "range"],
)
def test_kinds_of_integers_are_the_numbers_they_are(encoding_type, same, ids):
    encoding, parent = encoding_type(3, 32), b"p" * 32
    assert encoding.block(parent, same, None) == laid_out(encoding, parent, same) == encoding.serialise((parent, ids, None))


def test_a_numpy_integer_beside_one_of_64_bits_is_no_overflow():
    encoding, parent = PickleEncoding(2, 32), b"p" * 32
    assert encoding.block(parent, [numpy.int64(1), 2**63], None) == encoding.serialise((parent, (1, 2**63), None))


@pytest.mark.parametrize("encoding_type", [PickleEncoding, CborEncoding])
def test_an_id_that_is_no_integer_is_refused(encoding_type):
    encoding = encoding_type(2, 32)
    for token_ids in ([1, 2.0], ["a", 1]):
        with pytest.raises(TypeError):
            encoding.block(b"p" * 32, token_ids, None)
        with pytest.raises(TypeError):
            list(encoding.runs(token_ids))


def test_a_layout_that_the_serialiser_does_not_share_is_not_used(monkeypatch):
    """A newer pickle protocol would make other bytes; then names must be pickle's, not ours."""
    block_encoding._is_as_defined.cache_clear()
    monkeypatch.setattr(PickleEncoding, "close", lambda self: b"t")
    assert not PickleEncoding(16, 32).has_layout()
    assert CborEncoding(16, 32).has_layout()
    block_encoding._is_as_defined.cache_clear()


def test_blocks_whose_pickle_has_several_frames_are_left_to_pickle():
    assert PickleEncoding(12_000, 32).has_layout()
    assert not PickleEncoding(14_000, 32).has_layout()
    assert CborEncoding(14_000, 32).has_layout()


def test_without_cbor2_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cbor2", None)
    with pytest.raises(MissingPackage, match="pip install cbor2"):
        CborEncoding(16, 32)


def test_pickle_writes_an_object_it_met_before_as_a_reference():
    """Two equal keys make another block of bytes when they are one object; in CBOR they cannot."""
    identifier = "image-1"
    copy = "".join(["image-", "1"])
    assert identifier == copy and identifier is not copy
    same, equal = (("mm", identifier, 0), ("mm", identifier, 4)), (("mm", identifier, 0), ("mm", copy, 4))
    pickle_, cbor = PickleEncoding(16, 32), CborEncoding(16, 32)
    assert same == equal
    assert pickle_.keys(same) != pickle_.keys(equal)
    assert cbor.keys(same) == cbor.keys(equal)
