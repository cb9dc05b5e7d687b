"""Another chain to the same end is accepted, another end gives the plan up."""

from __future__ import annotations

import asyncio
from collections import Counter

from data import canonical
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.hardgen.uniqueness import accepted
from tests.synthesizers.hardgen.lab import VAULT, run


def test_a_request_that_two_chains_fit_with_different_ends_is_given_up(renderer: ChatMLRenderer) -> None:
    rivals = load_environment(VAULT, rivals=True)
    made = run(renderer, rivals, 2, targets={"open_box"}, observed=12, min_calls=3)
    assert not made.tasks
    assert Counter(verdict.reason for verdict in made.verdicts) == {"ambiguous_chain": 2}
    assert all("open_box" in verdict.detail for verdict in made.verdicts)


def test_another_way_to_the_same_end_is_found_and_the_verifier_takes_it(renderer: ChatMLRenderer) -> None:
    mirror = load_environment(VAULT, mirror=True)
    made = run(renderer, mirror, 3, targets={"open_box"}, observed=12, min_calls=3)
    assert len(made.tasks) == 3
    for task in made.tasks:
        plan = made.plans[task.task_id]
        assert plan["search"]["same_end"] >= 1 and plan["search"]["calls"] > 3
        [turn] = read_blueprint(task).turns
        gold = [(call.name, call.arguments) for call in turn.calls]
        other = {"boxes": "shelf", "shelf": "boxes"}
        way = tuple((other.get(name, name), arguments) for name, arguments in gold)
        assert asyncio.run(accepted(made.environment, task, way, turn.reply))
        guess = tuple(call for call in gold if call[0] not in other)
        assert not asyncio.run(accepted(made.environment, task, guess, turn.reply))
        wrong = canonical.dumps({**canonical.loads(gold[-1][1]), "force": 1})
        assert not asyncio.run(
            accepted(made.environment, task, (*gold[:-1], ("open_box", wrong)), turn.reply)
        )


def test_a_chain_without_rivals_is_unique(renderer: ChatMLRenderer) -> None:
    made = run(renderer, VAULT, 3, targets={"open_box"}, observed=12, min_calls=3)
    assert len(made.tasks) == 3
    assert all(plan["search"]["same_end"] == 0 for plan in made.plans.values())
    assert all(plan["chain"] == ["boxes", "sign_in", "open_box"] for plan in made.plans.values())
