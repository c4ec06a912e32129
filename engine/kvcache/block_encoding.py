"""The bytes of a block that go into its digest, laid out for many blocks at once.

A block's name is the digest of a serialised triple (parent's name, tokens, extra keys). Serialising triple after triple
costs more than digesting them, and of its bytes only the parent's name has to wait for the block before. So the rest is
written for whole runs of blocks, into one buffer:

    digested    │ head │ parent's name │ open │ token │ token │ … │ token │ close │ extra keys │
                                        ╰──────────────────── body ────────────────────────────╯
    buffer      │ body of block 0 │ body of block 1 │ …        each as if it had no extra keys

A token takes one to five bytes, by its value. All are first written as if they took the most, byte position by byte
position, beside a mask of those that count; then one pass over the run drops the others.

The bytes equal those of pickle and cbor2, which stay the definition: `block` asks them for one block, and the layout is
compared with them once before it is used. Ids that it has no place for (negative, or very large) stay theirs too.

Sources: pickle protocol 5, Lib/pickletools.py of CPython; CBOR, RFC 8949, sections 3.1 and 4.2.
"""

from __future__ import annotations

import pickle
from array import array
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple, Sequence

from engine.errors import MissingPackage

if TYPE_CHECKING:
    import numpy

_RUN_TOKENS = 16_384  # in one buffer; it stays in the processor's cache
_UNSIGNED_32 = next(code for code in "IL" if array(code).itemsize == 4)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


class Run(NamedTuple):
    """Bodies of consecutive blocks: body i is buffer[ends[i - 1] : ends[i]]."""

    buffer: bytes
    ends: list[int]
    largest: int  # bytes of the largest body

    def bodies(self) -> Iterator[bytes]:
        """One body after the other."""
        start = 0
        for end in self.ends:
            yield self.buffer[start:end]
            start = end


class _Row(NamedTuple):
    """The bytes of one block that has no tokens yet, and which of them count."""

    bytes_: numpy.ndarray  # [row_bytes], uint8
    kept: numpy.ndarray  # [row_bytes], bool; all of the tokens'
    first: int  # the tokens' bytes are [first, last)
    last: int


# One byte position of all tokens, and which of them have a byte there; None: all.
Column = tuple[Any, Any]


class BlockEncoding:
    """One serialisation of blocks of `block_size` tokens that follow names of `name_bytes` bytes."""

    max_token_id: int  # in the layout; others are left to the definition
    max_body_bytes: int | None = None  # None: no limit
    min_run_tokens: int  # a run has a fixed price; with fewer tokens, block after block is cheaper

    def __init__(self, block_size: int, name_bytes: int) -> None:
        """Raises MissingPackage when the serialisation's package is not installed."""
        self.block_size = block_size
        self.name_bytes = name_bytes
        self.serialise = self.open_serialiser()
        self._rows: dict[int, _Row] = {}  # by the bytes of a token
        self._heads: list[bytes] = []
        self._has_layout: bool | None = None

    @staticmethod
    def open_serialiser() -> Callable[[Any], bytes]:
        """The definition: the function from a value to its bytes. Raises MissingPackage."""
        raise NotImplementedError

    def head(self, body_bytes: int) -> bytes:
        """What stands before the parent's name when the body has so many bytes."""
        raise NotImplementedError

    def open(self) -> bytes:
        """What stands between the parent's name and the tokens."""
        raise NotImplementedError

    def close(self) -> bytes:
        """What stands between the tokens and the extra keys."""
        raise NotImplementedError

    def keys(self, extra_keys: tuple[Any, ...] | None) -> bytes:
        """What stands behind `close`."""
        raise NotImplementedError

    def columns(self, values: numpy.ndarray, low_bytes: numpy.ndarray, token_bytes: int) -> list[Column]:
        """The bytes of all tokens, position by position.

        values       [num_blocks, block_size], uint32
        low_bytes    [num_blocks, block_size, 4], uint8: the same, lowest byte first
        token_bytes  3 where all ids are below 65,536, else 5; as many columns are returned
        """
        raise NotImplementedError

    def block(
        self, parent: bytes, token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None, exact_ints: bool = False
    ) -> bytes:
        """All that is digested for one block.

        token_ids   [block_size], integers of any type, by value: numpy's 7 is 7
        exact_ints  they are Python's own, every one: looking at each takes as long as a third of the rest

        Raises TypeError for an id that is no integer.
        """
        return self.serialise((parent, tuple(token_ids if exact_ints else map(index, token_ids)), extra_keys))

    def heads(self, max_body_bytes: int) -> list[bytes]:
        """`head` for every number of bytes up to at least this one; the same list each time."""
        for body_bytes in range(len(self._heads), max_body_bytes + 1):
            self._heads.append(self.head(body_bytes))
        return self._heads

    def fits(self, body_bytes: int) -> bool:
        """Whether a body of this size is laid out as this class says."""
        return self.max_body_bytes is None or body_bytes <= self.max_body_bytes

    def has_layout(self) -> bool:
        """Whether plain blocks of this size can be laid out, and pickle or cbor2 agree with the layout."""
        if self._has_layout is None:
            longest = len(self.open() + self.close() + self.keys(None)) + 5 * self.block_size
            self._has_layout = self.fits(longest) and _is_as_defined(type(self), self.block_size, self.name_bytes)
        return self._has_layout

    def runs(self, token_ids: Sequence[int]) -> Iterator[Run] | None:
        """The bodies of all full blocks in `token_ids`, run after run; None when the layout has no place for an id.

        token_ids  [num_tokens], as for `block`
        """
        if isinstance(token_ids, (bytes, bytearray)):
            token_ids = list(token_ids)  # `array` would take them for its memory
        try:
            ids = array(_UNSIGNED_32, token_ids)  # the fastest way out of a list of integers
        except OverflowError:
            return None
        import numpy

        values = numpy.frombuffer(ids, numpy.uint32)[: len(ids) // self.block_size * self.block_size]
        largest = int(values.max()) if values.size else 0
        if largest > self.max_token_id:
            return None
        values, step = values.reshape(-1, self.block_size), max(_RUN_TOKENS // self.block_size, 1)
        row = self._row(3 if largest < 2**16 else 5)
        return (self._run(values[start : start + step], row) for start in range(0, len(values), step))

    def _run(self, values: numpy.ndarray, row: _Row) -> Run:
        """values: [num_blocks, block_size], uint32; row: of tokens long enough for all of them."""
        import numpy

        num_blocks, token_bytes = len(values), (row.last - row.first) // self.block_size
        rows = numpy.empty((num_blocks, row.bytes_.size), numpy.uint8)
        kept = numpy.empty(rows.shape, bool)
        rows[:], kept[:] = row.bytes_, row.kept
        tokens = rows[:, row.first : row.last].reshape(num_blocks, self.block_size, token_bytes)
        tokens_kept = kept[:, row.first : row.last].reshape(tokens.shape)
        assert tokens.base is not None and tokens_kept.base is not None, "what is written must reach the rows"

        sizes = numpy.empty(num_blocks, numpy.intp)
        sizes.fill(row.bytes_.size)
        low_bytes = values.astype("<u4", copy=False).view(numpy.uint8).reshape(*values.shape, 4)
        for position, (column, column_kept) in enumerate(self.columns(values, low_bytes, token_bytes)):
            tokens[:, :, position] = column
            if column_kept is not None:
                tokens_kept[:, :, position] = column_kept
                sizes += column_kept.sum(1, dtype=numpy.intp) - self.block_size
        buffer = rows.ravel().compress(kept.ravel())
        return Run(buffer.tobytes(), sizes.cumsum().tolist(), int(sizes.max()))

    def _row(self, token_bytes: int) -> _Row:
        """The bytes of a block, ready but for its tokens."""
        if token_bytes not in self._rows:
            import numpy

            before, behind = self.open(), self.close() + self.keys(None)
            last = len(before) + token_bytes * self.block_size
            row = before + bytes(last - len(before)) + behind
            self._rows[token_bytes] = _Row(numpy.frombuffer(row, numpy.uint8), numpy.ones(len(row), bool), len(before), last)
        return self._rows[token_bytes]


class PickleEncoding(BlockEncoding):
    """Pickle, protocol 5: opcodes, a frame's length in front, and a mark behind each object that might come again.

    A trap for whoever expects equal values to have equal names: an *object* that was met before is written as a reference
    to the first. `("mm", a, 0), ("mm", b, 4)` with equal texts a and b makes one pickle if they are one object, and
    another if they are two; so a block that holds the same image twice can have two names. Integers are written out each
    time and nothing repeats in a block with one key, so all others are safe. CBOR knows values only.
    """

    max_token_id = 2**31 - 1
    min_run_tokens = 1_536
    max_body_bytes = 65_000  # pickle cuts what is longer than 65,536 bytes into frames

    @staticmethod
    def open_serialiser() -> Callable[[Any], bytes]:
        return _pickled

    def head(self, body_bytes: int) -> bytes:
        # Protocol 5; a frame, of all that follows its length; a short string of bytes.
        frame_bytes = 2 + self.name_bytes + body_bytes
        return b"\x80\x05\x95%bC%c" % (frame_bytes.to_bytes(8, "little"), self.name_bytes)

    def open(self) -> bytes:
        return b"\x94(" if self.block_size > 3 else b"\x94"

    def close(self) -> bytes:
        return {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(self.block_size, b"t") + b"\x94"

    def keys(self, extra_keys: tuple[Any, ...] | None) -> bytes:
        if extra_keys is None:
            return b"N\x87\x94."
        # Cut from a pickle with as many objects before the keys, since references are numbers of objects.
        return self.serialise((*_STAND_INS, extra_keys))[_STAND_IN_BYTES:]

    def columns(self, values: numpy.ndarray, low_bytes: numpy.ndarray, token_bytes: int) -> list[Column]:
        import numpy

        # An opcode, and one, two or four bytes of the id, lowest first.
        has_second = values >= 2**8
        opcode = numpy.where(has_second, numpy.uint8(ord("M")), numpy.uint8(ord("K")))
        if token_bytes == 3:
            return [(opcode, None), (low_bytes[:, :, 0], None), (low_bytes[:, :, 1], has_second)]
        is_long = values >= 2**16
        opcode[is_long] = ord("J")
        long_bytes = [(low_bytes[:, :, position], is_long) for position in (2, 3)]
        return [(opcode, None), (low_bytes[:, :, 0], None), (low_bytes[:, :, 1], has_second), *long_bytes]


_STAND_INS = (b"parent", (0, 0, 0, 0))
_STAND_IN_BYTES = _pickled((*_STAND_INS, None)).index(b"N\x87\x94.")


class CborEncoding(BlockEncoding):
    """Canonical CBOR: every length and every integer in as few bytes as it needs, big endian."""

    max_token_id = 2**32 - 1
    min_run_tokens = 640

    @staticmethod
    def open_serialiser() -> Callable[[Any], bytes]:
        try:
            import cbor2
        except ModuleNotFoundError:
            raise MissingPackage("the *_cbor hash algorithms need cbor2: pip install cbor2") from None
        return lambda value: cbor2.dumps(value, canonical=True)

    def head(self, body_bytes: int) -> bytes:
        return b"\x83" + _cbor_head(0x40, self.name_bytes)

    def open(self) -> bytes:
        return _cbor_head(0x80, self.block_size)

    def close(self) -> bytes:
        return b""

    def keys(self, extra_keys: tuple[Any, ...] | None) -> bytes:
        return b"\xf6" if extra_keys is None else self.serialise(extra_keys)

    def columns(self, values: numpy.ndarray, low_bytes: numpy.ndarray, token_bytes: int) -> list[Column]:
        import numpy

        # Below 24 the id alone; else a tag and one, two or four bytes of the id, highest first. All end at the last column.
        has_tag, has_second = values >= 24, values >= 2**8
        second = numpy.where(has_second, low_bytes[:, :, 1], numpy.uint8(0x18))
        short: list[Column] = [(second, has_tag), (low_bytes[:, :, 0], None)]
        if token_bytes == 3:
            return [(0x19, has_second), *short]
        is_long = values >= 2**16
        third = numpy.where(is_long, low_bytes[:, :, 2], numpy.uint8(0x19))
        return [(0x1A, is_long), (low_bytes[:, :, 3], is_long), (third, has_second), *short]


def _cbor_head(major_type: int, number: int) -> bytes:
    """A CBOR item's head: its type, and its value or length in as few bytes as it needs."""
    if number < 24:
        return bytes((major_type | number,))
    if number < 2**8:
        return bytes((major_type | 24, number))
    if number < 2**16:
        return bytes((major_type | 25, number >> 8, number & 255))
    return bytes((major_type | 26,)) + number.to_bytes(4, "big")



_EDGES = (0, 23, 24, 255, 256, 65_535, 65_536, 2**24)  # ids at which a serialisation takes more bytes


@lru_cache(maxsize=None)
def _is_as_defined(encoding_type: type[BlockEncoding], block_size: int, name_bytes: int) -> bool:
    """Whether a block with an id at each edge, and one with extra keys, are laid out as pickle or cbor2 write them.

    They are not when a newer protocol has become the default: names are then as pickle says, only slower.
    """
    encoding = encoding_type(block_size, name_bytes)
    edges = [*_EDGES, encoding.max_token_id]
    num_blocks = -(-len(edges) // block_size)
    token_ids = (edges * block_size)[: num_blocks * block_size]
    parent, extra_keys = bytes(range(name_bytes)), (("lora", "a", "b"), ("lora", "a", "b"))
    bodies = [body for run in encoding.runs(token_ids) or () for body in run.bodies()]
    for number, body in enumerate(bodies):
        ids = tuple(token_ids[number * block_size : (number + 1) * block_size])
        with_keys = body[: len(body) - len(encoding.keys(None))] + encoding.keys(extra_keys)
        for written, keys in ((body, None), (with_keys, extra_keys)):
            if encoding.head(len(written)) + parent + written != encoding.serialise((parent, ids, keys)):
                return False
    return len(bodies) == num_blocks
