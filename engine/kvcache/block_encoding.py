"""The bytes of a block that go into its digest, laid out for many blocks at once.

A block's name is the digest of a serialised triple (parent's name, tokens, extra keys). Serialising triple after triple
costs more than digesting them, and of its bytes only the parent's name has to wait for the block before. So the rest is
written for whole runs of blocks, into one buffer:

    digested    │ head │ parent's name │ open │ token │ token │ … │ token │ close │ extra keys │
                                        ╰──────────────────── body ────────────────────────────╯
    buffer      │ body of block 0 │ body of block 1 │ …        each as if it had no extra keys

A token takes one to five bytes, by its value. Each is first written into a word of four or eight bytes, beside a mask of
those that count; then one pass over the run drops the others.

The bytes equal those of pickle and cbor2, which stay the definition: `block` asks them for one block, and the layout is
compared with them once before it is used. Ids that it has no place for (negative, or very large) stay theirs too.

Sources: pickle protocol 5, Lib/pickletools.py of CPython; CBOR, RFC 8949, sections 3.1 and 4.2.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple, Sequence

from engine.errors import MissingPackage

if TYPE_CHECKING:
    import numpy

_RUN_TOKENS = 16_384  # in one buffer; it stays in the processor's cache
_MAX_PACKED_TOKENS = 64  # in a block that is written alone
_MAX_SHORTENED = 8  # ids of such a block; with more, cbor2 is quicker
_UNSIGNED_32 = next(code for code in "IL" if array(code).itemsize == 4)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


class TokenSize(NamedTuple):
    """How token ids in [low, high) are written."""

    low: int
    high: int
    num_bytes: int  # tag and id
    tag: int | None  # the first byte; None: there is only the id


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
    """The words of one block, all tokens still missing, and of each word the bytes that count."""

    words: numpy.ndarray  # [num_words]
    keep: numpy.ndarray  # the same, as if all tokens had three bytes
    masks: dict[int, Any]  # by the number of a token's bytes
    first: int  # the words of the tokens are [first, last)
    last: int
    body_bytes: int  # with all tokens of three bytes


class BlockEncoding:
    """One serialisation of blocks of `block_size` tokens that follow names of `name_bytes` bytes."""

    token_sizes: tuple[TokenSize, ...]  # by rising ids; one of them has three bytes
    max_body_bytes: int | None = None  # None: no limit
    min_run_tokens: int  # a run has a fixed price; with fewer tokens, block after block is cheaper

    def __init__(self, block_size: int, name_bytes: int) -> None:
        """Raises MissingPackage when the serialisation's package is not installed."""
        self.block_size = block_size
        self.name_bytes = name_bytes
        self.serialise = self.open_serialiser()
        self._three_bytes = next(size for size in self.token_sizes if size.num_bytes == 3)
        self._rows: dict[int, _Row] = {}  # by the bytes of a word
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

    def words(self, values: numpy.ndarray, size: TokenSize) -> numpy.ndarray:
        """Tokens of one size, each inside a word of the array's type."""
        raise NotImplementedError

    def mask(self, num_bytes: int, word_bytes: int) -> bytes:
        """Which bytes of such a word count: 1 for those, 0 for the others."""
        raise NotImplementedError

    def block(self, parent: bytes, token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None) -> bytes:
        """All that is digested for one block.

        token_ids  [block_size], Python or numpy integers, by value: numpy's 7 is 7

        Raises TypeError for an id that is no integer.
        """
        # A sum of anything else is no Python integer; quicker than to look at each.
        if type(sum(token_ids)) is not int:
            token_ids = [index(token_id) for token_id in token_ids]
        return self.serialise((parent, tuple(token_ids), extra_keys))

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
            longest = len(self.open() + self.close() + self.keys(None)) + self.token_sizes[-1].num_bytes * self.block_size
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
        if values.size and int(values.max()) >= self.token_sizes[-1].high:
            return None
        step = max(_RUN_TOKENS // self.block_size, 1) * self.block_size
        return (self._run(values[start : start + step]) for start in range(0, values.size, step))

    def _run(self, values: numpy.ndarray) -> Run:
        """values: [num_blocks * block_size], uint32."""
        import numpy

        largest = int(values.max())
        row = self._row(4 if largest < self._three_bytes.high else 8)
        values = values.astype(row.words.dtype, copy=False)
        num_blocks, width = values.size // self.block_size, row.words.size
        words = numpy.empty((num_blocks, width), row.words.dtype)
        keep = numpy.empty_like(words)
        sizes = numpy.full(num_blocks, row.body_bytes)

        # Most ids take three bytes: all are written so at first, and those of other sizes anew.
        words[:], keep[:] = row.words, row.keep
        words[:, row.first : row.last] = self.words(values, self._three_bytes).reshape(num_blocks, -1)
        for size in self.token_sizes:
            if size is self._three_bytes or size.low > largest:
                continue
            where = numpy.flatnonzero((values >= size.low) & (values < size.high) if size.low else values < size.high)
            if where.size:
                blocks, offsets = numpy.divmod(where, self.block_size)
                words[blocks, row.first + offsets] = self.words(values[where], size)
                keep[blocks, row.first + offsets] = row.masks[size.num_bytes]
                sizes += numpy.bincount(blocks, minlength=num_blocks) * (size.num_bytes - 3)
        buffer = numpy.compress(keep.view(bool).reshape(-1), words.view(numpy.uint8).reshape(-1))
        return Run(buffer.tobytes(), numpy.cumsum(sizes).tolist(), int(sizes.max()))

    def _row(self, word_bytes: int) -> _Row:
        """The words of one block, ready but for its tokens."""
        if word_bytes not in self._rows:
            self._rows[word_bytes] = self._make_row(word_bytes)
        return self._rows[word_bytes]

    def _make_row(self, word_bytes: int) -> _Row:
        import numpy

        dtype = numpy.dtype({4: numpy.uint32, 8: numpy.uint64}[word_bytes])

        def padded(constant: bytes) -> tuple[bytes, bytes]:
            padding = bytes(-len(constant) % word_bytes)
            return constant + padding, bytes([1]) * len(constant) + padding

        before, keep_before = padded(self.open())
        behind, keep_behind = padded(self.close() + self.keys(None))
        masks = {size.num_bytes: self.mask(size.num_bytes, word_bytes) for size in self.token_sizes if size.num_bytes <= word_bytes}
        words = before + bytes(word_bytes * self.block_size) + behind
        keep = keep_before + masks[3] * self.block_size + keep_behind
        first = len(before) // word_bytes
        return _Row(
            words=numpy.frombuffer(words, dtype),
            keep=numpy.frombuffer(keep, dtype),
            masks={num_bytes: numpy.frombuffer(mask, dtype)[0] for num_bytes, mask in masks.items()},
            first=first,
            last=first + self.block_size,
            body_bytes=sum(keep),
        )


class PickleEncoding(BlockEncoding):
    """Pickle, protocol 5: opcodes, a frame's length in front, and a mark behind each object that might come again.

    A trap for whoever expects equal values to have equal names: an *object* that was met before is written as a reference
    to the first. `("mm", a, 0), ("mm", b, 4)` with equal texts a and b makes one pickle if they are one object, and
    another if they are two; so a block that holds the same image twice can have two names. Integers are written out each
    time and nothing repeats in a block with one key, so all others are safe. CBOR knows values only.
    """

    token_sizes = (
        TokenSize(0, 2**8, 2, ord("K")),
        TokenSize(2**8, 2**16, 3, ord("M")),
        TokenSize(2**16, 2**31, 5, ord("J")),
    )
    min_run_tokens = 1_024
    max_body_bytes = 65_000  # pickle cuts what is longer than 65,536 bytes into frames

    @staticmethod
    def open_serialiser() -> Callable[[Any], bytes]:
        return _pickled

    def block(self, parent: bytes, token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None) -> bytes:
        if type(sum(token_ids)) is not int:
            return super().block(parent, token_ids, extra_keys)
        return pickle.dumps((parent, tuple(token_ids), extra_keys), pickle.HIGHEST_PROTOCOL)  # a call less than there

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

    def words(self, values: numpy.ndarray, size: TokenSize) -> numpy.ndarray:
        # Little endian, the tag first: at the word's low end.
        return ((values << values.dtype.type(8)) | values.dtype.type(size.tag)).astype(values.dtype.newbyteorder("<"), copy=False)

    def mask(self, num_bytes: int, word_bytes: int) -> bytes:
        return bytes([1] * num_bytes + [0] * (word_bytes - num_bytes))


_STAND_INS = (b"parent", (0, 0, 0, 0))
_STAND_IN_BYTES = _pickled((*_STAND_INS, None)).index(b"N\x87\x94.")


class CborEncoding(BlockEncoding):
    """Canonical CBOR: every length and every integer in as few bytes as it needs, big endian."""

    token_sizes = (
        TokenSize(0, 24, 1, None),
        TokenSize(24, 2**8, 2, 0x18),
        TokenSize(2**8, 2**16, 3, 0x19),
        TokenSize(2**16, 2**32, 5, 0x1A),
    )
    min_run_tokens = 512

    @staticmethod
    def open_serialiser() -> Callable[[Any], bytes]:
        try:
            import cbor2
        except ModuleNotFoundError:
            raise MissingPackage("the *_cbor hash algorithms need cbor2: pip install cbor2") from None
        return lambda value: cbor2.dumps(value, canonical=True)

    def __init__(self, block_size: int, name_bytes: int) -> None:
        super().__init__(block_size, name_bytes)
        self._before, self._open = self.head(0), self.open()
        self._slots = [0x19, 0] * block_size if block_size <= _MAX_PACKED_TOKENS else []
        self._pack = struct.Struct(">" + "BH" * (len(self._slots) // 2)).pack

    def block(self, parent: bytes, token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None) -> bytes:
        # All ids at once as if each took three bytes; then the few below 256 are made shorter.
        slots = self._slots[:]
        try:
            slots[1::2] = token_ids
            tokens = self._pack(*slots)
        except (struct.error, ValueError):  # an id of more than two bytes, or none at all, or a large block
            return super().block(parent, token_ids, extra_keys)
        high = tokens[1::3]
        if 0 in high:
            if high.count(0) > _MAX_SHORTENED:
                return super().block(parent, token_ids, extra_keys)
            shortened = bytearray(tokens)
            position = high.rfind(0)
            while position >= 0:
                shortened[3 * position : 3 * position + 3] = _CBOR_BELOW_256[tokens[3 * position + 2]]
                position = high.rfind(0, 0, position)
            tokens = bytes(shortened)
        return self._before + parent + self._open + tokens + self.keys(extra_keys)

    def head(self, body_bytes: int) -> bytes:
        return b"\x83" + _cbor_head(0x40, self.name_bytes)

    def open(self) -> bytes:
        return _cbor_head(0x80, self.block_size)

    def close(self) -> bytes:
        return b""

    def keys(self, extra_keys: tuple[Any, ...] | None) -> bytes:
        return b"\xf6" if extra_keys is None else self.serialise(extra_keys)

    def words(self, values: numpy.ndarray, size: TokenSize) -> numpy.ndarray:
        # Big endian, the tag before the id: both at the word's low end.
        tag = 0 if size.tag is None else size.tag << 8 * (size.num_bytes - 1)
        return (values | values.dtype.type(tag)).astype(values.dtype.newbyteorder(">")).view(values.dtype)

    def mask(self, num_bytes: int, word_bytes: int) -> bytes:
        return bytes([0] * (word_bytes - num_bytes) + [1] * num_bytes)


def _cbor_head(major_type: int, number: int) -> bytes:
    """A CBOR item's head: its type, and its value or length in as few bytes as it needs."""
    if number < 24:
        return bytes([major_type | number])
    length = next(length for length in (1, 2, 4, 8) if number < 256**length)
    return bytes([major_type | {1: 24, 2: 25, 4: 26, 8: 27}[length]]) + number.to_bytes(length, "big")


_CBOR_BELOW_256 = [_cbor_head(0, number) for number in range(256)]


@lru_cache(maxsize=None)
def _is_as_defined(encoding_type: type[BlockEncoding], block_size: int, name_bytes: int) -> bool:
    """Whether a block with an id at each edge, and one with extra keys, are laid out as pickle or cbor2 write them.

    They are not when a newer protocol has become the default: names are then as pickle says, only slower.
    """
    encoding = encoding_type(block_size, name_bytes)
    edges = [edge for size in encoding.token_sizes for edge in (size.low, size.high - 1)]
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
