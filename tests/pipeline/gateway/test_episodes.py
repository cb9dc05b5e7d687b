"""What becomes a trajectory: extension without re-encoding, rewritten history, branches, endings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from data.trajectories import Blame, SpanKind, Termination
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.errors import ConfigError, EngineError, StoreError
from pipeline.gateway.asks import Ask
from pipeline.gateway.chat import read_messages
from pipeline.gateway.gateway import Gateway
from pipeline.renderers.chatml import ChatMLRenderer
from rl.audit import audit
from rl.rows import grpo_rows, sft_rows
from tests.pipeline.gateway.conftest import LOOK, LOOK_A, result, sampled, user
from tests.pipeline.rollout_world import Speaker, call_text, make_task, spoken

START = [{"role": "system", "content": "Be brief."}, user("Find it.")]


def odd(renderer: Any, text: str) -> Completion:
    """`text` one character a token: what was sampled is not what encoding the text gives."""
    ids = [token for letter in text for token in renderer.encode(letter)]
    return Completion((*ids, renderer.stop_token_ids[0]), (-0.5,) * (len(ids) + 1), FinishReason.STOP, "w7")


def test_an_echo_extends_the_sampled_ids_whatever_its_json_looks_like(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        said = odd(renderer, '<tool_call>\n{"name":"look","arguments":{"key": "a",  "n": 1.0}}\n</tool_call>')
        async with serve([said, "done"]) as desk:
            await desk.open()
            reply = await desk.chat(START)
            call = reply["tool_calls"][0]
            assert json.loads(call["function"]["arguments"]) == {"key": "a", "n": 1}
            echo = {
                "role": "assistant",
                "content": "",
                "refusal": None,
                "tool_calls": [
                    {
                        "id": "other",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{ "n": 1,\n "key": "a" }'},
                    }
                ],
            }
            await desk.chat(
                [
                    *START,
                    echo,
                    {"role": "tool", "tool_call_id": "other", "content": [{"type": "text", "text": "42"}]},
                ]
            )
            await desk.close()
            return said, desk.engine.prompts, desk.trajectories

    said, prompts, trajectories = asyncio.run(play())
    (trajectory,) = trajectories
    assert len(trajectory.segments) == 1
    assert sampled(trajectory)[0] == said.token_ids
    text = renderer.decode(said.token_ids[:-1])
    assert renderer.encode(text) != list(said.token_ids[:-1]), "the planted ids must differ from an encoding"
    assert prompts[1][: len(prompts[0]) + len(said.token_ids)] == [*prompts[0], *said.token_ids]
    segment = trajectory.segments[0]
    assert list(segment.token_ids[: len(prompts[1])]) == prompts[1]
    assert segment.logprobs[: len(said.logprobs)] == said.logprobs
    assert segment.spans[1].weights_version == "w7"
    call = trajectory.turns[2].tool_calls[0]
    assert trajectory.turns[3].result.call_id == call.call_id == segment.spans[2].call_id
    assert audit([trajectory], stop_token_ids=renderer.stop_token_ids).refuse().finished_turns == 2
    (row,) = sft_rows([trajectory])
    assert row.token_ids == segment.token_ids and row.num_trained == segment.num_generated
    assert len(grpo_rows([trajectory], {trajectory.trajectory_id: 0.5})) == 1


def test_edited_history_starts_a_segment_and_is_no_second_trajectory(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve([LOOK_A, call_text("look", key="b"), "done"]) as desk:
            await desk.open()
            first = await desk.chat(START)
            second = await desk.chat([*START, first, result(first, "x" * 50)])
            dropped = [
                {"role": "system", "content": "Be very brief."},
                START[1],
                second,
                result(second, "7"),
            ]
            await desk.chat(dropped)
            await desk.close()
            return desk.engine.prompts, desk.trajectories

    prompts, trajectories = asyncio.run(play())
    (trajectory,) = trajectories
    one, two = trajectory.segments
    assert list(two.token_ids[: len(prompts[2])]) == prompts[2]
    assert two.spans[0].kind is SpanKind.PROMPT and two.spans[0].turn == -1
    assert [turn.role for turn in trajectory.turns] == [
        *("system", "user", "assistant", "tool", "assistant"),
        *("system", "tool", "assistant"),
    ]
    assert one.num_generated + two.num_generated == sum(
        map(sum, (s.loss_mask(trajectory.turns) for s in (one, two)))
    )
    assert two.spans[1].turn == 7
    audit([trajectory], stop_token_ids=renderer.stop_token_ids).refuse()


def test_a_changed_tool_set_is_a_new_segment(serve: Any) -> None:
    other = {
        "type": "function",
        "function": {"name": "open", "parameters": {"type": "object", "properties": {}}},
    }

    async def play() -> Any:
        async with serve([LOOK_A, "done"]) as desk:
            await desk.open()
            first = await desk.chat(START)
            await desk.chat([*START, first, result(first, "1")], tools=[LOOK, other])
            await desk.close()
            return desk.trajectories

    (trajectory,) = asyncio.run(play())
    assert [[tool.name for tool in one.tools] for one in trajectory.segments] == [["look"], ["look", "open"]]
    assert [tool.name for tool in trajectory.turns[4].tools_changed] == ["look", "open"]
    assert len(trajectory.turns) == 5


def test_a_rewritten_history_is_extended_from_then_on(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve([LOOK_A, odd(renderer, LOOK_A), "done"]) as desk:
            await desk.open()
            await desk.chat(START)
            short = [*START, user("So far: nothing.")]
            second = await desk.chat(short)
            await desk.chat([*short, second, result(second, "1")])
            await desk.close()
            return desk.trajectories

    (trajectory,) = asyncio.run(play())
    assert [len(sampled(trajectory, index)) for index in range(2)] == [1, 2]
    assert sampled(trajectory, 1)[0] == odd(renderer, LOOK_A).token_ids
    assert [span.turn for span in trajectory.segments[1].spans] == [-1, 4, 5, 6]


def test_a_critic_on_the_same_question_does_not_derail_the_agent(serve: Any) -> None:
    async def play() -> Any:
        async with serve([LOOK_A, "looks fine", "done"]) as desk:
            await desk.open()
            first = await desk.chat(START)
            critic = [{"role": "system", "content": "Judge."}, START[1], first, result(first, "42")]
            await desk.chat([*critic, user("Is this right?")])
            await desk.chat([*START, first, result(first, "42")])
            await desk.close()
            return desk.trajectories

    main, critic = asyncio.run(play())
    assert [turn.text for turn in main.turns] == ["Be brief.", "Find it.", "", "42", "done"]
    assert len(main.segments) == 1 and main.reward.total == 1.0
    assert critic.turns[-1].text == "looks fine" and critic.reward is None and len(critic.segments) == 1


def test_a_summary_after_the_same_prompt_is_a_new_segment(serve: Any) -> None:
    async def play() -> Any:
        async with serve([LOOK_A, "done"]) as desk:
            await desk.open()
            await desk.chat(START)
            await desk.chat([*START, user("So far: a was looked up.")])
            await desk.close()
            return desk.trajectories

    (trajectory,) = asyncio.run(play())
    assert len(trajectory.segments) == 2
    assert [turn.text for turn in trajectory.turns][-2:] == ["So far: a was looked up.", "done"]


def test_a_repeated_request_is_not_sampled_again_unless_its_key_says_so(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["one", "two", "three"]) as desk:
            await desk.open()
            texts = [(await desk.chat(START))["content"] for _ in range(2)]
            texts.append((await desk.chat(START, headers={"idempotency-key": "k"}))["content"])
            texts.append((await desk.chat(START, headers={"idempotency-key": "k"}))["content"])
            texts.append((await desk.chat(START, seed=5))["content"])
            await desk.close()
            return texts, desk.engine.requests, desk.trajectories

    texts, requests, trajectories = asyncio.run(play())
    assert texts == ["one", "one", "two", "two", "three"]
    assert requests[2].seed == 5 and requests[0].seed != requests[1].seed
    main, *others = trajectories
    assert main.turns[-1].text == "three" and main.reward.total == 1.0
    assert {(one.termination, one.reward) for one in others} == {(Termination.CANCELLED, None)}


def test_a_request_whose_asker_is_gone_is_finished_and_kept(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        release, asked = asyncio.Event(), []

        class Slow:
            name, weights_version = "slow", "w0"

            async def generate(self, ids: Any, sampling: Any, *, n: int = 1, affinity: str = "") -> Any:
                asked.append(1)
                await release.wait()
                return [spoken(renderer, "late", sampling)]

        async with serve(Slow()) as desk:
            await desk.open()
            waiting = asyncio.create_task(desk.chat(START))
            while not asked:
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            again = asyncio.create_task(desk.chat(START))
            await asyncio.sleep(0)
            release.set()
            return (await again)["content"], len(asked)

    assert asyncio.run(play()) == ("late", 1)


def test_closing_cuts_what_is_being_sampled(serve: Any) -> None:
    async def play() -> Any:
        async with serve([TimeoutError()]) as desk:
            await desk.open()
            waiting = asyncio.create_task(desk.raw(START))
            while not desk.engine.prompts:
                await asyncio.sleep(0)
            closed = await desk.close(reward=0.0)
            return (await waiting).status_code, closed

    status, closed = asyncio.run(play())
    assert (status, closed["termination"], closed["reward"]) == (409, "cancelled", None)


def test_parallel_continuations_are_branches_that_train_their_own_tokens_only(
    serve: Any, renderer: Any
) -> None:
    def script(ids: Any, sampling: Any) -> str:
        text = renderer.decode(ids)
        return "left" if "go left" in text else "right" if "go right" in text else "where to?"

    async def play() -> Any:
        async with serve(script) as desk:
            await desk.open()
            first = await desk.chat(START)
            await desk.chat([*START, first, user("go left")])
            right = await desk.chat([*START, first, user("go right")])
            assert right["content"] == "right"
            await desk.close(reward=0.5)
            return desk.trajectories

    main, branch = asyncio.run(play())
    assert [turn.text for turn in main.turns[2:]] == ["where to?", "go right", "right"]
    assert [turn.text for turn in branch.turns[2:]] == ["where to?", "go left", "left"]
    assert branch.parents == (main.trajectory_id,) and branch.reward is None
    trained = [sum(row.num_trained for row in sft_rows([one])) for one in (main, branch)]
    runs = [sum(len(run) for run in sampled(one)) for one in (main, branch)]
    assert trained[0] == runs[0]
    assert trained[1] == len(sampled(branch)[1]) < runs[1]
    assert (
        branch.segments[0].logprobs[: len(sampled(main)[0])]
        == main.segments[0].logprobs[: len(sampled(main)[0])]
    )
    assert main.group_id != branch.group_id
    audit([main, branch], stop_token_ids=renderer.stop_token_ids).refuse()


def test_the_choice_gone_on_with_is_the_episode(serve: Any, renderer: Any) -> None:
    class Many:
        name, weights_version = "many", "w0"
        asked = 0

        async def generate(self, ids: Any, sampling: Any, *, n: int = 1, affinity: str = "") -> Any:
            self.asked += 1
            return [spoken(renderer, f"reply {self.asked}.{index}", sampling) for index in range(n)]

    async def play(final: str) -> Any:
        async with serve(Many()) as desk:
            await desk.open()
            answer = (await desk.raw(START, n=3)).json()
            chosen = answer["choices"][1]["message"]
            last = (await desk.raw([*START, chosen, user("more")], n=2)).json()
            await desk.close(reward=1.0, final=f"{last['id']}:1" if final else "")
            return desk.trajectories

    for final, text in (("", "reply 2.0"), ("named", "reply 2.1")):
        trajectories = asyncio.run(play(final))
        assert [turn.text for turn in trajectories[0].turns[2:]] == ["reply 1.1", "more", text]
        assert len(trajectories) == 4
        assert [one.reward is not None for one in trajectories] == [True, False, False, False]
        generated = [sum(row.num_trained for row in sft_rows([one])) for one in trajectories]
        assert sum(generated) == sum(one.usage.generated_tokens for one in trajectories)


def test_a_sub_agent_is_a_trajectory_of_its_own_with_the_episodes_reward(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve([LOOK_A, "I found 42", "done"]) as desk:
            await desk.open()
            first = await desk.chat(START)
            await desk.chat([{"role": "system", "content": "Searcher."}, user("Look for a.")], tools=[])
            await desk.chat([*START, first, result(first, "42")])
            await desk.close(reward=0.25)
            return desk.trajectories

    main, sub = asyncio.run(play())
    assert [turn.text for turn in main.turns][-1] == "done" and len(main.segments) == 1
    assert [turn.text for turn in sub.turns] == ["Searcher.", "Look for a.", "I found 42"]
    assert sub.reward == main.reward and sub.parents == (main.trajectory_id,)
    assert sub.group_id != main.group_id and sub.termination is Termination.FINISHED


def test_a_named_line_is_never_mixed_with_another(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["one", "two"]) as desk:
            await desk.open()
            await desk.chat(START, line="critic")
            await desk.chat(START)
            await desk.close()
            return desk.trajectories

    main, critic = asyncio.run(play())
    assert (main.turns[-1].text, critic.turns[-1].text) == ("two", "one")


def test_an_engine_error_is_a_503_and_made_good_by_the_same_request_only(serve: Any) -> None:
    async def play(*, retried: bool) -> Any:
        async with serve([LOOK_A, EngineError("the server died"), "done"]) as desk:
            await desk.open()
            first = await desk.chat(START)
            going_on = [*START, first, result(first, "1")]
            failed = await desk.raw(going_on)
            assert failed.status_code == 503 and failed.headers["retry-after"] == "1"
            if retried:
                await desk.chat(going_on)
            return await desk.close(reward=0.0), desk.trajectories

    closed, (trajectory,) = asyncio.run(play(retried=True))
    assert closed["termination"] == "finished" and closed["reward"] == 0.0
    closed, (trajectory,) = asyncio.run(play(retried=False))
    assert closed["termination"] == "infra_failure" and closed["reward"] is None
    assert trajectory.blame is Blame.INFRASTRUCTURE and "the server died" in trajectory.error
    assert len(trajectory.segments) == 1 and len(trajectory.turns) == 3


def test_an_untrustworthy_or_missing_answer_is_a_503(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        short = Completion((renderer.stop_token_ids[0],), (), FinishReason.STOP, "w0")
        async with serve([short, TimeoutError()], engine_seconds=0.05) as desk:
            await desk.open()
            return [(await desk.raw(START, seed=n)).status_code for n in range(2)]

    assert asyncio.run(play()) == [503, 503]


def test_a_harness_that_dies_is_given_up_without_a_reward(serve: Any) -> None:
    now = [0.0]

    async def play() -> Any:
        async with serve(
            [LOOK_A, EngineError("gone"), "done"], clock=lambda: now[0], idle_seconds=60
        ) as desk:
            for key in ("idle", "failed", "alive"):
                await desk.open(key)
            await desk.chat(START, key="idle")
            assert (await desk.raw(START, key="failed")).status_code == 503
            now[0] = 59.0
            assert await desk.gateway.reap() == []
            await desk.chat([*START, user("x")], key="alive")
            now[0] = 61.0
            assert sorted(await desk.gateway.reap()) == ["failed", "idle"]
            gone = await desk.raw(START, key="idle")
            assert (gone.status_code, gone.json()["error"]["code"]) == (409, "episode_closed")
        return {one.termination: one for one in desk.trajectories}, desk.trajectories

    kinds, trajectories = asyncio.run(play())
    assert kinds[Termination.INFRA_FAILURE].blame is Blame.INFRASTRUCTURE
    assert [one.termination for one in trajectories].count(Termination.CANCELLED) == 2
    assert all(one.reward is None for one in trajectories)
    assert "stopped before" in trajectories[-1].error and trajectories[-1].segments


def test_budgets_of_the_task_end_the_episode(serve: Any) -> None:
    async def play(budget: dict[str, Any], **settings: Any) -> Any:
        task = make_task().model_dump(mode="json") | {"task_id": ""}
        task["budget"] |= budget | {"exhausted_reward": -1.0}
        async with serve([LOOK_A, "done"], **settings) as desk:
            await desk.open(task=task, prompt=None)
            first = await desk.raw(START)
            if first.status_code != 200:
                return first, await desk.close(), desk.trajectories
            reply = first.json()["choices"][0]["message"]
            second = await desk.raw([*START, reply, result(reply, "long " * 20)])
            return second, await desk.close(reward=0.0), desk.trajectories

    answer, closed, _ = asyncio.run(play({"max_turns": 1}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "turn_budget")
    assert (closed["termination"], closed["blame"], closed["reward"]) == ("turn_budget", "agent", 0.0)
    answer, closed, _ = asyncio.run(play({"max_tokens": 150}))
    assert answer.json()["error"]["code"] == closed["termination"] == "token_budget"
    answer, closed, _ = asyncio.run(play({}, max_context_tokens=150))
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert closed["termination"] == "context_overflow"


def test_an_episode_without_a_request_has_no_reward(serve: Any) -> None:
    async def play() -> Any:
        async with serve([]) as desk:
            await desk.open()
            return await desk.close(reward=0.0), desk.trajectories

    closed, (trajectory,) = asyncio.run(play())
    assert closed["termination"] == "cancelled" and closed["reward"] is None
    assert [turn.text for turn in trajectory.turns] == ["Find it."]


def test_a_last_reply_that_was_cut_off_is_no_normal_finish(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve(["a long way to say nothing"]) as desk:
            await desk.open()
            answer = (await desk.raw(START, max_tokens=3)).json()
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 3
            return await desk.close(reward=0.5), desk.trajectories

    closed, trajectories = asyncio.run(play())
    assert closed["termination"] == "token_budget" and closed["reward"] == 0.5
    audit(trajectories, stop_token_ids=renderer.stop_token_ids, allow_cut_off=True).refuse()


def test_the_same_episode_gives_the_same_record(serve: Any) -> None:
    async def play(key: str) -> Any:
        async with serve([LOOK_A, "done"]) as desk:
            await desk.open(key)
            first = await desk.chat(START, key=key, temperature=0.7)
            await desk.chat([*START, first, result(first, "1")], key=key, temperature=0.7)
            await desk.close(key)
            return desk.trajectories[0]

    one, two = asyncio.run(play("a")), asyncio.run(play("b"))
    assert one.content_digest() == two.content_digest()
    assert json.loads(one.policy.sampling)["temperature"] == 0.7 and one.policy.logprobs_of == "processed"


def test_mixed_temperatures_are_not_passed_off_as_one_policy(serve: Any) -> None:
    async def play() -> Any:
        async with serve([LOOK_A, "done"]) as desk:
            await desk.open()
            first = await desk.chat(START, temperature=1.0)
            await desk.chat([*START, first, result(first, "1")], temperature=0.0)
            await desk.close()
            return desk.trajectories[0]

    assert asyncio.run(play()).policy.logprobs_of == "processed, 2 samplings mixed"


def test_rollouts_of_one_task_share_a_group_and_never_an_id(serve: Any) -> None:
    async def play() -> Any:
        async with serve(lambda ids, sampling: "done") as desk:
            await asyncio.gather(*(desk.open(f"e{n}") for n in range(40)))
            await asyncio.gather(*(desk.chat([*START, user(f"n{n}")], key=f"e{n}") for n in range(40)))
            await asyncio.gather(*(desk.close(f"e{n}") for n in range(40)))
            return desk.records

    records = asyncio.run(play())
    trajectories = [one for one in records if hasattr(one, "turns")]
    assert len(records) == 41, "the task is recorded once"
    assert len({one.group_id for one in trajectories}) == 1
    assert len({one.trajectory_id for one in trajectories}) == 40
    assert {one.turns[2].text for one in trajectories} == {f"n{n}" for n in range(40)}


def test_an_episode_ends_once_however_many_close_it(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["done"]) as desk:
            await desk.open()
            await desk.chat(START)
            closed = await asyncio.gather(
                *(desk.close(reward=1.0) for _ in range(5)), desk.gateway.stop(), return_exceptions=True
            )
            return closed, desk.trajectories

    closed, trajectories = asyncio.run(play())
    assert len(trajectories) == 1 and all(one == closed[0] for one in closed[:5])


def test_a_format_that_cannot_extend_shows_everything_anew(renderer: Any) -> None:
    class Rigid(ChatMLRenderer):
        def extend(self, sampled: Any, turns: Any, *, first_turn: int) -> Any:
            raise ConfigError("cannot extend")

    async def play() -> Any:
        rigid = Rigid(renderer.vocabulary)
        gateway = Gateway(Speaker(rigid, [LOOK_A, "done"]), renderer=rigid)
        opened = await gateway.open(make_task())
        turns = read_messages(START)
        first = (await gateway.ask(opened.key, Ask(turns, (), Sampling()))).choices[0]
        going_on = (*turns, first.turn, *read_messages([user("on")]))
        await gateway.ask(opened.key, Ask(going_on, (), Sampling()))
        return await gateway.close(opened.key, reward=1.0)

    (trajectory,) = asyncio.run(play())
    assert len(trajectory.segments) == 2 and len(trajectory.turns) == 5
    audit([trajectory], stop_token_ids=renderer.stop_token_ids).refuse()


def test_a_store_that_is_full_loses_nothing(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["done"]) as desk:
            await desk.open()
            await desk.chat(START)
            keep, full = desk.gateway._emit, [True]

            def emit(record: Any) -> None:
                if full.pop() if full else False:
                    raise StoreError("the disk is full")
                keep(record)

            desk.gateway._emit = emit
            refused = await desk.post("/episodes/ep/close", {"reward": 1.0})
            return refused.status_code, await desk.close(reward=1.0), desk.trajectories

    status, closed, trajectories = asyncio.run(play())
    assert status == 503 and closed["reward"] == 1.0 and len(trajectories) == 1
