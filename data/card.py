"""The card of a published data set: YAML front matter, what it is, the funnel, the lineage.

Numbers come from the run, never from the caller; what the run does not know (licence, model label) is
given by the caller and stated as given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from data.trajectories import Trajectory
from data.verdicts import Verdict

VIEWS = ("messages", "records", "tokens")


@dataclass(slots=True)
class Lineage:
    """Counted while rows stream by."""

    rows: int = 0
    successes: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    synthesizers: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    environments: Counter[str] = field(default_factory=Counter)

    def add(self, trajectory: Trajectory) -> None:
        """Count one published trajectory."""
        policy, environment = trajectory.policy, trajectory.environment
        self.rows += 1
        self.successes += bool(trajectory.success)
        for segment in trajectory.segments:
            self.tokens += len(segment.token_ids)
            self.trained_tokens += sum(weight > 0 for weight in segment.loss_mask(trajectory.turns))
        self.synthesizers[trajectory.synthesizer] += 1
        self.policies[policy.name + (f" (weights {policy.weights})" if policy.weights else "")] += 1
        self.environments[f"{environment.name}, version {environment.version}"] += 1


@dataclass(slots=True)
class Funnel:
    """What each filter saw, kept and why it dropped the rest, in order of first appearance."""

    kept: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Funnel:
        """Count verdicts in one pass."""
        funnel = cls()
        for verdict in verdicts:
            reasons = funnel.dropped.setdefault(verdict.filter, Counter())
            if verdict.keep:
                funnel.kept[verdict.filter] += 1
            else:
                reasons[verdict.reason] += 1
        return funnel

    def add(self, name: str, *, kept: int, dropped: Mapping[str, int]) -> None:
        """A filter that was counted elsewhere, after those that are here."""
        self.kept[name] += kept
        self.dropped.setdefault(name, Counter()).update(dropped)

    def rows(self) -> list[tuple[str, int, int, str]]:
        """(filter, seen, kept, "reason n, reason n") per filter."""
        table = []
        for name, reasons in self.dropped.items():
            listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
            table.append((name, self.kept[name] + reasons.total(), self.kept[name], listed))
        return table


def make_card(
    *,
    title: str,
    license_id: str,
    model_label: str,
    lineage: Lineage,
    funnel: Funnel,
    num_rollouts: int,
    num_failures: int,
) -> str:
    """The README.md of a published directory."""
    sections = [
        _front_matter(title, license_id),
        f"# {title}",
        f"{lineage.rows} tool-use trajectories, {lineage.successes} of them successful by the "
        f"environment's verifier; {lineage.tokens} tokens, {lineage.trained_tokens} of them trained.",
        f"Model: {model_label or 'not stated'}. Licence: {license_id}.",
        _VIEWS_TEXT,
        "## Funnel\n\n" + _funnel_table(funnel, lineage.rows, num_rollouts, num_failures),
        "## Lineage\n\n" + _lineage_list(lineage),
        "Private parts of the tasks (answers, hidden tests) are not here; every row was checked for them.",
    ]
    return "\n\n".join(sections) + "\n"


_VIEWS_TEXT = """\
## Views

| view | one row is | use |
| --- | --- | --- |
| `messages` | a trajectory: OpenAI `messages`; arguments and `tools` are JSON strings | SFT anywhere |
| `tokens` | a segment: `input_ids`, `labels`, `loss_weights`, `logprobs`, `spans` | exact tokens |
| `records` | a trajectory with everything known about it | analysis, replay, import |

U+FDD0 in a text column is an escape: with four hex digits it stands for a lone surrogate, doubled for
itself."""


def _front_matter(title: str, license_id: str) -> str:
    import yaml

    configs = [
        {
            "config_name": view,
            "data_files": f"{view}/*.parquet",
            **({"default": True} if view == "messages" else {}),
        }
        for view in VIEWS
    ]
    value = {
        "pretty_name": title,
        "license": license_id,
        "task_categories": ["text-generation"],
        "tags": ["agent-trajectories", "tool-use", "trajsmith"],
        "configs": configs,
    }
    return "---\n" + yaml.safe_dump(value, sort_keys=False) + "---"


def _funnel_table(funnel: Funnel, num_published: int, num_rollouts: int, num_failures: int) -> str:
    lines = ["| step | in | kept | dropped because |", "| --- | ---: | ---: | --- |"]
    judged = num_rollouts - num_failures
    lines.append(
        f"| rollouts | {num_rollouts} | {judged} | {f'no reward {num_failures}' if num_failures else ''} |"
    )
    lines += [f"| {name} | {seen} | {kept} | {reasons} |" for name, seen, kept, reasons in funnel.rows()]
    lines.append(f"| published |  | {num_published} |  |")
    return "\n".join(lines)


def _lineage_list(lineage: Lineage) -> str:
    groups = {
        "synthesizer": lineage.synthesizers,
        "policy": lineage.policies,
        "environment": lineage.environments,
    }
    return "\n".join(
        f"- {kind}: {name} ({count})"
        for kind, counter in groups.items()
        for name, count in counter.most_common()
    )
