"""JGLV: planted wrong labels are found and repaired exactly, right ones never touched, judges are judges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolResult, Turn, assistant, text_parts
from data.trajectories import Origin, RewardBy, Trajectory
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import Fault, ScriptedEngine, continue_turns
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment
from pipeline.errors import ConfigError, EngineError, EnvironmentFailure
from synthesizers.looptool.judging import judge_label
from synthesizers.looptool.probing import Probe, ProbeVerdict, read_prediction
from synthesizers.looptool.records import REPAIRED, LabelVerdict, Repair
from synthesizers.looptool.repairing import JUDGED, preference, sample_of
from synthesizers.looptool.roles import LABEL_JUDGE, LabelRequest
from synthesizers.looptool.splicing import RestFinish
from tests.synthesizers.looptool.world import Desk, Planted, said

GOLDEN = Path(__file__).parent / "golden"


def word(verdict: str, analysis: str = "One of them is off.") -> str:
    return f'{{"analysis": "{analysis}", "verdict": "{verdict}"}}'


def judges(*replies: str) -> list[ScriptedChat]:
    return [
        ScriptedChat(lambda turns, tools, text=text: text, name=f"judge {number}", max_asks=1)
        for number, text in enumerate(replies)
    ]


@pytest.fixture(scope="module")
def probes(desk: Desk, planted: list[Planted]) -> list[Probe]:
    """What a policy that plays gold makes of the planted rows."""
    return desk.probed([each.row for each in planted], desk.policy())


@pytest.fixture(scope="module")
def repairs(desk: Desk, planted: list[Planted], probes: list[Probe]) -> dict[str, Repair]:
    """By step id."""
    return {each.step_id: each for each in desk.repaired(probes, [plant.row for plant in planted])}


def test_planted_wrong_labels_are_found_and_repaired_exactly(
    desk: Desk, planted: list[Planted], probes: list[Probe], repairs: dict[str, Repair]
) -> None:
    wrong = [each for each in planted if each.is_wrong]
    assert len(wrong) >= 12
    blamed = {step_id for step_id, each in repairs.items() if each.verdict is LabelVerdict.LABEL_WRONG}
    assert blamed == {f"{each.row.trajectory_id}#{each.turn}" for each in wrong}
    for plant in wrong:
        repaired = repairs[f"{plant.row.trajectory_id}#{plant.turn}"].repaired
        assert repaired is not None and repaired.success
        assert said(repaired.turns[plant.turn]) == said(plant.gold.turns[plant.turn])
        assert (
            repaired.turns[: plant.turn]
            == tuple(
                turn.model_copy(
                    update={"weight": 0.0, "started_at": each.started_at, "seconds": each.seconds}
                )
                if turn.role in ("assistant", "system")
                else turn.model_copy(update={"started_at": each.started_at, "seconds": each.seconds})
                for turn, each in zip(plant.row.turns, repaired.turns, strict=False)
            )[: plant.turn]
        )


def test_a_repaired_record_says_what_it_is_and_trains_the_adopted_turn_only(
    desk: Desk, planted: list[Planted], repairs: dict[str, Repair]
) -> None:
    for plant in planted:
        repaired = repairs[f"{plant.row.trajectory_id}#{plant.turn}"].repaired
        if repaired is None:
            continue
        assert repaired.parents == (plant.row.trajectory_id,) and repaired.synthesizer == "looptool"
        assert REPAIRED in repaired.labels and repaired.task_id == plant.row.task_id
        assert {segment.origin for segment in repaired.segments} == {Origin.EDITED}
        assert not any(segment.logprobs for segment in repaired.segments)
        trained = [
            place for place, turn in enumerate(repaired.turns) if turn.role == "assistant" and turn.weight
        ]
        assert trained == [plant.turn]
        [segment] = repaired.segments
        mask = segment.loss_mask(repaired.turns)
        learned = desk.renderer.decode([t for t, on in zip(segment.token_ids, mask, strict=True) if on])
        [call] = repaired.turns[plant.turn].tool_calls
        assert call.name in learned and learned.count("<tool_call>") == 1
        assert Trajectory.model_validate_json(repaired.model_dump_json()) == repaired


def test_a_harmless_other_call_is_both_correct(planted: list[Planted], repairs: dict[str, Repair]) -> None:
    harmless = [repairs[f"{each.row.trajectory_id}#{each.turn}"] for each in planted if not each.is_wrong]
    assert harmless and {each.verdict for each in harmless} == {LabelVerdict.BOTH_CORRECT}
    assert all(each.repaired is None and not each.is_error_seed for each in harmless)


def test_right_labels_are_never_replaced(desk: Desk) -> None:
    rows = list(desk.rows.values())
    probes = desk.probed(rows, desk.policy(mistakes=0.5))
    missed = [each for each in probes if each.verdict is ProbeVerdict.MISMATCH]
    repairs = desk.repaired(probes, rows)
    assert len(repairs) == len(missed) > 15
    verdicts = [each.verdict for each in repairs]
    assert set(verdicts) <= {LabelVerdict.PRED_WRONG, LabelVerdict.BOTH_CORRECT}
    assert verdicts.count(LabelVerdict.PRED_WRONG) > len(verdicts) // 2
    assert all(each.repaired is None for each in repairs)
    for each in repairs:
        assert each.label and each.predicted and each.analysis.startswith("label: scored 1.0")


def test_where_the_model_is_wrong_as_well_nothing_is_adopted(desk: Desk, planted: list[Planted]) -> None:
    engine = ScriptedEngine(continue_turns(lambda prompt, rng: assistant("REFUSE"), desk.renderer))
    wrong = [plant for plant in planted if plant.is_wrong]
    rows = [each.row for each in wrong]
    repairs = {each.step_id: each for each in desk.repaired(desk.probed(rows, engine), rows)}
    at_slips = [repairs[f"{each.row.trajectory_id}#{each.turn}"] for each in wrong]
    assert {each.verdict for each in at_slips} == {LabelVerdict.BOTH_WRONG}
    assert not any(each.repaired for each in repairs.values())


def test_a_malformed_or_truncated_prediction_is_wrong_without_being_played(desk: Desk) -> None:
    rows = [next(iter(desk.rows.values()))]
    broken = ScriptedEngine(
        continue_turns(lambda prompt, rng: assistant('<tool_call>\n{"name": \n</tool_call>'), desk.renderer)
    )
    [first, *_] = desk.repaired(desk.probed(rows, broken), rows)
    assert first.verdict is LabelVerdict.PRED_WRONG and "prediction: not_json" in first.analysis
    cut = [each.model_copy(update={"reason": "truncated"}) for each in desk.probed(rows, broken)]
    [first, *_] = desk.repaired(cut, rows)
    assert first.verdict is LabelVerdict.PRED_WRONG and first.analysis.endswith("prediction: truncated")


def test_a_world_that_answers_otherwise_decides_nothing(desk: Desk) -> None:
    row = max(desk.rows.values(), key=lambda each: len(each.turns))
    told = next(place for place, turn in enumerate(row.turns) if turn.result is not None)
    result = row.turns[told].result
    assert result is not None
    other = row.turns[told].model_copy(
        update={"result": result.model_copy(update={"parts": assistant("none").parts})}
    )
    stored = row.model_copy(update={"turns": (*row.turns[:told], other, *row.turns[told + 1 :])})
    repairs = desk.repaired(desk.probed([stored], desk.policy(mistakes=1.0)), [stored])
    later = [each for each in repairs if each.turn > told]
    assert later and {each.verdict for each in later} == {LabelVerdict.UNDECIDED}
    assert {each.reason for each in later} == {"prefix_differs"}


class Between(WrappedEnvironment):
    """travel_desk whose sessions are wrapped."""

    def __init__(self, inner: Any, session: Any) -> None:
        super().__init__(inner, version=inner.version)
        self.session = session

    async def open(self, task: Any, *, seed: int = 0) -> Any:
        return self.session(await self.inner.open(task, seed=seed))


class Live(PassesOn):
    """Its profile is another one at every look."""

    looks = 0

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        result: ToolResult = await self.inner.call(name, arguments, call_id)
        Live.looks += 1
        return result.model_copy(update={"parts": text_parts(f"{result.text} at {Live.looks}")})


def test_a_live_world_makes_no_label_wrong(desk: Desk) -> None:
    row = next(each for each in desk.rows.values() if each.template == "own_airline")
    probes = desk.probed([row], desk.policy(mistakes=1.0))
    first = next(each for each in probes if row.turns[each.turn].tool_calls)
    world: Any = Between(desk.environment, Live)
    [made] = desk.repaired([first], [row], environment=world)
    assert (made.verdict, made.reason) == (LabelVerdict.UNDECIDED, "live")


def test_a_record_that_is_not_true_is_told_from_a_live_world(desk: Desk) -> None:
    """A label changed in the record only: its stored answer is that of the call it was changed from."""
    row = next(each for each in desk.rows.values() if each.template == "cheapest")
    [look_up, *_] = [place for place, turn in enumerate(row.turns) if turn.tool_calls]
    [call] = row.turns[look_up].tool_calls
    other = call.model_copy(update={"arguments": call.arguments.replace('"day":"', '"day":"New ')})
    turn = row.turns[look_up].model_copy(update={"tool_calls": (other,)})
    forged = row.model_copy(update={"turns": (*row.turns[:look_up], turn, *row.turns[look_up + 1 :])})
    [made] = desk.repaired(desk.probed([forged], desk.policy()), [forged])
    assert made.verdict is LabelVerdict.LABEL_WRONG and made.turn == look_up
    assert made.repaired is not None and said(made.repaired.turns[look_up]) == said(row.turns[look_up])


def test_a_stored_rest_goes_on_only_while_the_answers_are_the_stored_ones(desk: Desk) -> None:
    row = next(each for each in desk.rows.values() if each.template == "cheapest")
    [look_up, book, *_] = [place for place, turn in enumerate(row.turns) if turn.tool_calls]
    rest = RestFinish(row.turns, look_up)
    assert asyncio.run(rest.next_turn(row.turns[:book], ())) == row.turns[book] and not rest.diverged
    result = row.turns[look_up + 1].result
    assert result is not None
    spliced = row.turns[look_up + 1].model_copy(
        update={"result": result.model_copy(update={"parts": text_parts("none")})}
    )
    assert asyncio.run(rest.next_turn([*row.turns[: look_up + 1], spliced], ())) is None and rest.diverged


def test_what_the_infrastructure_breaks_decides_nothing(desk: Desk) -> None:
    class Down:
        """A world whose sessions no longer open."""

        def __getattr__(self, name: str) -> Any:
            return getattr(desk.environment, name)

        async def open(self, task: Any, *, seed: int = 0) -> Any:
            raise EnvironmentFailure("the database is down")

    rows = list(desk.rows.values())[:5]
    probes = desk.probed(rows, desk.policy(mistakes=1.0))
    repairs = desk.repaired(probes, rows, environment=Down())
    assert repairs and {(each.verdict, each.reason) for each in repairs} == {
        (LabelVerdict.UNDECIDED, "infra")
    }
    assert all(each.is_broken and not each.is_error_seed for each in repairs)
    agree = judges(word("LABEL_WRONG"), word("LABEL_WRONG"))
    unchecked = desk.repaired(probes, rows, environment=Down(), judges=agree)
    assert all(each.is_broken or each.reason == "unplayable" for each in unchecked)
    assert any(each.is_broken for each in unchecked)


def test_a_call_in_another_order_is_right_where_the_policy_finishes_it_without_a_detour(desk: Desk) -> None:
    """Gold cannot stand behind such a call, so it is the policy's to show that it leads somewhere."""
    row = next(each for each in desk.rows.values() if each.template == "own_airline")
    first = [place for place, turn in enumerate(row.turns) if turn.role == "assistant"]
    second = row.turns[first[1]]
    swapped = {first[0]: second, first[1]: row.turns[first[0]]}
    texts = [said(row.turns[place]) for place in first]

    def say(prompt: Sequence[int], rng: random.Random) -> Turn:
        number = desk.renderer.decode(prompt).count("<tool_response>")
        return swapped.get(first[number], row.turns[first[number]])

    engine = ScriptedEngine(continue_turns(say, desk.renderer))
    [made] = [each for each in desk.probed([row], engine) if each.turn == first[0]]
    assert made.verdict is ProbeVerdict.MISMATCH and len(texts) == 4
    [alone] = desk.repaired([made], [row])
    [played] = desk.repaired([made], [row], engine=engine)
    [cheap] = desk.repaired([made], [row], engine=engine, policy_finishes=False)
    assert alone.verdict is LabelVerdict.PRED_WRONG and not alone.sampled_tokens and cheap == alone
    assert played.verdict is LabelVerdict.BOTH_CORRECT and played.sampled_tokens > 0
    down = ScriptedEngine(continue_turns(say, desk.renderer), faults={0: Fault.DIE})
    [broken] = desk.repaired([made], [row], engine=down, sampling=Sampling(max_tokens=90))
    assert (broken.verdict, broken.reason) == (LabelVerdict.UNDECIDED, "infra")


def test_pairs_prefer_the_right_turn(
    desk: Desk, planted: list[Planted], probes: list[Probe], repairs: dict[str, Repair]
) -> None:
    rows = {each.row.trajectory_id: each.row for each in planted}
    made = {each.step_id: each for each in probes}
    pairs = []
    for step_id, each in repairs.items():
        sample = sample_of(made[step_id], rows.get)
        prediction = read_prediction(desk.renderer, sample, made[step_id].token_ids)
        pair = preference(each, sample, prediction)
        assert (pair is None) == (not each.is_error_seed)
        if pair is not None:
            assert said(pair.chosen[0]) == said(prediction) and pair.rejected == (sample.label,)
            assert pair.prompt == sample.trajectory.turns[: sample.turn]
            pairs.append(pair)
    assert len(pairs) == len({pair.pair_id for pair in pairs}) >= 12


# --- judges -------------------------------------------------------------------------------------------------


REQUEST = LabelRequest(
    tools=("room(hotel, nights): Book a hotel.",),
    dialogue="user: Three nights at H12, please.",
    label='room {"hotel":"H12","nights":2}',
    prediction='room {"hotel":"H12","nights":3}',
)


def test_the_judges_prompt_is_the_stored_one() -> None:
    system, user = LABEL_JUDGE.turns(REQUEST)
    assert f"{system.text}\n---\n{user.text}\n" == (GOLDEN / "label_judge.txt").read_text()


def test_one_judge_is_an_error_and_no_lack_of_consensus(desk: Desk) -> None:
    for few in (judges(word("PRED_WRONG")), judges(word("PRED_WRONG"))[:1] * 2):
        with pytest.raises(ConfigError, match=r"at least 2 chats of different names, got \['judge 0'"):
            desk.repaired([], [], judges=few)
        with pytest.raises(ConfigError, match="at least 2 chats"):
            asyncio.run(judge_label(few, REQUEST))


@pytest.mark.parametrize(
    ("replies", "verdict", "votes"),
    [
        (("PRED_WRONG", "PRED_WRONG"), "PRED_WRONG", ("PRED_WRONG", "PRED_WRONG")),
        (("LABEL_WRONG", "PRED_WRONG", "LABEL_WRONG"), "LABEL_WRONG", None),
        (("LABEL_WRONG", "PRED_WRONG"), "UNDECIDED", ("LABEL_WRONG", "PRED_WRONG")),
        (("LABEL_WRONG", "LABEL_WRONG", "BOTH_WRONG", "PRED_WRONG"), "UNDECIDED", None),
        (("LABEL_WRONG or PRED_WRONG", "LABEL_WRONG"), "UNDECIDED", ("", "LABEL_WRONG")),
        (("UNDECIDED", "LABEL_WRONG"), "UNDECIDED", ("", "LABEL_WRONG")),
    ],
)
def test_a_majority_of_all_judges_decides(
    replies: tuple[str, ...], verdict: str, votes: tuple[str, ...] | None
) -> None:
    judged = asyncio.run(judge_label(judges(*map(word, replies)), REQUEST))
    assert judged.verdict == verdict and (votes is None or judged.votes == votes)
    assert judged.reason == ("no_majority" if verdict == "UNDECIDED" else "")


@pytest.mark.parametrize(
    "reply",
    [
        word("LABEL_WRONG", "First I thought PRED_WRONG."),
        word("LABEL_WRONG", "This is label_wrong or both_wrong."),
        f"{word('PRED_WRONG')} {word('LABEL_WRONG')}",
        f"{word('LABEL_WRONG')} {word('PRED_WRONG')}",
    ],
)
def test_a_reply_that_names_two_verdicts_is_rejected_in_whatever_order(reply: str) -> None:
    judged = asyncio.run(judge_label(judges(reply, word("LABEL_WRONG")), REQUEST))
    assert judged.votes == ("", "LABEL_WRONG") and judged.verdict is LabelVerdict.UNDECIDED


def test_a_judge_that_does_not_answer_gives_no_verdict_at_all(desk: Desk, planted: list[Planted]) -> None:
    [probe, *_] = [
        each for each in desk.probed([planted[0].row], desk.policy()) if each.turn == planted[0].turn
    ]
    silent = [ScriptedChat([], name="judge 0"), judges(word("LABEL_WRONG"), word("LABEL_WRONG"))[1]]
    with pytest.raises(EngineError, match="judge 0"):
        desk.repaired([probe], [planted[0].row], judges=silent)


def test_judges_adopt_only_what_holds_when_it_is_executed(desk: Desk, planted: list[Planted]) -> None:
    wrong = next(each for each in planted if each.is_wrong)
    at = f"{wrong.row.trajectory_id}#{wrong.turn}"
    [right] = [each for each in desk.probed([wrong.row], desk.policy()) if each.step_id == at]
    agree = judges(word("LABEL_WRONG"), word("LABEL_WRONG"))
    [held] = desk.repaired([right], [wrong.row], judges=agree)
    assert held.repaired is not None and held.repaired.success and held.votes == ("LABEL_WRONG",) * 2
    refusing = ScriptedEngine(continue_turns(lambda prompt, rng: assistant("REFUSE"), desk.renderer))
    [bad] = [each for each in desk.probed([wrong.row], refusing) if each.step_id == at]
    [failed] = desk.repaired([bad], [wrong.row], judges=agree)
    assert failed.verdict is LabelVerdict.LABEL_WRONG and failed.repaired is None
    assert failed.reason == "check_failed" and not failed.is_error_seed
    [trusting] = desk.repaired([bad], [wrong.row], judges=agree, executed_check=False)
    assert trusting.repaired is not None and said(trusting.repaired.turns[-1]) == "REFUSE"
    reward = trusting.repaired.reward
    assert reward is not None and reward.verifier == JUDGED
    assert [part.by for part in reward.components] == [RewardBy.MODEL]
    assert len(trusting.repaired.turns) == wrong.turn + 1


def test_a_probe_of_what_is_not_there_is_an_error_with_the_next_step(desk: Desk) -> None:
    row = next(iter(desk.rows.values()))
    probes = desk.probed([row], desk.policy(mistakes=1.0))
    with pytest.raises(ConfigError, match="not in the store; probe again"):
        desk.repaired(probes, [])
