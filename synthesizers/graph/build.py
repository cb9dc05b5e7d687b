"""From signatures and executed calls to a graph: candidates matched by schema, joined with what was seen.

Candidates come from the same category, as in the paper; observed links need no candidate. Not covered: the
judge, which is asynchronous (`judge.judged_links`, then `SignatureGraph.with_links`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.matching import Matcher
from synthesizers.graph.observations import Step, observed_links
from synthesizers.graph.ports import Signature

CANDIDATES = 30
"""Candidate neighbours drawn per function. From the paper."""


def build_graph(
    signatures: Sequence[Signature],
    *,
    observations: Iterable[Sequence[Step]] = (),
    num_candidates: int = CANDIDATES,
    seed: int = 0,
) -> SignatureGraph:
    """The graph of `signatures`. `observations` are executed sequences; calls of other tools are left out."""
    known = {signature.name for signature in signatures}
    matcher = Matcher(signatures)
    pairs = draw_candidates(signatures, num_candidates=num_candidates, seed=seed)
    links = [link for source, target in pairs for link in matcher.links(source, target)]
    seen = observed_links(observations)
    return SignatureGraph(
        signatures, [*links, *(link for link in seen if {link.source, link.target} <= known)]
    )


def draw_candidates(
    signatures: Sequence[Signature], *, num_candidates: int = CANDIDATES, seed: int = 0
) -> Iterator[tuple[Signature, Signature]]:
    """(source, candidate target): up to `num_candidates` others of the category each, without repeats."""
    members: dict[str, list[Signature]] = defaultdict(list)
    for signature in signatures:
        members[signature.category].append(signature)
    rng = random.Random(f"signature_graph/candidates/{seed}")
    for group in members.values():
        size = len(group) - 1
        for place, source in enumerate(group):
            chosen = rng.sample(range(size), min(size, num_candidates))
            yield from ((source, group[index + (index >= place)]) for index in sorted(chosen))
