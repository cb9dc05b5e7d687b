"""What a round trains on: the paper's sizes, perplexity that really selects, weights instead of deletions."""

from __future__ import annotations

from typing import Any

import pytest

from data.errors import ConfigError
from data.trajectories import Origin, Trajectory, Usage
from synthesizers.looptool.probing import Probe, ProbeVerdict
from synthesizers.looptool.records import LabelVerdict, Part, Repair
from synthesizers.looptool.rounds import (
    Parts,
    borderline_steps,
    capability_table,
    compose,
    error_steps,
    fresh_seeds,
    num_steps,
    only_turns,
    round_parts,
)
from synthesizers.looptool.samples import step_samples
from tests import samples

SIZE = 18_304


def probe(trajectory_id: str, turn: int = 2, *, perplexity: float | None = 1.0, **fields: Any) -> Probe:
    return Probe(
        **{
            "trajectory_id": trajectory_id,
            "turn": turn,
            "task_id": "task",
            "verdict": ProbeVerdict.MASTERED,
            "perplexity": perplexity,
            **fields,
        }
    )


def missed(trajectory_id: str, turn: int = 2, *, reason: str = "other_calls", **fields: Any) -> Probe:
    return probe(trajectory_id, turn, verdict=ProbeVerdict.MISMATCH, reason=reason, **fields)


def repair(trajectory_id: str, turn: int, verdict: LabelVerdict, **fields: Any) -> Repair:
    return Repair(trajectory_id=trajectory_id, turn=turn, verdict=verdict, **fields)


def row(name: str, *, texts: int = 1) -> Trajectory:
    """`texts` assistant turns (2, 4 with a call; the last in words)."""
    steps = [samples.call("search", city=f"c{number}") for number in range(texts - 1)]
    return samples.trajectory(*steps, "Done.", task=name, identifier=name)


@pytest.mark.parametrize(
    ("number", "parts"),
    [(2, (1_919, 6_566, 4_187, 5_632)), (3, (3_386, 8_066, 4_036, 2_816)), (4, (3_731, 8_169, 4_996, 1_408))],
)
def test_the_papers_rounds_come_out_of_what_was_there(number: int, parts: tuple[int, ...]) -> None:
    there = Parts(error_seeds=parts[0], expansions=parts[1], high_perplexity=10_000, fresh=10_000)
    made = round_parts(SIZE, round_number=number, available=there)
    assert made == parts and made.total == sum(parts) == SIZE


def test_the_share_of_unseen_seeds_halves_every_round() -> None:
    assert [fresh_seeds(number, SIZE) for number in (1, 2, 3, 4, 5)] == [18_304, 5_632, 2_816, 1_408, 704]
    assert [fresh_seeds(number, 100, first=0.5) for number in (2, 3)] == [50, 25]
    for wrong in ((0, 10, 0.5), (2, -1, 0.5), (2, 10, 1.5)):
        with pytest.raises(ConfigError):
            fresh_seeds(wrong[0], wrong[1], first=wrong[2])


def test_what_is_lacking_is_not_made_up_by_more_seeds() -> None:
    few = Parts(error_seeds=3, expansions=4, high_perplexity=5, fresh=1_000)
    assert round_parts(100, round_number=2, available=few) == Parts(3, 4, 5, 31)
    many = Parts(error_seeds=90, expansions=90, high_perplexity=90, fresh=90)
    assert round_parts(100, round_number=2, available=many) == Parts(69, 0, 0, 31)


def test_mastered_steps_are_kept_by_perplexity_most_uncertain_first() -> None:
    """The selection that the released code lacks: it stores perplexities and keeps every mastered step."""
    probes = [probe("a", perplexity=1.2), probe("b", perplexity=3.0), probe("c", perplexity=1.9)]
    probes += [probe("d", perplexity=1.01), missed("e", perplexity=9.0), missed("f", perplexity=2.5)]
    probes += [probe("g", verdict=ProbeVerdict.INFRA, perplexity=None)]
    repairs = [repair("e", 2, LabelVerdict.PRED_WRONG), repair("f", 2, LabelVerdict.BOTH_CORRECT)]
    assert borderline_steps(probes, repairs, share=0.6) == ["b#2", "f#2", "c#2"]
    assert borderline_steps(probes, repairs, share=0.0) == []
    assert len(borderline_steps(probes, repairs, share=1.0)) == 5
    with pytest.raises(ConfigError, match="between 0 and 1, got 2"):
        borderline_steps(probes, repairs, share=2)


def test_error_seeds_are_wrong_predictions_and_repaired_labels() -> None:
    repairs = [
        repair("b", 2, LabelVerdict.PRED_WRONG),
        repair("a", 2, LabelVerdict.LABEL_WRONG, repaired=row("fixed")),
        repair("c", 2, LabelVerdict.LABEL_WRONG, reason="check_failed"),
        repair("d", 2, LabelVerdict.BOTH_WRONG),
        repair("e", 2, LabelVerdict.BOTH_CORRECT),
        repair("f", 2, LabelVerdict.UNDECIDED),
    ]
    assert error_steps(repairs) == ["a#2", "b#2"]


def trained(trajectory: Trajectory) -> list[int]:
    return [sample.turn for sample in step_samples(trajectory)]


def test_a_round_trains_chosen_steps_of_dialogues_that_stay_whole() -> None:
    long = row("long", texts=4)
    other = row("other", texts=2)
    fixed = only_turns(row("fixed", texts=2), {2}, labels={"looptool:repaired"})
    probes = [
        missed("long", 2),
        probe("long", 4, perplexity=1.1),
        probe("long", 6, perplexity=5.0),
        probe("long", 8, perplexity=1.0),
        missed("other", 2),
        probe("other", 4, perplexity=1.0),
    ]
    repairs = [
        repair("long", 2, LabelVerdict.PRED_WRONG),
        repair("other", 2, LabelVerdict.LABEL_WRONG, repaired=fixed),
    ]
    made = compose(
        rows=[other, long],
        probes=probes,
        repairs=repairs,
        expansions=[row("new", texts=3)],
        fresh=[row("seed")],
        round_number=2,
        high_share=0.25,
    )
    assert made.parts == Parts(error_seeds=2, expansions=3, high_perplexity=1, fresh=1)
    by_parent = {each.parents: each for each in made.trajectories}
    kept = by_parent[("long",)]
    assert trained(kept) == [2, 6] and kept.trajectory_id != "long" and kept.synthesizer == "looptool"
    assert kept.labels == (Part.ERROR_SEED.mark, Part.HIGH_PERPLEXITY.mark)
    assert kept.segments == long.segments and kept.segments[0].origin is Origin.SAMPLED
    assert [turn.text for turn in kept.turns] == [turn.text for turn in long.turns]
    assert kept.segments[0].loss_mask(kept.turns) == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert kept.usage == Usage()
    assert fixed in made.trajectories and ("other",) not in by_parent
    assert {"new", "seed"} <= {each.trajectory_id for each in made.trajectories}
    assert [each.trajectory_id for each in made.trajectories] == sorted(
        each.trajectory_id for each in made.trajectories
    )


def test_a_round_of_a_size_takes_whole_dialogues_as_they_fit() -> None:
    made = compose(
        rows=[],
        probes=[],
        repairs=[],
        expansions=[row("a", texts=3), row("b", texts=4), row("c", texts=1)],
        fresh=[row("d", texts=2), row("e", texts=2), row("f", texts=1)],
        round_number=2,
        size=8,
        first_fresh=3 / 8,
    )
    assert {each.trajectory_id for each in made.trajectories} == {"a", "c", "d", "f"}
    assert made.parts == Parts(0, 4, 0, 3)


def test_a_step_that_was_not_chosen_is_no_step_of_the_next_probing() -> None:
    once = only_turns(row("long", texts=4), {4}, labels=())
    assert trained(once) == [4] and num_steps(once) == 1
    again = only_turns(once, {4}, labels={"x"})
    assert trained(again) == [4] and again.parents == (once.trajectory_id,)
    assert only_turns(row("long", texts=4), {4}, labels=()) == once


def test_capabilities_are_listed_weakest_first_and_infra_is_in_no_rate() -> None:
    names = {"a": ("book", "refuse"), "b": ("book",), "c": ("refuse",), "d": ("book",)}
    probes = [probe("a", perplexity=2.0), missed("b"), missed("c"), missed("a", 4, reason="text_for_call")]
    probes += [probe("d", verdict=ProbeVerdict.INFRA, perplexity=None)]
    probes += [probe("d", 4, verdict=ProbeVerdict.TOO_LONG, perplexity=None)]
    book, refuse = capability_table(probes, names.__getitem__)
    assert (book.name, book.mastered.successes, book.mastered.trials) == ("book", 1, 3)
    assert (refuse.name, refuse.mastered.successes, refuse.mastered.trials) == ("refuse", 1, 3)
    assert book.perplexity == 2.0 and {each.reason: each.count for each in book.reasons} == {
        "other_calls": 1,
        "text_for_call": 1,
    }
    weak, strong = capability_table([*probes, probe("c", 4)], names.__getitem__)
    assert (weak.name, strong.name) == ("book", "refuse") and strong.mastered.value == 0.5
