"""Cedar policies: caps, and that nothing but a clean allowance allows."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bcd.model.caller import Caller
from bcd.model.errors import BadConfiguration
from bcd.model.pool import SharingPolicy
from bcd.model.reservation import Resources
from bcd.placer.admission.attributes import Attributes, Place, attributes_of
from bcd.placer.admission.policy import (
    Action,
    Allowed,
    CedarPolicy,
    Confirmation,
    Decision,
    Denied,
)
from bcd.placer.admission.request import parse_create
from tests.placer.admission.test_request import ALICE, document

CAPS = """
@id("research")
permit (principal in Compute::Group::"research",
        action == Compute::Action::"compute:reservations:create", resource)
when {
  principal.tenants.contains(resource.tenant) && ["eu-1", "eu-2"].contains(resource.region)
  && resource.gpus <= 8 && resource.durationHours <= 72 && !resource.models.contains("any")
};

@id("no-notebooks")
forbid (principal, action, resource) when { resource.labels.contains("kind=notebook") };
"""
SAMPLE = Path(__file__).parents[3] / "packaging/caps.cedar"
RESEARCHER = replace(ALICE, groups=frozenset({"research"}))


def policy(folder: Path, text: str) -> CedarPolicy:
    (folder / "caps.cedar").write_text(text)
    return CedarPolicy(folder)


def resource(region: str = "eu-1", count: int = 8, **changes: Any) -> Attributes:
    devices = [{"class": "gpu", "count": count, "model": changes.pop("model", "H100")}]
    asked = document(devices=devices, **({"duration": "72h"} | changes))
    place = Place(region, (), SharingPolicy())
    return attributes_of("acme", ALICE.owner, place, parse_create(asked).request, Resources())


ANY_MODEL = resource("us-1", model="")


def decided(folder: Path, asked: Attributes, caller: Caller = RESEARCHER) -> Decision:
    return policy(folder, CAPS).decide(caller, Action.CREATE, asked)


def test_at_most_8_h100s_for_at_most_72_hours_in_these_regions_is_one_policy(
    tmp_path: Path,
) -> None:
    assert decided(tmp_path, resource()) == Allowed()
    assert decided(tmp_path, resource("eu-2", count=1, duration="1h")) == Allowed()


@pytest.mark.parametrize(
    ("asked", "caps"),
    [
        (resource(count=9), ("gpus",)),
        (resource(duration="72h1ms"), ("duration",)),
        (resource(model=""), ("models",)),
        (resource("us-1"), ()),
        (resource(count=9, duration="100h"), ()),
    ],
    ids=["too many", "too long", "any model", "elsewhere", "two caps at once"],
)
def test_a_refusal_names_the_caps_that_failed(
    tmp_path: Path, asked: Attributes, caps: tuple[str, ...]
) -> None:
    assert decided(tmp_path, asked) == Denied(caps=caps)


def test_a_forbidding_rule_is_named_by_its_id(tmp_path: Path) -> None:
    refused = decided(tmp_path, resource(labels={"kind": "notebook"}))
    assert isinstance(refused, Denied)
    assert (refused.rules, refused.caps) == (("no-notebooks",), ("labels",))
    assert "no-notebooks" in refused.sentence


def test_who_may_not_read_is_told_of_no_caps(tmp_path: Path) -> None:
    """They could not ask for less; and the answer costs ten decisions, in a list for every row."""
    text = "permit (principal, action, resource);" + CAPS
    capped = policy(tmp_path, text)
    asked = resource(labels={"kind": "notebook"})
    told = ("no-notebooks",)
    assert capped.decide(RESEARCHER, Action.CREATE, asked) == Denied(told, caps=("labels",))
    assert capped.decide(RESEARCHER, Action.READ, asked) == Denied(told)


def test_callers_outside_the_group_and_other_actions_are_refused(tmp_path: Path) -> None:
    assert decided(tmp_path, resource(), ALICE) == Denied()
    capped = policy(tmp_path, CAPS)
    assert isinstance(capped.decide(RESEARCHER, Action.READ, resource()), Denied)


def test_without_policies_everybody_acts_within_their_own_tenants() -> None:
    default = CedarPolicy()
    other = replace(ALICE, tenants=frozenset({"other"}))
    for action in Action:
        assert default.decide(ALICE, action, resource()) == Allowed()
        assert isinstance(default.decide(other, action, resource()), Denied)


BROKEN_FORBID = """
@id("all")
permit (principal, action, resource);
@id("broken")
forbid (principal, action, resource)
when { resource.durationMs * 9223372036854775807 > 1 };
"""


def test_a_forbid_that_errors_refuses_instead_of_being_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        refused = policy(tmp_path, BROKEN_FORBID).decide(RESEARCHER, Action.CREATE, resource())
    assert refused == Denied(broken=True)
    assert "policy error" in caplog.text


def test_a_policy_error_says_nothing_of_the_entities_or_the_permitting_rules(
    tmp_path: Path,
) -> None:
    refused = policy(tmp_path, BROKEN_FORBID).decide(RESEARCHER, Action.CREATE, resource())
    assert isinstance(refused, Denied)
    for secret in ("alice", "acme", "all", "9223372036854775807", "Compute::"):
        assert secret not in refused.sentence.replace("evaluated", "").replace("could", "")


def test_a_permit_that_errors_allows_nothing(tmp_path: Path) -> None:
    text = (
        "permit (principal, action, resource)"
        " when { resource.durationMs * 9223372036854775807 > 1 };"
    )
    assert isinstance(policy(tmp_path, text).decide(ALICE, Action.CREATE, resource()), Denied)


@pytest.mark.parametrize(
    "text",
    [
        "permit (",
        "permit (principal, action, resource) when { resource.surprise == 1 };",
        "permit (principal, action, resource) when { resource.gpus == 4.5 };",
        'permit (principal, action, resource) when { resource.gpus == "8" };',
        'permit (principal, action == Compute::Action::"compute:reservations:nope", resource);',
        'permit (principal == Compute::Robot::"x", action, resource);',
        'forbid (principal, action, resource) when { resource.getTag("model:H100") > 8 };',
        "\x00",
    ],
    ids=ascii,
)
def test_a_policy_that_does_not_fit_the_schema_is_refused_by_file_at_loading(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BadConfiguration, match=r"caps\.cedar"):
        policy(tmp_path, text)


def test_a_folder_without_policies_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadConfiguration, match="refuse everything"):
            CedarPolicy(folder)


def test_a_file_without_a_policy_is_refused(tmp_path: Path) -> None:
    for text in ("", "// permit (principal, action, resource);"):
        with pytest.raises(BadConfiguration, match=r"caps\.cedar: has no policy"):
            policy(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.cedar").mkdir()
    with pytest.raises(BadConfiguration, match=r"folder\.cedar: cannot be read"):
        CedarPolicy(tmp_path)


def test_the_sample_caps_requests_and_lets_only_owners_end_and_extend(tmp_path: Path) -> None:
    sample = policy(tmp_path, SAMPLE.read_text())

    def may(action: Action, asked: Attributes) -> tuple[str, ...]:
        decision = sample.decide(ALICE, action, asked)
        return decision.rules if isinstance(decision, Denied) else ()

    for action in (Action.CREATE, Action.EXTEND):
        assert may(action, resource()) == ()
        for over in (resource(count=9), resource(duration="73h"), resource("us-1"), ANY_MODEL):
            assert may(action, over) == ("h100-cap",)
    assert may(Action.CREATE, resource("us-1", count=99, model="A100")) == ()
    theirs = replace(resource(), attrs={**resource().attrs, "owner": "issuer|somebody"})
    assert may(Action.RELEASE, resource()) == ()
    for action in (Action.RELEASE, Action.EXTEND):
        assert may(action, theirs) == ("own-reservations",)
    assert may(Action.READ, theirs) == ()
    operator = replace(ALICE, groups=frozenset({"ops"}))
    assert sample.decide(operator, Action.RELEASE, theirs) == Allowed()


def test_the_sample_lets_an_agent_extend_a_day_and_renew_what_was_confirmed(tmp_path: Path) -> None:
    sample = policy(tmp_path, SAMPLE.read_text())
    agent = replace(ALICE, actor="bot")
    assert sample.decide(agent, Action.EXTEND, resource(duration="24h")) == Allowed()
    long = resource(duration="25h")
    refused = sample.decide(agent, Action.EXTEND, long)
    assert isinstance(refused, Denied)
    assert refused.rules == ("agents-extend",)
    assert sample.decide(ALICE, Action.EXTEND, long) == Allowed()
    assert sample.decide(agent, Action.EXTEND, long, Confirmation.APPROVED) == Allowed()


def test_a_file_beyond_all_reason_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="larger than"):
        policy(tmp_path, "// " + "x" * (1 << 20))
    for text in (
        f"permit (principal, action, resource) when {{ {'(' * 3000}true{')' * 3000} }};",
        f"permit (principal, action, resource) when {{ {'[' * 3000}1{']' * 3000} == [] }};",
    ):
        with pytest.raises(BadConfiguration, match=r"caps\.cedar: is nested more than 100 deep"):
            policy(tmp_path, text)


@pytest.mark.timeout(30)
def test_a_pipe_or_a_device_is_refused_unread(tmp_path: Path) -> None:
    for name, make in (("pipe", os.mkfifo), ("zero", lambda path: path.symlink_to("/dev/zero"))):
        path = tmp_path / name / "a.cedar"
        path.parent.mkdir()
        make(path)
        with pytest.raises(BadConfiguration, match=r"a\.cedar: .*is not a plain file"):
            CedarPolicy(path.parent)


def test_policies_that_are_loaded_again_count_from_then_on_unless_they_are_broken(
    tmp_path: Path,
) -> None:
    loaded = policy(tmp_path, "permit (principal, action, resource);")
    (tmp_path / "caps.cedar").write_text("permit (")
    with pytest.raises(BadConfiguration, match="is not Cedar"):
        loaded.load(tmp_path)
    assert loaded.decide(ALICE, Action.CREATE, resource()) == Allowed()
    (tmp_path / "caps.cedar").write_text("forbid (principal, action, resource);")
    loaded.load(tmp_path)
    assert isinstance(loaded.decide(ALICE, Action.CREATE, resource()), Denied)


def test_policies_of_all_files_count_together(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(
        "permit (principal, action, resource); // no line end after this"
    )
    (tmp_path / "b.cedar").write_text(
        '@id("cap") forbid (principal, action, resource) when { resource.gpus > 4 };'
    )
    both = CedarPolicy(tmp_path)
    assert both.decide(ALICE, Action.CREATE, resource(count=4)) == Allowed()
    assert both.decide(ALICE, Action.CREATE, resource(count=5)) == Denied(("cap",), ("gpus",))


def test_a_rule_may_count_one_class_or_model(tmp_path: Path) -> None:
    capped = policy(
        tmp_path,
        "permit (principal, action, resource);\n"
        "forbid (principal, action, resource) when {"
        ' resource.hasTag("model:H100") && resource.getTag("model:H100") > 4 };',
    )
    assert capped.decide(ALICE, Action.CREATE, resource(count=4)) == Allowed()
    assert capped.decide(ALICE, Action.CREATE, resource(count=9, model="A100")) == Allowed()
    refused = capped.decide(ALICE, Action.CREATE, resource(count=5, model="nvidia h100"))
    assert isinstance(refused, Denied)


def test_an_agent_may_be_held_to_less(tmp_path: Path) -> None:
    capped = policy(
        tmp_path,
        "permit (principal, action, resource) when { !principal.delegated || resource.gpus <= 2 };",
    )
    agent = replace(ALICE, actor="agent-7")
    assert capped.decide(ALICE, Action.CREATE, resource(count=8)) == Allowed()
    assert capped.decide(agent, Action.CREATE, resource(count=2)) == Allowed()
    assert capped.decide(agent, Action.CREATE, resource(count=3)) == Denied(caps=("gpus",))


CONFIRM = """
permit (principal, action, resource) when { resource.gpus <= 8 };
@id("confirm:large")
forbid (
  principal,
  action in
    [Compute::Action::"compute:reservations:create",
     Compute::Action::"compute:reservations:extend"],
  resource
)
when { principal.delegated && resource.gpus > 2 }
unless { context.confirmation == "approved" };
"""
AGENT = replace(ALICE, actor="agent-7")


def test_what_an_agent_may_only_with_the_persons_word_is_confirmable(tmp_path: Path) -> None:
    """Spec 13: refused as it is and allowed as confirmed; refused twice is no more than refused."""
    held = policy(tmp_path, CONFIRM)

    def decide(count: int, *word: Confirmation, caller: Caller = AGENT) -> Decision:
        return held.decide(caller, Action.CREATE, resource(count=count), *word)

    assert decide(2) == Allowed()
    assert decide(4) == Denied(("confirm:large",), ("gpus",), confirmable=True)
    assert decide(4, Confirmation.APPROVED) == Allowed()
    refused = decide(9)
    assert isinstance(refused, Denied)
    assert not refused.confirmable
    assert decide(9, Confirmation.APPROVED) == Denied(caps=("gpus",))
    assert decide(8, caller=ALICE) == Allowed()


def test_only_an_agents_request_can_be_confirmed(tmp_path: Path) -> None:
    """A rule that forgets to ask for an agent denies the person: nobody could confirm it."""
    held = policy(tmp_path, CONFIRM.replace("principal.delegated && ", ""))
    assert held.decide(ALICE, Action.CREATE, resource(count=4)) == Denied(
        ("confirm:large",), ("gpus",)
    )


def test_an_error_under_confirmation_is_no_confirmation(tmp_path: Path) -> None:
    text = CONFIRM + (
        'forbid (principal, action, resource) when { context.confirmation == "approved"'
        " && resource.durationMs * 9223372036854775807 > 1 };"
    )
    held = policy(tmp_path, text)
    refused = held.decide(AGENT, Action.CREATE, resource(count=4))
    assert isinstance(refused, Denied)
    assert not refused.confirmable
    assert held.decide(AGENT, Action.CREATE, resource(count=4), Confirmation.APPROVED) == Denied(
        broken=True
    )


def test_the_sample_lets_agents_have_little_and_asks_for_more(tmp_path: Path) -> None:
    sample = policy(tmp_path, SAMPLE.read_text())
    assert sample.decide(AGENT, Action.CREATE, resource(count=2, duration="24h")) == Allowed()
    for more in (resource(count=3, duration="24h"), resource(count=1, duration="25h")):
        refused = sample.decide(AGENT, Action.CREATE, more)
        assert isinstance(refused, Denied)
        assert (refused.rules, refused.confirmable) == (("confirm:large",), True)
        assert "needs the word of the person" in refused.sentence
        assert sample.decide(AGENT, Action.CREATE, more, Confirmation.APPROVED) == Allowed()
    beyond = sample.decide(AGENT, Action.CREATE, resource(count=9))
    assert isinstance(beyond, Denied)
    assert not beyond.confirmable


def test_a_refusal_names_the_caps_first_and_no_more_than_five_rules() -> None:
    rules = tuple(f"rule-{number}" for number in reversed(range(9)))
    assert Denied(rules, ("gpus", "labels")).sentence == (
        "over the cap on gpus; other labels might pass; forbidden by"
        " rule-0, rule-1, rule-2, rule-3, rule-4 and 4 more"
    )
    assert Denied(("b", "a")).sentence == "forbidden by a, b"
