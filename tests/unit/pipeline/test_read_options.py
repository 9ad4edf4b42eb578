"""The options of a read, and how ranges are divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.net.kafka_client.client import Place
from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.client.options import OnDataLoss, parse_read_options
from penstock.pipeline.reading.offsets import Range, limited_ends, packed, split

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers is missing"),
        ({**GIVEN, "kafka.bootstrap.servers": "here"}, "'here' does not have the form HOST:PORT"),
        ({**GIVEN, "assign": '{"t":[0]}'}, "subscribe and assign are set"),
        ({"kafka.bootstrap.servers": "a:1"}, "exactly one of .* none is set"),
        ({**GIVEN, "startingOffsets": "begin"}, "earliest, latest or JSON, not 'begin'"),
        (
            {**GIVEN, "startingOffsets": '{"t":{"0":-3}}'},
            ">= -2; the value for topic t, partition 0 is invalid",
        ),
        ({**GIVEN, "startingOffsets": "latest"}, "a batch read cannot begin at latest"),
        ({**GIVEN, "endingOffsets": "earliest"}, "a read cannot end at earliest"),
        ({**GIVEN, "minPartitions": "many"}, "minPartitions must be a whole number >= 1"),
        ({**GIVEN, "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({**GIVEN, "maxBytesPerTrigger": "1 ton"}, "maxBytesPerTrigger must be a size such as 64m"),
        ({**GIVEN, "columns": "key,size"}, "unknown column size; use key, value"),
        ({**GIVEN, "onCorrupt": "hide"}, "onCorrupt must be one of fail, skip, not 'hide'"),
        ({**GIVEN, "kafka.auto.offset.reset": "none"}, "set startingOffsets instead"),
        ({**GIVEN, "kafka.sasl.magic": "x"}, "sasl.magic is not supported"),
        ({**GIVEN, "subscribePatern": "x"}, "did you mean subscribePattern"),
        (
            {**GIVEN, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger 9 is above maxOffsetsPerTrigger 8",
        ),
    ],
)
def test_a_bad_option_is_refused_with_one_line_that_names_it(
    options: dict[str, str], why: str
) -> None:
    with pytest.raises(OptionInvalid, match=why) as caught:
        parse_read_options(options, is_streaming=False)
    assert "\n" not in str(caught.value)


def test_names_of_options_are_compared_without_case() -> None:
    given = {**GIVEN, "failondataloss": "FALSE", "MINPARTITIONS": "4"}
    found = parse_read_options(given, is_streaming=True)
    assert (found.on_data_loss, found.partitions_min) == (OnDataLoss.SKIP, 4)


def test_a_password_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    given = {
        **GIVEN,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password.file": str(file),
    }
    security = parse_read_options(given, is_streaming=False).connection.security
    assert (security.user, security.password) == ("ann", "s3cret")
    assert "s3cret" not in repr(security)


def test_ranges_are_split_without_gap_or_overlap() -> None:
    whole = [
        Range(Place("t", 0), 7, 1_007),
        Range(Place("t", 1), 0, 10),
        Range(Place("t", 2), 5, 5),
    ]
    for least, most in ((None, None), (1, None), (7, None), (None, 33), (50, 100)):
        parts = split(whole, partitions_min=least, records_max=most)
        assert len(parts) >= (least or 2) - 1
        assert all(0 < part.count <= (most or 1_000) for part in parts)
        covered = [(part.place, n) for part in parts for n in range(part.begin, part.end)]
        assert covered == [(each.place, n) for each in whole for n in range(each.begin, each.end)]


def test_small_neighbours_are_packed_together_and_large_ones_stay_alone() -> None:
    ranges = [
        Range(Place("t", n), 10, 10 + count) for n, count in enumerate((5, 90, 6, 200, 50, 50))
    ]
    packs = packed(ranges, records_max=100)
    assert [[each.count for each in pack] for pack in packs] == [[5, 90], [6], [200], [50, 50]]
    assert [each for pack in packs for each in pack] == ranges
    assert [len(pack) for pack in packed(ranges, records_max=0)] == [1] * 6


def test_a_limit_is_shared_out_by_what_there_is_and_starves_nobody() -> None:
    begins = {Place("t", n): 100 for n in range(3)}
    ends = {Place("t", 0): 1_100, Place("t", 1): 101, Place("t", 2): 100}
    assert limited_ends(begins, ends, 100) == {
        Place("t", 0): 199,
        Place("t", 1): 101,
        Place("t", 2): 100,
    }
    assert limited_ends(begins, ends, 5_000) == ends
