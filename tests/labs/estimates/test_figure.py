"""Numbers as people read them: scaled, in one unit, and never rounded to something they are not."""

import pytest

from engine.config import HASH_ALGORITHMS
from engine.kvcache.block_hash import get_hash_function
from labs.estimates.collision import HASH_BITS
from labs.estimates.figure import shown


@pytest.mark.parametrize(
    "value, unit, of, text",
    [
        (1984, "tokens", 2000, "1,984 of 2,000 tokens"),
        (1, "tokens", None, "1 token"),
        (0, "units", 1, "0 of 1 unit"),
        (1, "blocks", 2, "1 of 2 blocks"),
        (36.6e12, "FLOP", None, "36.60 TFLOP"),
        (172_110_000_000, "FLOP", None, "172.11 GFLOP"),
        (663.4e12, "FLOP/s", 445.2e12, "663.4 of 445.2 TFLOP/s"),
        (12, "FLOP", None, "12.00 FLOP"),
        (0.0822, "s", None, "82.2 ms"),
        (0.0003866, "s", None, "386.6 µs"),
        (1000, "s", None, "16.7 min"),
        (826.7 * 365.25 * 86_400, "s", None, "826.7 years"),
        (1e30, "s", None, "3.2e+22 years"),
        (131_072, "bytes", None, "128.00 KiB"),
        (52.32 * 2**30, "bytes", None, "52.32 GiB"),
        (36, "bytes", None, "36 bytes"),
        (0.90622, "ratio", None, "90.6 %"),
        (1999 / 2000, "ratio", None, "99.95 %"),
        (1.0, "ratio", None, "100 %"),
        (0.0, "ratio", None, "0.0 %"),
        (0.0003052, "ratio", None, "0.031 %"),
        (1e-9, "ratio", None, "1e-07 %"),
        (1 - 1e-9, "ratio", None, ">99.9999 %"),
        (1 + 1e-9, "ratio", None, "<100.0001 %"),
        (1e20, "ratio", None, "1.0e+22 %"),
        (0.0019, "requests/s", None, "0.0019 requests/s"),
        (1, "requests/s", None, "1 request/s"),
        (282.3e9, "FLOP/s", 54.45e12, "0.28 of 54.5 TFLOP/s"),
        (1e30, "FLOP/s", 1e8, "1.0e+15 of 1e-07 PFLOP/s"),
        (2e-9, "s", None, "0.002 µs"),
        (1, "bytes", None, "1 byte"),
        (21.345, "ratio", None, "2,134.5 %"),
        (10.6643, "times", None, "10.66×"),
        (4.32e-60, "chance", None, "4.3e-60"),
        (12.16, "requests/s", None, "12.2 requests/s"),
        (2587.04, "requests/s", None, "2,587 requests/s"),
        (4.8e35, "blocks", None, "4.8e+35 blocks"),
    ],
)
def test_a_number_is_scaled_to_be_short(value, unit, of, text):
    assert shown(value, unit, of) == text


def test_the_digests_have_the_bits_the_engine_makes():
    assert set(HASH_BITS) == set(HASH_ALGORITHMS)
    for algorithm, bits in HASH_BITS.items():
        assert 8 * len(get_hash_function(algorithm)((b"", (1, 2), None))) == bits
