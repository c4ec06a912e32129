"""A record says everything, always in the same bytes, and refuses what it cannot read."""

import json
from dataclasses import replace

import pytest

from labcli.record import RecordError, ResultRecord


def test_a_record_reads_back_as_it_was_written(record):
    assert ResultRecord.from_json(record.to_json()) == record


def test_keys_stand_in_one_order_with_the_version_first(record):
    keys = list(json.loads(record.to_json()))
    assert keys[:5] == ["schema_version", "run_id", "started_at", "finished_at", "environment"]
    assert replace(record).to_json() == record.to_json()


def test_a_number_that_json_lacks_is_refused(record):
    with pytest.raises(RecordError, match="finite"):
        replace(record, details={"x": float("nan")}).to_json()


def test_an_object_that_json_lacks_is_refused(record):
    with pytest.raises(RecordError, match="a set cannot be recorded"):
        replace(record, details={"x": {1}}).to_json()


ONE = {"name": "hits", "unit": "tokens", "samples": [1], "predicted": None}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"schema_version": 3}, "schema_version 3 is newer than this labcli reads; accepted: 1 to 2"),
        ({"schema_version": None}, "schema_version is None; accepted: 1 to 2"),
        ({"status": "good"}, "status is 'good'; accepted: ok, disagrees, interrupted, failed"),
        ({"target": []}, "target is a list"),
        ({"surprise": 1}, r"unknown: \['surprise'\]"),
        ({"lab": {"number": 4}}, "lab lacks one of number, name, question"),
        ({"measurements": [{"name": "hits"}]}, r"a measurement does not fit: fields missing: \['unit', 'samples'\]"),
        ({"measurements": ["x"]}, "a measurement does not fit: a text stands where an object is expected"),
        ({"measurements": [{**ONE, "wrong": 1}]}, r"a measurement does not fit: fields missing: none, unknown: \['wrong'\]"),
        ({"measurements": [{**ONE, "samples": 5}]}, "a number stands where a list is expected"),
        ({"measurements": [{**ONE, "samples": [1e301]}]}, "a number is larger than 1e.300, thus no finite number"),
        ({"measurements": [{**ONE, "predicted": 5}]}, "a number stands where an object is expected"),
        ({"measurements": [{**ONE, "predicted": {"value": 1}}]}, r"fields missing: \['law'\]"),
        ({"measurements": [{**ONE, "params": []}]}, "the params of hits are a list"),
        ({"charts": [{}]}, r"a chart does not fit: fields missing: \['kind', 'title', 'series'\]"),
        ({"charts": [{"kind": "bars", "title": "t", "series": "x"}]}, "a text stands where a list is expected"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_name(record, change, message):
    content = {**json.loads(record.to_json()), **change}
    with pytest.raises(RecordError, match=message):
        ResultRecord.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "{", "{}"])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(RecordError):
        ResultRecord.from_json(text)


def test_a_missing_field_is_named(record):
    content = json.loads(record.to_json())
    del content["environment"]
    with pytest.raises(RecordError, match=r"missing: \['environment'\]"):
        ResultRecord.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ['{"schema_version": ' + "9" * 5000 + "}", "[" * 100_000, "{"])
def test_what_cannot_be_read_is_told_without_words_of_python(text):
    with pytest.raises(RecordError) as refused:
        ResultRecord.from_json(text)
    assert not any(word in str(refused.value) for word in ("sys.", "__init__", "int_max", "str", "object is not"))
