"""The JSON codec: lower camel case, numbers as numbers, strict in names, types and ranges."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.errors import InvalidInput
from bcd.wire.compute.v1 import admin_pb2
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.document import MAX_DOCUMENT_BYTES, from_document, parse_json, to_document
from bcd.wire.unknown import unknown_field

Create = pb.CreateReservationRequest

FULL: dict[str, Any] = {
    "tenantId": "acme",
    "poolId": "pool_x",
    "devices": [
        {"class": "gpu", "count": 4, "topology": "nvlink-all"},
        {"class": "gpu.mig", "count": 1, "profile": "1g.10gb"},
    ],
    "duration": "8h",
    "start": 1_900_000_000_000,
    "binding": "hold",
    "resources": {"vcpu": 8, "memoryGiB": 64, "hugepages1Gi": 0},
    "spot": False,
    "leaseSeconds": 3600,
    "labels": {"team": "ml", "": "empty key"},
    "dryRun": True,
    "idempotencyKey": "k",
}


def refused(document: dict[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        from_document(document, Create)
    return caught.value


def test_a_document_and_its_message_say_the_same() -> None:
    message = from_document(FULL, Create)
    assert to_document(message) == FULL
    assert message.devices[0].count == 4
    assert message.resources.memory_gib == 64


def test_numbers_stay_numbers_however_large() -> None:
    document = to_document(pb.Reservation(version=(1 << 63) - 1, during=pb.Window(start=1 << 53)))
    assert document == {"during": {"start": 1 << 53}, "version": (1 << 63) - 1}


def test_a_duration_may_be_a_number_of_milliseconds() -> None:
    assert from_document({"duration": 28_800_000}, Create).duration == "28800000"
    assert refused({"duration": 8.5}).field == "duration"
    assert refused({"duration": True}).field == "duration"
    assert refused({"binding": 1}).field == "binding"  # no other text may


def test_zero_is_told_from_absent_where_it_matters() -> None:
    message = from_document({"devices": [{"class": "gpu", "count": 0}]}, Create)
    assert message.devices[0].HasField("count")
    assert to_document(message) == {"devices": [{"class": "gpu", "count": 0}]}
    absent = from_document({"devices": [{}]}, Create)
    assert not absent.devices[0].HasField("count")
    assert from_document({"resources": {}}, Create).HasField("resources")


def test_null_means_absent() -> None:
    assert from_document(dict.fromkeys(FULL), Create) == Create()


def test_defaults_are_shown_when_asked_for() -> None:
    document = to_document(pb.Operation(id="x"), defaults=True)
    assert document == {"id": "x", "state": ""}
    assert to_document(pb.Operation()) == {}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"tenant": "x"}, "tenant"),
        ({"tenant_id": "x"}, "tenant_id"),
        ({"TenantId": "x"}, "TenantId"),
        ({"devices": [{}, {"classes": "gpu"}]}, "devices[1].classes"),
        ({"resources": {"memoryGib": 1}}, "resources.memoryGib"),
        ({"gang": {"size": 1, "x": {}}}, "gang.x"),
        ({"": 1}, ""),
    ],
)
def test_unknown_names_are_refused_with_their_path(document: dict[str, Any], path: str) -> None:
    error = refused(document)
    assert (error.field, error.rule) == (path, "is not a known field")


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"tenantId": 1}, "tenantId"),
        ({"tenantId": ["x"]}, "tenantId"),
        ({"tenantId": {}}, "tenantId"),
        ({"devices": {}}, "devices"),
        ({"devices": "gpu"}, "devices"),
        ({"devices": ["gpu"]}, "devices[0]"),
        ({"devices": [None]}, "devices[0]"),
        ({"devices": [{"count": "4"}]}, "devices[0].count"),
        ({"devices": [{"count": 4.0}]}, "devices[0].count"),
        ({"devices": [{"count": True}]}, "devices[0].count"),
        ({"devices": [{"count": 1 << 63}]}, "devices[0].count"),
        ({"start": -(1 << 63) - 1}, "start"),
        ({"resources": []}, "resources"),
        ({"resources": "all"}, "resources"),
        ({"labels": []}, "labels"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labels": {"a": None}}, "labels"),
        ({"dryRun": "true"}, "dryRun"),
        ({"dryRun": 1}, "dryRun"),
    ],
)
def test_wrong_types_are_refused_with_their_path(document: dict[str, Any], path: str) -> None:
    assert refused(document).field == path


def test_a_very_long_name_is_not_repeated_whole() -> None:
    assert len(refused({"x" * 100_000: 1}).message) < 1000


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "null", '"x"', "{", "{'a': 1}", '{"a": 1} x', "\xff"]
)
def test_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_json(text.encode("latin-1"), "request.json")
    assert caught.value.field == "request.json"


def test_deep_and_large_texts_are_refused() -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    for text in (deep, " " * (MAX_DOCUMENT_BYTES + 1)):
        with pytest.raises(InvalidInput):
            parse_json(text, "request.json")


def test_text_of_a_byte_too_many_is_measured_in_bytes() -> None:
    assert parse_json('{"a": "ä"}', "x") == {"a": "ä"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"count": 1, "count": 8}', "count"),
        ('{"devices": [{"class": "gpu", "count": 1, "count": 1}]}', "count"),
        ('{"labels": {"a": "x", "b": "y", "a": "z"}}', "a"),
        ('{"\\u001b[2J": 1, "\\u001b[2J": 2}', "\ufffd[2J"),
    ],
)
def test_a_key_twice_is_refused_by_its_name(text: str, key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_json(text, "request.json")
    assert (caught.value.field, caught.value.rule) == (
        "request.json",
        f"has the key {key} twice",
    )


def test_many_keys_cost_little() -> None:
    many = {f"key{number}": "x" * 20 for number in range(20_000)}
    assert parse_json(json.dumps(many), "x") == many
    twice = json.dumps(many)[:-1] + ', "key19999": 1}'
    start = time.process_time()
    with pytest.raises(InvalidInput, match="key19999"):
        parse_json(twice, "x")
    assert time.process_time() - start < 1


def test_a_byte_order_mark_is_no_part_of_the_document() -> None:
    for text in ("\ufeff{}", "\ufeff{}".encode()):
        assert parse_json(text, "x") == {}
    with pytest.raises(InvalidInput, match="is not JSON"):
        parse_json("{}".encode("utf-16"), "x")


@pytest.mark.parametrize("digits", [20, 100, 10_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_of_any_length_is_refused_by_its_field(digits: int, sign: str) -> None:
    document = parse_json(f'{{"devices": [{{"count": {sign}{"9" * digits}}}]}}', "x")
    error = refused(document)
    assert (error.field, error.rule) == ("devices[0].count", "must be an integer within range")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_said_so(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"has {text}"):
        parse_json(f'{{"start": {text}}}', "x")


@pytest.mark.parametrize("key", ["\x1b[2J", "a\nb", "nul\0", "\u202ered", "\ud800"])
def test_a_quoted_name_does_not_reach_the_terminal_raw(key: str) -> None:
    for document in ({key: 1}, {"devices": [{key: 1}]}, {"gang": {key: 1}}):
        error = refused(document)
        assert error.message.isprintable()
        assert error.field.isprintable()
        assert key not in error.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*FULL, "class", "count", "size", "x"]), inner)
        ),
        max_leaves=20,
    )
)
def test_any_document_is_read_or_refused_by_name(value: Any) -> None:
    document = value if isinstance(value, dict) else {"devices": value}
    try:
        message = from_document(document, Create)
    except InvalidInput:
        return
    assert isinstance(message, Create)


def test_a_lone_surrogate_is_refused() -> None:
    assert refused({"tenantId": "\ud800"}).field == "tenantId"
    assert refused({"labels": {"\ud800": "x"}}).field == "labels"


UNKNOWN = bytes([0xF8, 0x3E, 0x01])  # field 1007, a varint


def test_known_messages_have_no_unknown_field() -> None:
    assert unknown_field(from_document(FULL, Create)) is None
    assert unknown_field(admin_pb2.Node()) is None


def test_unknown_fields_in_binary_are_found_at_any_depth() -> None:
    assert unknown_field(Create.FromString(UNKNOWN)) == "#1007"
    device = pb.DeviceRequest.FromString(UNKNOWN)
    message = from_document(FULL, Create)
    message.devices.append(device)
    assert unknown_field(message) == "devices[2].#1007"
    nested = Create(resources=pb.Resources.FromString(UNKNOWN))
    assert unknown_field(nested) == "resources.#1007"
    answer = pb.CreateReservationResponse(
        reservation=pb.Reservation(
            request=pb.ReservationRequest(devices=[pb.DeviceRequest(), device])
        )
    )
    assert unknown_field(answer) == "reservation.request.devices[1].#1007"


def test_an_unknown_field_beside_known_ones_survives_a_round_trip_and_is_found() -> None:
    content = from_document(FULL, Create).SerializeToString() + UNKNOWN
    assert unknown_field(Create.FromString(content)) == "#1007"
