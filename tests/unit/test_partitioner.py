"""The partition of a key is the one that Kafka's Java client picks."""

import pytest
from murmurhash2 import murmurhash2

from ingest.eventlog import JAVA_SEED, partition_of

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java"), JAVA_VECTORS.items())
def test_a_key_has_the_hash_that_java_gives_it(key: bytes, java: int) -> None:
    assert murmurhash2(key, JAVA_SEED) == java & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "java"), JAVA_VECTORS.items())
@pytest.mark.parametrize("partitions", [1, 2, 12, 50])
def test_a_key_goes_to_the_partition_that_java_picks(key: bytes, java: int, partitions: int) -> None:
    assert partition_of(key, partitions) == (java & 0x7FFFFFFF) % partitions


def test_an_empty_key_is_a_key_like_others() -> None:
    assert partition_of(b"", 12) == (murmurhash2(b"", JAVA_SEED) & 0x7FFFFFFF) % 12
    assert 0 <= partition_of(b"", 12) < 12


def test_bytes_that_are_no_text_have_a_partition() -> None:
    assert 0 <= partition_of(b"\xff\x00\xfe", 7) < 7
