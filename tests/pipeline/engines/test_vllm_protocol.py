"""What the vLLM engine sends, and that it believes no answer that cannot be trusted."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.engines.vllm import VllmEngine, read_completions, read_prompt_logprobs
from pipeline.errors import ConfigError, EngineError, EngineProtocolError
from pipeline.http import HttpPolicy
from tests.serving import Received, Reply, ScriptedServer

PROMPT = [5, 6, 7]


def choice(index: int = 0, **changes: Any) -> dict[str, Any]:
    good = {
        "index": index,
        "token_ids": [9, 2],
        "prompt_token_ids": PROMPT,
        "logprobs": {"token_logprobs": [-0.5, -0.25]},
        "finish_reason": "stop",
    }
    return good | changes


def answer_of(*choices: dict[str, Any]) -> dict[str, Any]:
    return {"choices": list(choices)}


def engine_at(server: ScriptedServer) -> VllmEngine:
    return VllmEngine(
        [server.url], model="policy", name="Tiny", policy=HttpPolicy(backoff=0.001, patience=1.0)
    )


def run(engine: VllmEngine, work: Any) -> Any:
    async def closing() -> Any:
        try:
            return await work
        finally:
            await engine.close()

    return asyncio.run(closing())


def test_token_ids_go_in_and_samples_come_out_in_order() -> None:
    swapped = answer_of(choice(1, token_ids=[8, 8], finish_reason="length"), choice(0))
    with ScriptedServer(lambda _: Reply(swapped)) as server:
        engine = engine_at(server)
        engine.weights_version = "w7"
        sampling = Sampling(temperature=0.7, max_tokens=2, seed=3, stop_token_ids=(2,), stop=("</x>",))
        completions = run(engine, engine.generate(PROMPT, sampling, n=2))
    assert completions == [
        Completion((9, 2), (-0.5, -0.25), FinishReason.STOP, "w7"),
        Completion((8, 8), (-0.5, -0.25), FinishReason.LENGTH, "w7"),
    ]
    [sent] = server.received
    assert sent.path == "/v1/completions"
    assert sent.body == {
        "model": "policy", "prompt": PROMPT, "n": 2, "max_tokens": 2, "temperature": 0.7, "top_p": 1.0,
        "top_k": 0, "min_p": 0.0, "logprobs": 0, "return_token_ids": True, "skip_special_tokens": False,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 3,
        "stop_token_ids": [2], "stop": ["</x>"], "include_stop_str_in_output": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (answer_of(), "expected 1 choices, got 0"),
        ("<html>", "expected 1 choices"),
        (answer_of(choice(token_ids=None)), "return_token_ids"),
        (answer_of(choice(logprobs={"token_logprobs": [-0.5]})), "2 tokens but 1 log-probs"),
        (answer_of(choice(logprobs=None)), "malformed choice"),
        (answer_of(choice(token_ids=[], logprobs={"token_logprobs": []})), "0 tokens"),
        (answer_of(choice(logprobs={"token_logprobs": [-0.5, None]})), "malformed choice"),
        (answer_of(choice(logprobs={"token_logprobs": [-0.5, math.nan]})), "finite"),
        (answer_of(choice(logprobs={"token_logprobs": [-0.5, 0.3]})), "not positive"),
        *(
            (answer_of(choice(token_ids=[odd, 2])), "token ids must be whole numbers from 0 on")
            for odd in (math.inf, 2.5, True, "7", -4, None, [1])
        ),
        (answer_of(choice(token_ids=[2, 10**30])), "no vocabulary has the token id 1000"),
        (answer_of(choice(token_ids="92")), "token ids must be whole numbers"),
        *(
            (answer_of(choice(logprobs={"token_logprobs": [-0.5, odd]})), "log-probs must be numbers")
            for odd in ("-0.5", False, [1])
        ),
        (answer_of(choice(logprobs={"token_logprobs": [-0.5, -(10**400)]})), "malformed choice"),
        (answer_of(choice(finish_reason="abort")), "unknown finish reason 'abort'"),
        (answer_of(choice(prompt_token_ids=[1, *PROMPT])), "changed the prompt"),
    ],
)
def test_an_untrustworthy_answer_is_a_protocol_error(answer: Any, what: str) -> None:
    with pytest.raises(EngineProtocolError, match=what):
        read_completions(answer, PROMPT, n=1)


def test_too_few_logprobs_from_a_server_are_asked_for_again_then_an_error() -> None:
    short = answer_of(choice(logprobs={"token_logprobs": [-0.5]}))
    with ScriptedServer(
        lambda received: Reply(short if received.number < 2 else answer_of(choice()))
    ) as server:
        engine = engine_at(server)
        with pytest.raises(EngineProtocolError, match="2 tokens but 1 log-probs"):
            run(engine, engine.generate(PROMPT, Sampling()))
        assert len(server.received) == 2


def test_a_server_that_dies_is_an_engine_error() -> None:
    with ScriptedServer(lambda _: Reply(answer_of(choice()))) as server:
        engine = engine_at(server)
        run(engine, engine.generate(PROMPT, Sampling()))
    with pytest.raises(EngineError, match="nothing succeeded"):
        run(engine, engine.generate(PROMPT, Sampling()))


def test_score_reads_the_logprob_of_each_token_but_the_first() -> None:
    positions = [None, {"6": {"logprob": -1.5}}, {"7": {"logprob": -0.5}, "9": {"logprob": -0.1}}]
    assert read_prompt_logprobs({"choices": [{"prompt_logprobs": positions}]}, PROMPT) == [-1.5, -0.5]
    with pytest.raises(EngineProtocolError, match="2 prompt log-probs for 3 tokens"):
        read_prompt_logprobs({"choices": [{"prompt_logprobs": positions[:2]}]}, PROMPT)
    with pytest.raises(EngineProtocolError, match="malformed"):
        read_prompt_logprobs({"choices": [{"prompt_logprobs": [None, {}, {}]}]}, PROMPT)
    for odd in ("-0.5", True):
        scored: list[Any] = [None, {"6": {"logprob": odd}}, {"7": {"logprob": -0.5}}]
        with pytest.raises(EngineProtocolError, match="log-probs must be numbers"):
            read_prompt_logprobs({"choices": [{"prompt_logprobs": scored}]}, PROMPT)


class Replica:
    """A scripted server with weights: knows the endpoints that update them."""

    def __init__(self, digest: str = "d1", resets_before_success: int = 0) -> None:
        self.digest, self.refusals = digest, resets_before_success
        self.log: list[str] = []

    def __call__(self, received: Received) -> Reply:
        self.log.append(received.path)
        if received.path == "/collective_rpc":
            return Reply({"results": [{"digest": self.digest, "path": "p"}]})
        if received.path == "/reset_prefix_cache":
            self.refusals -= 1
            return Reply({"success": self.refusals < 0})
        if received.path == "/v1/load_lora_adapter":
            return Reply(raw=b"Success", headers={"content-type": "text/plain"})
        return Reply(answer_of(choice()))


def test_reload_empties_the_prefix_cache_and_sets_the_version(tmp_path: Path) -> None:
    replica = Replica(resets_before_success=1)
    with ScriptedServer(replica) as server:
        engine = engine_at(server)

        async def work() -> list[Completion]:
            assert await engine.reload_weights(tmp_path) == "d1"
            return await engine.generate(PROMPT, Sampling())

        [completion] = run(engine, work())
    assert completion.weights_version == engine.weights_version == "d1"
    assert replica.log == ["/collective_rpc", "/reset_prefix_cache", "/reset_prefix_cache", "/v1/completions"]
    assert server.received[0].body == {"method": "trajsmith_load", "args": [str(tmp_path.resolve())]}


def test_a_busy_server_has_time_to_empty_its_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(Replica(resets_before_success=25)) as server:
        engine = engine_at(server)
        assert run(engine, engine.reload_weights(tmp_path)) == "d1"
    monkeypatch.setattr("pipeline.engines.vllm._RESET_SECONDS", 0.0)
    with ScriptedServer(Replica(resets_before_success=1)) as server:
        engine = engine_at(server)
        with pytest.raises(EngineError, match="did not empty its prefix cache in 0 s"):
            run(engine, engine.reload_weights(tmp_path))


def test_replicas_with_different_weights_are_an_error(tmp_path: Path) -> None:
    with ScriptedServer(Replica("d1")) as one, ScriptedServer(Replica("d2")) as two:
        engine = VllmEngine([one.url, two.url], model="policy")
        with pytest.raises(EngineError, match=r"do not hold the same weights.*d1.*d2"):
            run(engine, engine.reload_weights(tmp_path))
    assert engine.weights_version == ""


def test_an_adapter_is_asked_for_by_its_name_once_loaded(tmp_path: Path) -> None:
    with ScriptedServer(Replica()) as server:
        engine = engine_at(server)

        async def work() -> None:
            await engine.load_adapter(tmp_path, name="step", version="a3")
            await engine.generate(PROMPT, Sampling())

        run(engine, work())
    assert engine.weights_version == "a3"
    assert server.received[0].body["load_inplace"] is True
    assert server.received[-1].body["model"] == "step"


def test_an_update_waits_for_running_requests_and_holds_new_ones(tmp_path: Path) -> None:
    """Requests of old weights end first; requests that came during the update get the new version."""
    replica = Replica("new")
    with ScriptedServer(replica) as server:
        engine = engine_at(server)
        engine.weights_version = "old"

        async def work() -> list[str]:
            before = [asyncio.create_task(engine.generate(PROMPT, Sampling())) for _ in range(3)]
            await asyncio.sleep(0)
            update = asyncio.create_task(engine.reload_weights(tmp_path))
            await asyncio.sleep(0)
            after = [asyncio.create_task(engine.generate(PROMPT, Sampling())) for _ in range(3)]
            await update
            done = [(await task)[0].weights_version for task in [*before, *after]]
            return done

        assert run(engine, work()) == ["old"] * 3 + ["new"] * 3
    assert (
        replica.log
        == ["/v1/completions"] * 3 + ["/collective_rpc", "/reset_prefix_cache"] + ["/v1/completions"] * 3
    )


def probing(logprob: float, scored: float, *, model: str = "policy", longest: int = 512) -> Any:
    def answer(received: Received) -> Reply:
        if received.path == "/v1/models":
            return Reply({"data": [{"id": model, "max_model_len": longest}]})
        prompt = received.body["prompt"]
        if "prompt_logprobs" in received.body:
            positions = [None, *({str(token): {"logprob": scored}} for token in prompt[1:])]
            return Reply(answer_of(choice(prompt_token_ids=prompt) | {"prompt_logprobs": positions}))
        logprobs = {"token_logprobs": [logprob]}
        return Reply(answer_of(choice(token_ids=[9], prompt_token_ids=prompt, logprobs=logprobs)))

    return answer


def test_check_tells_processed_from_raw_logprobs() -> None:
    with ScriptedServer(probing(-0.001, -2.0)) as server:
        engine = engine_at(server)
        assert run(engine, engine.check()) == 512
    with ScriptedServer(probing(-2.0, -2.0)) as server:
        engine = engine_at(server)
        with pytest.raises(ConfigError, match="processed_logprobs"):
            run(engine, engine.check())


def test_check_names_the_models_the_server_has() -> None:
    with ScriptedServer(lambda _: Reply({"data": [{"id": "other"}]})) as server:
        engine = engine_at(server)
        with pytest.raises(ConfigError, match=r"\['other'\], not 'policy'"):
            run(engine, engine.check())


ODD_LENGTHS: list[Any] = [True, False, 2.0, "512", -1, []]


@pytest.mark.parametrize(
    "entry", [{"id": "\ud800"}, *({"id": "policy", "max_model_len": odd} for odd in ODD_LENGTHS)]
)
def test_a_list_of_models_that_cannot_be_read_is_refused(entry: dict[str, Any]) -> None:
    with ScriptedServer(lambda _: Reply({"data": [entry]})) as server:
        engine = engine_at(server)
        with pytest.raises(ConfigError, match="which lists no models") as caught:
            run(engine, engine.check())
    str(caught.value).encode()


def test_a_model_called_like_the_key_is_not_told() -> None:
    with ScriptedServer(lambda _: Reply({"data": [{"id": "Fleet-4711"}, {"id": "other"}]})) as server:
        engine = VllmEngine([server.url], model="policy", api_key="fleet-4711")
        with pytest.raises(ConfigError, match=r"models \['\*\*\*', 'other'\], not 'policy'"):
            run(engine, engine.check())


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (probing(-2.0, -2.0), "log-probs from before temperature"),
        (probing(-0.001, -2.0, model="other"), "not 'policy'"),
    ],
)
def test_every_server_is_checked_and_the_odd_one_named(odd: Any, said: str, place: int) -> None:
    good = probing(-0.001, -2.0)
    with ScriptedServer(good) as one, ScriptedServer(good) as two, ScriptedServer(odd) as wrong:
        urls = [one.url, two.url]
        urls.insert(place, wrong.url)
        engine = VllmEngine(urls, model="policy")
        with pytest.raises(ConfigError, match=said) as caught:
            run(engine, engine.check())
    assert f"the server {wrong.url} " in str(caught.value)


def test_the_shortest_context_of_the_fleet_counts() -> None:
    with (
        ScriptedServer(probing(-0.001, -2.0)) as one,
        ScriptedServer(probing(-0.001, -2.0, longest=256)) as two,
    ):
        engine = VllmEngine([one.url, two.url], model="policy")
        assert run(engine, engine.check()) == 256


@pytest.mark.parametrize(
    "answer",
    ["<html>", {}, {"results": []}, {"results": None}, {"results": [{}]}, {"results": [{"digest": 4}]}],
)
def test_weights_without_a_digest_are_a_protocol_error(answer: Any, tmp_path: Path) -> None:
    with ScriptedServer(lambda _: Reply(answer)) as server:
        engine = engine_at(server)
        with pytest.raises(EngineProtocolError, match="worker"):
            run(engine, engine.reload_weights(tmp_path))
    assert engine.weights_version == ""
