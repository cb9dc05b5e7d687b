"""What a played tool may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.environments.simulated.facts import Outcome, Reply, contradiction, merge_patch

STATE: dict[str, Any] = {
    "orders": {"17": {"id": "17", "status": "open", "customer_id": "c1"}},
    "customers": [{"id": "c1", "name": "Ada"}],
}


def problem(
    outcome: str = "ok",
    result: Any = None,
    *,
    error: str = "",
    patch: dict[str, Any] | None = None,
    tool: str = "get_order",
    reads: bool = True,
    **arguments: Any,
) -> str:
    reply = Reply(Outcome(outcome), result, error, patch or {})
    return contradiction(reply, tool=tool, arguments=arguments, state=STATE, reads=reads)


@pytest.mark.parametrize(
    ("state", "patch", "after"),
    [
        ({"a": 1}, {"b": {"c": None, "d": 2}}, {"a": 1, "b": {"d": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": [1]}, {"a": [2, 3]}, {"a": [2, 3]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
def test_patches_merge_as_the_standard_says(state: Any, patch: Any, after: Any) -> None:
    assert merge_patch(state, patch) == after


def test_a_true_reply_passes() -> None:
    assert problem(result=STATE["orders"]["17"], id="17") == ""
    assert problem(result=[{"id": "17", "status": "open"}], tool="list_orders") == ""
    seen = {"parcels": {"p9": {"id": "p9", "order_id": "17"}}}
    assert problem(result={"id": "p9", "order_id": "17"}, patch=seen, tool="get_parcel") == ""
    paid = {"orders": {"17": {"status": "paid"}}}
    assert problem(result={"id": "17", "status": "paid"}, patch=paid, tool="pay", reads=False) == ""
    gone = {"orders": {"17": None}}
    assert problem(result={"id": "17"}, patch=gone, tool="delete_order", reads=False, id="17") == ""


def test_a_read_adds_and_changes_nothing() -> None:
    assert "/orders/17/status changes" in problem(patch={"orders": {"17": {"status": "paid"}}})
    assert "/orders/17 changes" in problem(patch={"orders": {"17": None}})
    assert problem(patch={"orders": {"17": {"status": "open", "colour": "red"}}}) == ""


def test_a_created_id_must_be_found_later() -> None:
    made = {"id": "18", "status": "open"}
    assert "id 18 is in the result and not in the state" in problem(result=made, tool="order", reads=False)
    assert problem(result=made, tool="order", reads=False, patch={"orders": {"18": made}}) == ""
    assert "id c7" in problem(result={"name": "x", "customer_id": "c7"})
    assert "id 5" in problem(result=[{"parcelId": 5}])


def test_a_record_agrees_with_the_state() -> None:
    said = problem(result={"id": "17", "status": "paid"}, id="17")
    assert said == "record 17: status is 'paid' in the result and 'open' in the state"
    assert "name" in problem(result={"orders": [{"id": "c1", "name": "Bob"}]})
    late = {"orders": {"17": {"status": "paid"}}}
    assert "record 17" in problem(result={"id": "17", "status": "open"}, patch=late, tool="pay", reads=False)


def test_what_the_state_holds_is_found() -> None:
    said = problem("not_found", error="No such order.", id="17")
    assert said == "id 17 was not found, but the state holds it"
    assert problem("not_found", error="None.", tool="find", order_id="17") != ""
    assert problem("not_found", error="None.", tool="find", customer="c1") != ""
    assert problem("not_found", error="None.", id="18") == ""
    assert problem("not_found", error="None.", tool="get_parcel", id="17") == "", "another collection"
    assert problem("not_found", error="None.", tool="get_parcel", order_id="17", parcel_id="p1") == ""


def test_a_failure_says_why_and_changes_nothing() -> None:
    assert "patch must be {}" in problem("error", error="No.", patch={"a": 1})
    assert "says why" in problem("error", error=" ")
    assert problem("error", error="Closed on Sundays.", id="17") == ""
