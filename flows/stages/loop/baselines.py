"""What a loop is compared with, round by round: its start model, and two ways of going on without it.

`static` takes as many steps of the same trainer on the seeds the loop has seen so far: the baseline that
exposes gains of mere training. `rejection_sampling` samples as many tokens as the loop's round did, on tasks
of its own, and takes the same steps on all its successes so far. Both pass the same gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages.loop.round import (
    Kept,
    LoopWork,
    RoundResult,
    arrow,
    counts_of,
    rows_digest,
    train_and_judge,
    write_result,
)
from flows.stages.progress import Say
from flows.stages.proof import made_by, named
from flows.stages.recipe import LoopSection, SynthSection
from flows.stages.synthesize import make_synthesizer, select_tasks, synthesize
from flows.stages.verbs import synthesis_stage
from pipeline.errors import ConfigError
from pipeline.reporting.content import ReasonCount
from synthesizers.looptool.rounds import fresh_seeds

START, STATIC, SAMPLING = "start", "static", "rejection_sampling"
_MOST_OF_IT = 0.7
"""Share of the sampled tokens that are left that one wave of rollouts takes."""


def fresh_tasks(section: LoopSection, number: int) -> int:
    """Tasks whose seeds round `number` (from 1) adds: half as many every round."""
    return fresh_seeds(number + 1, section.fresh, first=1.0)


def seed_section(section: LoopSection, number: int) -> SynthSection:
    """The synthesis of the seeds that round `number` adds; 0 = those of the start model."""
    if number == 0:
        return section.seeds
    earlier = sum(fresh_tasks(section, before) for before in range(1, number))
    skip = section.seeds.skip + section.seeds.tasks + earlier
    return section.seeds.model_copy(update={"tasks": fresh_tasks(section, number), "skip": skip})


async def seeds(work: LoopWork, number: int, *, teacher: Kept) -> list[Trajectory]:
    """The successful seeds that round `number` adds, made where they are not there yet."""
    section = seed_section(work.recipe.loop, number)
    if not section.tasks:
        return []
    if work.store.manifest(f"synth-seeds-{number}") is None:
        await work.act_with(teacher)
        await synthesis_stage(
            work.store,
            f"seeds-{number}",
            section,
            environment=work.environment,
            policy=work.policy,
            seed=work.recipe.seed,
            say=work.say,
        )
    made = made_by(section, store=work.store, environment=work.environment)
    good = [row for row in made if row.success]
    if not good:
        raise ConfigError(
            f"loop.seeds: none of {len(made)} trajectories succeeded; see {work.store.root}/verdicts"
        )
    return good


async def start_round(work: LoopWork, first: Sequence[Trajectory], *, base: Kept) -> tuple[RoundResult, Kept]:
    """The model every arm goes on from: trained on the seeds, as `sft.settings` say."""
    with work.open_round(0, START) as store:
        return await train_and_judge(
            work,
            store,
            lambda: first,
            number=0,
            arm=START,
            kept=base,
            data_key=rows_digest(first),
            data=(ReasonCount(reason="seeds", count=len(first)),),
            say=named(work.say, START),
        )


async def static_round(
    work: LoopWork, number: int, seen: Sequence[Trajectory], *, kept: Kept, steps: int
) -> tuple[RoundResult, Kept]:
    """The same steps on the seeds that the loop has seen up to this round."""
    with work.open_round(number, STATIC) as store:
        return await train_and_judge(
            work,
            store,
            lambda: seen,
            tasks=lambda: {task.task_id: task for task in work.store.tasks()},
            number=number,
            arm=STATIC,
            kept=kept,
            data_key=rows_digest(seen),
            steps=steps,
            data=(ReasonCount(reason="seeds", count=len(seen)),),
            say=named(work.say, f"round {number}, {STATIC}"),
        )


async def sampling_round(
    work: LoopWork, number: int, *, kept: Kept, steps: int, budget: int
) -> tuple[RoundResult, Kept]:
    """As many sampled tokens as `budget`, the same steps on the successes of all rounds of the arm."""
    say = named(work.say, f"round {number}, {SAMPLING}")
    with work.open_round(number, SAMPLING) as store:
        first = _first_task(work, number)

        async def sample() -> dict[str, int]:
            await work.act_with(kept)
            return await _sample(work, store, first=first, budget=budget, say=say)

        config = {"k": work.recipe.loop.k, "first": first, "budget": budget}
        inputs = {"weights": kept.weights}
        key = await arrow(store, "sample", sample, config=config, inputs=inputs, say=say)
        counts = counts_of(store, "sample")
        said = tuple(ReasonCount(reason=name, count=counts[name]) for name in ("rollouts", "successes"))
        if not any(_successes(work, number)):
            return _untrained(store, number, kept, sampled=counts["tokens"], data=said), kept
        return await train_and_judge(
            work,
            store,
            lambda: _successes(work, number),
            number=number,
            arm=SAMPLING,
            kept=kept,
            data_key=key,
            steps=steps,
            sampled_tokens=counts["tokens"],
            data=said,
            say=say,
        )


async def _sample(work: LoopWork, store: Store, *, first: int, budget: int, say: Say) -> dict[str, int]:
    """Rollouts in waves, ever closer to the budget; counts of tasks, rollouts, successes, tokens.

    A wave's size follows from the waves before it alone, so a killed one is made again as it was.
    """
    split = work.recipe.loop.seeds.split
    taken: dict[str, None] = {}
    rows: list[Trajectory] = []
    tokens = 0
    wave = first_wave(work.recipe.loop, work.policy.max_in_flight)
    while wave:
        tasks = select_tasks(work.environment, split, count=wave, skip=first + len(taken))
        await _roll(work, store, tasks, say=say)
        taken |= dict.fromkeys(task.task_id for task in tasks)
        rows = [row for row in store.trajectories() if row.task_id in taken]
        tokens = sum(row.usage.generated_tokens for row in rows)
        wave = next_wave(budget, tokens=tokens, tasks=len(taken))
    successes = sum(bool(row.success) for row in rows)
    return {"tasks": len(taken), "rollouts": len(rows), "successes": successes, "tokens": tokens}


def first_wave(section: LoopSection, max_in_flight: int) -> int:
    """Tasks of a round's first wave, whatever its budget."""
    return max(1, int(max_in_flight / section.k / 4))


def next_wave(budget: int, *, tokens: int, tasks: int) -> int:
    """Tasks of the next wave, after `tasks` that took `tokens`; 0 where half a task more exceeds `budget`.

    Most of what is left by the mean so far, but no more tasks than there were: the first few are of a few
    templates only, and episodes are of very different lengths.
    """
    if tokens + tokens / tasks / 2 >= budget:
        return 0
    left = (budget - tokens) * tasks / tokens if tokens else tasks
    return min(tasks, max(1, int(_MOST_OF_IT * left)))


async def _roll(work: LoopWork, store: Store, tasks: Sequence[Task], *, say: Say) -> None:
    """k rollouts of every task. Raises where infrastructure broke some."""
    k = work.recipe.loop.k
    plan = SynthSection(synthesizer=SAMPLING, tasks=len(tasks), options={"k": k})
    sampler = make_synthesizer(
        plan, environment=work.environment, policy=work.policy, store=store, seed=work.recipe.seed
    )
    made = await synthesize(
        store,
        sampler,
        tasks,
        planned=len(tasks) * k,
        give_up_after=work.policy.max_in_flight,
        say=say,
    )
    if made.unfinished:
        raise made.failure()


def behind_seeds(section: LoopSection) -> int:
    """Number of the first train task behind the seeds of all rounds there can be."""
    # Half as many each time are less than twice the first.
    return section.seeds.skip + section.seeds.tasks + 3 * section.fresh


def _first_task(work: LoopWork, number: int) -> int:
    """Number of the first train task of a round's rollouts: after all seeds and the arm's earlier rounds."""
    first = behind_seeds(work.recipe.loop)
    for earlier in range(1, number):
        with Store.open(work.place(earlier, SAMPLING)) as store:
            first += counts_of(store, "sample")["tasks"]
    return first


def _successes(work: LoopWork, number: int) -> Iterator[Trajectory]:
    """Verified rollouts of the arm's rounds up to this one."""
    for each in range(1, number + 1):
        with Store.open(work.place(each, SAMPLING)) as store:
            yield from (row for row in store.trajectories() if row.success)


def _untrained(
    store: Store, number: int, kept: Kept, *, sampled: int, data: tuple[ReasonCount, ...]
) -> RoundResult:
    """The result of a round that had nothing to train on."""
    assert kept.dev is not None, "rounds follow the evaluated start model"
    reason = "no rollout succeeded: nothing to train on"
    result = RoundResult(
        round=number,
        arm=SAMPLING,
        accepted=False,
        reason=reason,
        weights="",
        sampled_tokens=sampled,
        data=data,
        dev=kept.dev,
    )
    write_result(store, result)
    return result
