from data import messages
from data.messages import ParseStatus
from pipeline.checks.attempts import attempts
from pipeline.checks.stats import wilson_interval
from pipeline.diagnosis import GoldBook, diagnose, valid_call_rate
from pipeline.diagnosis.diagnose import valid_turns
from tests.samples import call, segment, trajectory, turns_of_calls

SEARCH = call("search", city="Rome")
BOOK = call("book", offer=1)
BROKEN = call("", status=ParseStatus.NOT_JSON, raw="<tool_call>{")
POOL = [
    trajectory(SEARCH, BOOK, "Done.", task="a", index=0, template="one", tags=("choice", "budget")),
    trajectory(
        SEARCH,
        call("book", offer=2),
        "Done.",
        task="a",
        index=1,
        template="one",
        tags=("choice",),
        reward=0.0,
    ),
    trajectory(
        SEARCH,
        call("cancel", offer=2),
        "Done.",
        task="a",
        index=2,
        template="two",
        tags=("choice",),
        reward=0.0,
    ),
    trajectory(BROKEN, "Sorry.", task="a", index=3, template="two", tags=(), reward=0.0),
    trajectory(SEARCH, task="a", index=4, template="two", tags=("choice",), reward=None),
]

GOLD = GoldBook()
GOLD.put("a", ("tag:choice", "tool:book"), turns_of_calls([SEARCH, BOOK]))


def test_infrastructure_failures_enter_no_rate_and_are_counted() -> None:
    found = diagnose(POOL, gold=GOLD)
    assert found.num_trajectories == 5
    overall = found.overall
    assert (overall.success.successes, overall.success.trials, overall.infra) == (1, 4, 1)
    assert (overall.success.low, overall.success.high) == wilson_interval(1, 4)
    assert {share.kind: share.rate.successes for share in overall.failures} == {
        "wrong_argument": 1,
        "wrong_tool": 1,
        "parse": 1,
    }
    assert all(share.rate.trials == 4 for share in overall.failures)


def test_groups_by_capability_and_template() -> None:
    """A task's capabilities are gold's; of a task that gold is not known of, its tags."""
    found = diagnose(POOL, gold=GOLD)
    groups = {
        group.name: (group.success.successes, group.success.trials, group.infra)
        for group in found.by_capability
    }
    assert groups == {"tag:choice": (1, 4, 1), "tool:book": (1, 4, 1)}
    unknown = {group.name: group.success.trials for group in diagnose(POOL).by_capability}
    assert unknown == {"environment:desk": 4, "tag:budget": 1, "tag:choice": 3}
    templates = {group.name: (group.success.successes, group.success.trials) for group in found.by_template}
    assert templates == {"one": (1, 2), "two": (0, 2)}
    failed = {group.name: group.examples for group in found.by_template}
    assert failed == {
        "one": (POOL[1].trajectory_id,),
        "two": tuple(sorted((POOL[2].trajectory_id, POOL[3].trajectory_id))),
    }
    assert set(found.shown_ids) == {trajectory.trajectory_id for trajectory in POOL[1:]}


def test_confusions_steps_and_examples() -> None:
    found = diagnose(POOL, gold=GOLD)
    confusion = {(row.gold, row.called): row.count for row in found.tool_confusion}
    assert confusion == {("book", "cancel"): 1, ("search", "(none)"): 1, ("book", "(none)"): 1}
    assert [(row.reason, row.count) for row in found.argument_errors] == [("book.offer", 1)]
    assert [(row.reason, row.count) for row in found.first_failing_step] == [("1", 1), ("2", 2)]
    examples = {example.kind: example.trajectory_ids for example in found.examples}
    assert examples["infra"] == (POOL[4].trajectory_id,) and examples["parse"] == (POOL[3].trajectory_id,)


def test_valid_call_rate_counts_turns_that_attempt_a_call() -> None:
    """Turns: 2 good, 2 good, 2 good, 1 broken, 1 good (calls count even without a reward)."""
    found = valid_call_rate(POOL)
    assert (found.successes, found.trials) == (7, 8)
    assert found.value == 7 / 8


def test_one_bad_call_of_two_makes_its_turn_invalid_and_words_are_no_attempt() -> None:
    both = messages.assistant(
        "", SEARCH.model_copy(update={"call_id": "x"}), BROKEN.model_copy(update={"call_id": "y"})
    )
    turns = (messages.user("Go."), both, messages.assistant("Just words."))
    item = trajectory("").model_copy(update={"turns": turns, "segments": (segment(turns),)})
    assert valid_turns(list(attempts(item))) == (1, 0)


def test_an_empty_pool_measures_nothing() -> None:
    found = diagnose([])
    assert found.overall.success.value is None and (
        found.overall.success.low,
        found.overall.success.high,
    ) == (0, 1)
    assert found.by_capability == () and found.plan.samples == () and valid_call_rate([]).trials == 0


def test_the_result_does_not_depend_on_order() -> None:
    assert diagnose(POOL, gold=GOLD) == diagnose(POOL[::-1], gold=GOLD)


def test_a_gold_book_keeps_calls_words_and_capabilities() -> None:
    book, item = GoldBook(), trajectory(SEARCH, BOOK, "ANSWER 210")
    book.put("a", ("tag:x",), item.turns)
    turns = book.turns("a")
    assert turns is not None and [turn.text for turn in turns] == ["", "", "ANSWER 210"]
    made = [[(call.name, call.arguments) for call in turn.tool_calls] for turn in turns]
    assert made == [[(SEARCH.name, SEARCH.arguments)], [(BOOK.name, BOOK.arguments)], []]
    assert "a" in book and book.capabilities("a") == ("tag:x",)
    assert book.turns("b") is None and book.capabilities("b") is None and "b" not in book
    book.put("c", (), None)
    assert book.turns("c") is None and book.capabilities("c") == ()
