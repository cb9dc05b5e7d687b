"""The record's own rules: identity, spans, masks, rewards, canonical JSON."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from pydantic import ValidationError

from data import canonical, errors, messages
from data.errors import RecordError
from data.messages import NamedValue
from data.tasks import Task
from data.trajectories import Origin, Segment, Span, SpanKind, Termination, Trajectory
from tests.data import records


def test_canonical_json_keeps_order_digest_does_not() -> None:
    assert canonical.dumps({"b": 1, "a": [2**70, None, {}]}) == '{"b":1,"a":[1180591620717411303424,null,{}]}'
    assert (
        canonical.digest({"b": 1, "a": 2}) == canonical.digest({"a": 2, "b": 1}) != canonical.digest({"a": 2})
    )
    assert canonical.loads(canonical.dumps("\ud800\x00")) == "\ud800\x00"


@settings(max_examples=50)
@given(records.json_values)
@example({"a": [2**70, -(2**70), 2**53 + 1], "": {}, "b": [None, [], {"\ud800": "<tool_call>\x00"}]})
def test_canonical_json_reads_back_equal(value: Any) -> None:
    read = canonical.loads(canonical.dumps(value))
    # A pair of lone surrogates is one character in JSON, whoever reads it.
    assert read == json.loads(json.dumps(value))
    assert canonical.dumps(read) == canonical.dumps(value)


@pytest.mark.parametrize(("total", "success"), [(0.0, False), (0.99, False), (1.0, True), (1.5, True)])
def test_success_is_a_total_of_at_least_1(total: float, success: bool) -> None:
    assert records.make_trajectory(1, reward=total).success is success
    assert records.make_trajectory(1, reward=None).success is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(RecordError, match="cannot be stored as JSON"):
        canonical.dumps({"x": value})


@pytest.mark.parametrize("text", ["NaN", '{"a":Infinity}', "[-Infinity]"])
def test_non_json_literals_are_refused_on_reading(text: str) -> None:
    with pytest.raises(RecordError, match="which is not JSON"):
        canonical.loads(text)


def test_a_task_id_covers_public_part_private_part_and_verifier() -> None:
    task = records.make_task(1, private='{"a":1}')
    changes: list[dict[str, Any]] = [
        {"private": '{"a":2}'},
        {"verifier": "desk/2"},
        {"state": '{"x":1}'},
        {"tags": ("refuse",)},
    ]
    ids = {records.make_task(1, **({"private": '{"a":1}'} | change)).task_id for change in changes}
    assert len(ids | {task.task_id}) == 5
    assert records.make_task(1, private='{"a":1}', split="dev").task_id == task.task_id
    assert Task.model_validate(task.model_dump()) == task


def test_a_wrong_task_id_is_refused() -> None:
    with pytest.raises(ValidationError, match="task_id abc does not match its content"):
        records.make_task(1, task_id="abc")


def test_a_task_id_ignores_clocks() -> None:
    timed = tuple(turn.model_copy(update={"started_at": 4.0}) for turn in records.make_task(1).prompt)
    assert records.make_task(1, prompt=timed).task_id == records.make_task(1).task_id


@pytest.mark.parametrize(
    ("spans", "match"),
    [
        ([(0, 2), (3, 4)], "does not continue at token 2"),
        ([(0, 2), (1, 4)], "does not continue at token 2"),
        ([(0, 2), (2, 2)], "does not continue at token 2"),
        ([(0, 3)], "spans end at 3, the segment has 4 tokens"),
    ],
)
def test_spans_must_tile_the_segment(spans: list[tuple[int, int]], match: str) -> None:
    made = tuple(Span(start, end, SpanKind.PROMPT, 0) for start, end in spans)
    with pytest.raises(ValidationError, match=match):
        Segment(origin=Origin.RENDERED, token_ids=(1, 2, 3, 4), spans=made)


def test_log_probs_exactly_for_sampled_tokens() -> None:
    spans = (Span(0, 1, SpanKind.PROMPT, 0), Span(1, 3, SpanKind.GENERATED, 1))
    common = {"token_ids": (1, 2, 3), "spans": spans}
    Segment(origin=Origin.SAMPLED, logprobs=(-1.0, -2.0), **common)
    with pytest.raises(ValidationError, match="sampled segment needs 2 log-probs, got 1"):
        Segment(origin=Origin.SAMPLED, logprobs=(-1.0,), **common)
    with pytest.raises(ValidationError, match="rendered segment needs 0 log-probs, got 2"):
        Segment(origin=Origin.RENDERED, logprobs=(-1.0, -2.0), **common)


def test_masks_and_log_probs_follow_spans_and_weights() -> None:
    spans = (
        Span(0, 1, SpanKind.PROMPT, -1),
        Span(1, 3, SpanKind.GENERATED, 0),
        Span(3, 4, SpanKind.OBSERVATION, 1),
        Span(4, 5, SpanKind.GENERATED, 2),
    )
    segment = Segment(origin=Origin.SAMPLED, token_ids=(9,) * 5, spans=spans, logprobs=(-1.0, -2.0, -3.0))
    turns = (messages.assistant("a"), messages.user("b"), messages.assistant("c", weight=0.5))
    assert segment.loss_mask(turns) == [0.0, 1.0, 1.0, 0.0, 0.5]
    assert segment.token_logprobs() == [0.0, -1.0, -2.0, 0.0, -3.0]


@pytest.mark.parametrize("termination", Termination)
def test_an_infrastructure_failure_never_has_a_reward(termination: Termination) -> None:
    fields = records.make_trajectory(1).model_dump() | {"termination": termination}
    if termination in (Termination.INFRA_FAILURE, Termination.CANCELLED):
        with pytest.raises(ValidationError, match=r"no reward, got 1\.0"):
            Trajectory.model_validate(fields)
    else:
        assert Trajectory.model_validate(fields).success is True


def test_a_new_attempt_is_a_new_trajectory() -> None:
    first, second = records.make_trajectory(1), records.make_trajectory(1, attempt=1)
    assert first.trajectory_id != second.trajectory_id
    assert records.make_trajectory(1).trajectory_id == first.trajectory_id


def test_floats_must_be_finite_and_fields_known() -> None:
    with pytest.raises(ValidationError, match="finite"):
        NamedValue(name="x", value=float("nan"))
    with pytest.raises(ValidationError, match="Extra inputs"):
        NamedValue(name="x", value=1.0, unit="s")  # type: ignore[call-arg]


def test_every_error_pickles_and_has_an_exit_code() -> None:
    for error in (errors.ConfigError, errors.RecordError, errors.StoreError):
        copy = pickle.loads(pickle.dumps(error("what happened")))
        assert type(copy) is error and str(copy) == "what happened" and copy.exit_code in (2, 4)


def test_importing_the_record_needs_neither_torch_nor_datasets() -> None:
    code = (
        "import sys, data.store, data.publish, data.formats\n"
        "print([m for m in ('torch', 'datasets', 'huggingface_hub', 'pandas') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
