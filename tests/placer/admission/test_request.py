"""A create's normal form: bounds, paths in refusals, hash and id."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.caller import Caller
from bcd.model.errors import BcdError, InvalidInput, Unsupported
from bcd.model.ids import is_reservation_id
from bcd.model.reservation import Resources
from bcd.model.units import MAX_DURATION_MS
from bcd.placer.admission.request import (
    MAX_WAIT_MS,
    Create,
    check_start,
    parse_create,
    request_hash,
    reservation_id,
)

POOL_ID = "pool_01k0000000000000000000000a"
ALICE = Caller(issuer="https://issuer", subject="alice", tenants=frozenset({"acme"}))


def document(**changes: object) -> dict[str, Any]:
    """A sound create with some of its fields changed."""
    return {
        "tenantId": "acme",
        "poolId": POOL_ID,
        "devices": [{"class": "gpu", "count": 4}],
        "duration": "2h",
        "idempotencyKey": "k",
        **changes,
    }


def device(**changes: object) -> dict[str, Any]:
    return document(devices=[{"class": "gpu", "count": 1, **changes}])


def refusal(given_document: Mapping[str, Any]) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        parse_create(given_document)
    return refused.value


def hash_of(**changes: object) -> str:
    return request_hash(parse_create(document(**changes)).request)


def test_a_minimal_create_gets_its_defaults() -> None:
    create = parse_create(document())
    (ask,) = create.request.devices
    assert (ask.device_class, ask.count, ask.topology, ask.model) == ("gpu", 4, "any", "")
    assert create.request.duration == "7200000ms"
    assert create.request.binding == "hold"
    assert (create.wait_ms, create.dry_run) == (0, False)


SOUND = {
    "count 1": device(count=1),
    "count 1024": device(count=1024),
    "8 entries": document(devices=[{"class": "gpu", "count": 1}] * 8),
    "MIG with a profile": device(**{"class": "gpu.mig", "profile": "1g.10gb"}),
    "topology": device(topology="nvlink-all"),
    "32 labels": document(labels={f"k{i}": "v" for i in range(32)}),
    "label key of 256 bytes": document(labels={"k" * 256: ""}),
    "key of 256 bytes": document(idempotencyKey="é" * 128),
    "spot false": document(spot=False),
    "a zero wait": document(wait={"timeoutMs": 0}),
    "the default binding": document(binding="hold"),
}


@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND.keys())
def test_what_is_within_bounds_is_taken(sound: dict[str, Any]) -> None:
    assert isinstance(parse_create(sound), Create)


UNSOUND = {
    "no tenant": ("tenantId", {k: v for k, v in document().items() if k != "tenantId"}),
    "no key": ("idempotencyKey", {k: v for k, v in document().items() if k != "idempotencyKey"}),
    "no devices": ("devices", {k: v for k, v in document().items() if k != "devices"}),
    "empty tenant": ("tenantId", document(tenantId="")),
    "tenant of 257 bytes": ("tenantId", document(tenantId="t" * 257)),
    "tenant of 256 characters, more bytes": ("tenantId", document(tenantId="é" * 129)),
    "pool without its form": ("poolId", document(poolId="pool_1")),
    "another kind's id": ("poolId", document(poolId=POOL_ID.replace("pool", "node"))),
    "empty key": ("idempotencyKey", document(idempotencyKey="")),
    "key of 257 bytes": ("idempotencyKey", document(idempotencyKey="k" * 257)),
    "zero entries": ("devices", document(devices=[])),
    "9 entries": ("devices", document(devices=[{"class": "gpu", "count": 1}] * 9)),
    "devices as an object": ("devices", document(devices={})),
    "an entry that is none": ("devices[0]", document(devices=[4])),
    "no count": ("devices[0].count", document(devices=[{"class": "gpu"}])),
    "count 0": ("devices[0].count", device(count=0)),
    "count -1": ("devices[0].count", device(count=-1)),
    "count 1025": ("devices[0].count", device(count=1025)),
    "count of 100 bits": ("devices[0].count", device(count=1 << 100)),
    "half a count": ("devices[0].count", device(count=0.5)),
    "a true count": ("devices[0].count", device(count=True)),
    "no class": ("devices[0].class", document(devices=[{"count": 1}])),
    "unknown class": ("devices[0].class", device(**{"class": "tpu"})),
    "unknown topology": ("devices[0].topology", device(topology="ring")),
    "long model": ("devices[0].model", device(model="m" * 257)),
    "long profile": ("devices[0].profile", device(profile="p" * 257)),
    "33 labels": ("labels", document(labels={f"k{i}": "v" for i in range(33)})),
    "an empty label key": ("labels", document(labels={"": "v"})),
    "a label key of 257 bytes": ("labels", document(labels={"k" * 257: "v"})),
    "a long label": ("labels.k", document(labels={"k": "v" * 257})),
    "a number as label": ("labels[...]", document(labels={"k": 1})),
    "a number as label key": ("labels", document(labels={1: "v"})),
    "no duration": ("duration", {k: v for k, v in document().items() if k != "duration"}),
    "a zero duration": ("duration", document(duration="0h")),
    "a negative duration": ("duration", document(duration=-1)),
    "a fractional duration": ("duration", document(duration=1.5)),
    "half an hour spelt as a fraction": ("duration", document(duration="0.5h")),
    "a true duration": ("duration", document(duration=True)),
    "over ten years": ("duration", document(duration="11000d")),
    "a 64-bit overflow": ("duration", document(duration="9" * 30)),
    "an unknown unit": ("duration", document(duration="2y")),
    "unknown binding": ("binding", document(binding="lease")),
    "vcpu 4097": ("resources.vcpu", document(resources={"vcpu": 4097})),
    "vcpu -1": ("resources.vcpu", document(resources={"vcpu": -1})),
    "memory 65537": ("resources.memoryGiB", document(resources={"memoryGiB": 65537})),
    "pages 65537": ("resources.hugepages1Gi", document(resources={"hugepages1Gi": 65537})),
    "gang of 0": ("gang.size", document(gang={"size": 0})),
    "gang of 1025": ("gang.size", document(gang={"size": 1025})),
    "lease of 0": ("leaseSeconds", document(leaseSeconds=0)),
    "start before 1970": ("start", document(start=-1)),
    "node without profile": ("node.profileId", document(node={})),
    "node with an empty profile": ("node.profileId", document(node={"profileId": ""})),
    "wait without a time": ("wait.timeoutMs", document(wait={})),
    "wait into the past": ("wait.timeoutMs", document(wait={"timeoutMs": -1})),
    "spot as a word": ("spot", document(spot="yes")),
}


@pytest.mark.parametrize(("field", "unsound"), UNSOUND.values(), ids=UNSOUND.keys())
def test_what_is_out_of_bounds_is_refused_by_its_path(field: str, unsound: dict[str, Any]) -> None:
    refused = refusal(unsound)
    assert (refused.field, refused.details["field"]) == (field, field)
    assert refused.details["rule"]


@pytest.mark.parametrize(
    ("name", "values"),
    [("class", "gpu, gpu.mig, gpu.slot"), ("topology", "any, same-numa, nvlink-all")],
)
def test_a_word_that_is_none_of_a_fields_values_is_told_them(name: str, values: str) -> None:
    assert refusal(device(**{name: "ring"})).rule == f"must be one of {values}"


UNKNOWN = {
    "surprise": document(surprise=1),
    "devices[1].surprise": document(
        devices=[{"class": "gpu", "count": 1}, {"class": "gpu", "count": 1, "surprise": 1}]
    ),
    "resources.surprise": document(resources={"surprise": 1}),
    "gang.surprise": document(gang={"size": 1, "surprise": 1}),
    "node.surprise": document(node={"profileId": "p", "surprise": 1}),
    "wait.surprise": document(wait={"timeoutMs": 1, "surprise": 1}),
}


@pytest.mark.parametrize(("path", "unknown"), UNKNOWN.items(), ids=UNKNOWN.keys())
def test_an_unknown_field_is_named_by_its_path(path: str, unknown: dict[str, Any]) -> None:
    refused = refusal(unknown)
    assert (refused.field, refused.rule) == (path, "is not a known field")


UNSUPPORTED = {
    "node": document(node={"profileId": "p"}),
}


@pytest.mark.parametrize(("field", "asked"), UNSUPPORTED.items(), ids=UNSUPPORTED.keys())
def test_what_is_not_built_yet_answers_unsupported(field: str, asked: dict[str, Any]) -> None:
    with pytest.raises(Unsupported) as refused:
        parse_create(asked)
    assert refused.value.details["field"] == field


@pytest.mark.parametrize("binding", ["node", "instance"])
def test_bindings_other_than_a_hold_answer_unsupported(binding: str) -> None:
    with pytest.raises(Unsupported) as refused:
        parse_create(document(binding=binding))
    assert refused.value.details["field"] == "binding"
    assert binding in refused.value.message


def test_an_empty_resources_object_is_not_taken_for_its_absence() -> None:
    assert parse_create(document()).request.resources is None
    assert parse_create(document(resources={})).request.resources == Resources()
    assert hash_of(resources={}) != hash_of()
    assert hash_of(resources={"vcpu": 0}) == hash_of(resources={})


def test_resources_are_taken_as_they_are_asked_for() -> None:
    asked = {"vcpu": 4096, "memoryGiB": 65_536, "hugepages1Gi": 1}
    assert parse_create(document(resources=asked)).request.resources == Resources(
        vcpu=4096, memory_gib=65_536, hugepages_1gi=1
    )


def test_a_start_a_lease_and_spot_are_part_of_the_request_and_of_its_hash() -> None:
    asked = parse_create(document(start=1_900_000_000_000, spot=True, leaseSeconds=60)).request
    assert (asked.start, asked.spot, asked.lease_seconds) == (1_900_000_000_000, True, 60)
    assert request_hash(asked) != request_hash(parse_create(document()).request)


@pytest.mark.parametrize(
    ("start", "now", "rule"),
    [
        (1_000_000, 1_000_000 + 300_000, None),
        (1_000_000, 1_000_000 + 300_001, "is in the past"),
        (MAX_DURATION_MS, 0, None),
        (MAX_DURATION_MS + 1, 0, "at most ten years ahead"),
        (None, 0, None),
    ],
)
def test_a_start_is_neither_long_past_nor_out_of_reach(
    start: int | None, now: int, rule: str | None
) -> None:
    asked = parse_create(document(start=start) if start else document()).request
    if rule is None:
        check_start(asked, now)
    else:
        with pytest.raises(InvalidInput, match=rule) as refused:
            check_start(asked, now)
        assert refused.value.field == "start"


def test_a_wait_is_capped_at_thirty_seconds() -> None:
    assert parse_create(document(wait={"timeoutMs": 20_000})).wait_ms == 20_000
    assert parse_create(document(wait={"timeoutMs": 1 << 62})).wait_ms == MAX_WAIT_MS == 30_000


@pytest.mark.parametrize("duration", ["2h", "120m", "7200000", 7_200_000, "7200000ms", "1h60m"])
@pytest.mark.parametrize("binding", [{}, {"binding": "hold"}])
def test_spellings_and_defaults_make_one_request(
    duration: object, binding: dict[str, object]
) -> None:
    assert hash_of(duration=duration, **binding) == hash_of()


def test_the_hash_ignores_wait_dry_run_and_key() -> None:
    again = hash_of(wait={"timeoutMs": 5}, dryRun=True, idempotencyKey="other")
    assert again == hash_of()


def test_the_hash_covers_everything_else() -> None:
    others = (
        hash_of(),
        hash_of(poolId=POOL_ID[:-1] + "b"),
        hash_of(duration="3h"),
        hash_of(labels={"team": "a"}),
        hash_of(labels={"team": "b"}),
        request_hash(parse_create(device(count=1)).request),
        request_hash(parse_create(device(count=2)).request),
        request_hash(parse_create(device(topology="same-numa")).request),
        request_hash(parse_create(device(model="H100")).request),
        request_hash(parse_create(device(**{"class": "gpu.mig"})).request),
        request_hash(parse_create(device(**{"class": "gpu.mig", "profile": "1g.5gb"})).request),
    )
    assert len(set(others)) == len(others)


def test_the_order_of_labels_does_not_matter() -> None:
    labels = {"a": "1", "b": "2", "c": "3"}
    hashes = {hash_of(labels=dict(order)) for order in itertools.permutations(labels.items())}
    assert len(hashes) == 1


def test_an_id_has_the_documented_form_and_is_stable() -> None:
    made = reservation_id("acme", ALICE, "k")
    assert is_reservation_id(made)
    assert made == reservation_id("acme", replace(ALICE, admin=True), "k")


def test_one_key_is_another_row_for_another_tenant_identity_or_agent() -> None:
    callers = (
        ALICE,
        replace(ALICE, subject="bob"),
        replace(ALICE, issuer="https://other"),
        replace(ALICE, actor="agent"),
    )
    ids = {reservation_id(t, caller, k) for caller in callers for t in "ab" for k in "kl"}
    assert len(ids) == len(callers) * 4


PARTS = st.tuples(*(st.text("ab|\x00", max_size=4) for _ in range(5)))


@given(PARTS, PARTS)
def test_ids_are_equal_only_where_every_part_is(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    """Parts are length-prefixed: moving a character from one to the next makes another id."""
    ids = [
        reservation_id(
            tenant,
            Caller(issuer=issuer, subject=subject, actor=actor, tenants=frozenset()),
            key,
        )
        for tenant, issuer, subject, actor, key in (one, other)
    ]
    assert (ids[0] == ids[1]) == (one == other)


HOSTILE = ("\x00", "a\nb", "\x1b[31m", "\u202e", "x" * (1 << 20), "😀" * 300)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_texts_are_refused_by_path(text: str) -> None:
    for field in ("tenantId", "poolId", "idempotencyKey", "duration", "binding"):
        assert refusal(document(**{field: text})).field == field
    for field in ("class", "topology", "model", "profile"):
        assert refusal(device(**{field: text})).field == f"devices[0].{field}"
    assert refusal(document(labels={text: "v"})).field == "labels"
    assert refusal(document(labels={"k": text})).field == "labels.k"


@pytest.mark.parametrize(
    "broken",
    [
        document(tenantId="\ud800"),
        document(binding="\ud800"),
        document(**{"\ud800": 1}),
        device(model="\ud800"),
        device(**{"class": "\ud800"}),
        document(labels={"\ud800": "v"}),
    ],
    ids=ascii,
)
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(broken: dict[str, Any]) -> None:
    refusal(broken)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_refusal_never_repeats_more_than_a_header_holds(text: str) -> None:
    for unsound in (
        document(**{text: 1}),
        document(binding=text),
        device(**{"class": text}),
        device(**{text: 1}),
    ):
        refused = refusal(unsound)
        assert len(refused.message) <= 1024
        assert len(refused.field) <= 256


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(document())), JSON)
def test_no_value_of_a_field_does_anything_but_parse_or_be_refused(
    field: str, value: object
) -> None:
    refused: BcdError | None = None
    try:
        parse_create(document(**{field: value}))
    except BcdError as error:
        refused = error
    assert refused is None or refused.details["field"]
