"""What the signature graph costs: 5,000 functions with 30 candidates each, and 100,000 walks, beside peers.

Run: python -m benchmarks.graph. The functions are the distinct single-turn documents of BFCL (`make
bfcl-setup`), filled up to 5,000 with perturbed copies. The peer of the graph is the same judgement made pair
by pair without an index, on a sample and scaled up. Those documents name no answers, so the graph is thin and
its walks are short; walks are therefore timed a second time with every candidate as an edge, beside
networkx.generate_random_paths on that graph, which may repeat nodes. Not covered: an LLM as judge.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

import networkx as nx

from data import canonical
from data.messages import ToolSpec
from pipeline.environments.bfcl.single_rows import CATEGORIES, single_rows, single_tools
from synthesizers.graph.build import build_graph, draw_candidates
from synthesizers.graph.dependency import WALK_LENGTH, Evidence, Link, SignatureGraph
from synthesizers.graph.matching import Matcher
from synthesizers.graph.ports import Signature
from synthesizers.graph.signatures import signature_of
from synthesizers.graph.words import nouns

NUM_FUNCTIONS, NUM_WALKS, NUM_PEER_WALKS, NUM_PEER_PAIRS = 5_000, 100_000, 2_000, 300

NUM_CATEGORIES = 49
"""Categories at most, the rest included. From the paper: the number it had."""
MAX_SHARE = 0.1
"""A word that more of the functions share makes no category."""
REST = "other"


def documented_functions() -> list[ToolSpec]:
    """The distinct functions of BFCL's single-turn rows; a name used for several gets a number."""
    specs: dict[str, ToolSpec] = {}
    for category in CATEGORIES:
        for row in single_rows(category):
            specs.update({canonical.digest(spec.model_dump()): spec for spec in single_tools(row)})
    seen: dict[str, int] = {}
    for key, spec in specs.items():
        seen[spec.name] = seen.get(spec.name, 0) + 1
        specs[key] = (
            spec
            if seen[spec.name] == 1
            else spec.model_copy(update={"name": f"{spec.name}_{seen[spec.name]}"})
        )
    return list(specs.values())


def perturbed(tool: ToolSpec, number: int) -> ToolSpec:
    """A copy under another name, with one parameter fewer and the others in another order."""
    schema = canonical.loads(tool.parameters)
    kept = list(schema.get("properties", {}).items())
    rng = random.Random(f"{tool.name}/{number}")
    kept = rng.sample(kept, max(1, len(kept) - 1)) if kept else kept
    schema["properties"] = dict(kept)
    schema["required"] = [name for name in schema.get("required", ()) if name in schema["properties"]]
    return tool.model_copy(
        update={"name": f"{tool.name}_copy{number}", "parameters": canonical.dumps(schema)}
    )


def functions(count: int) -> tuple[list[ToolSpec], float]:
    """`count` functions and the share of copies among them."""
    real = documented_functions()[:count]
    copies = [perturbed(real[number % len(real)], number) for number in range(count - len(real))]
    return real + copies, len(copies) / count


def categories_of(tools: Sequence[ToolSpec], *, num_categories: int = NUM_CATEGORIES) -> list[str]:
    """One category per tool, for the documents have none: a common noun of its name or description.

    Chosen are the commonest nouns of names that are not everywhere; a tool takes the rarest it has.
    """
    named = [dict.fromkeys(nouns(tool.name)) for tool in tools]
    said = [dict.fromkeys((*nouns(tool.name), *nouns(tool.description))) for tool in tools]
    common = Counter(word for found in said for word in found)
    in_names = Counter(word for found in named for word in found)
    usable = [word for word, _ in in_names.most_common() if common[word] <= MAX_SHARE * len(tools)]
    chosen = dict.fromkeys(usable[: num_categories - 1])
    return [
        _rarest(name, chosen, common) or _rarest(text, chosen, common) or REST
        for name, text in zip(named, said, strict=True)
    ]


def _rarest(found: dict[str, None], chosen: dict[str, None], common: Counter[str]) -> str:
    return min((word for word in found if word in chosen), key=lambda word: common[word], default="")


def build(tools: Sequence[ToolSpec]) -> tuple[list[Signature], SignatureGraph]:
    """Everything from documents to the graph."""
    signatures = [
        signature_of(tool, category=category)
        for tool, category in zip(tools, categories_of(tools), strict=True)
    ]
    return signatures, build_graph(signatures)


def naive_seconds(signatures: Sequence[Signature], pairs: int) -> float:
    """Seconds per pair of judging pairs one by one, each from its own signatures."""
    sample = random.Random(0).sample(list(draw_candidates(signatures)), pairs)
    started = time.perf_counter()
    for source, target in sample:
        list(Matcher([source, target]).links(source, target))
    return (time.perf_counter() - started) / pairs


def full_graph(signatures: Sequence[Signature]) -> SignatureGraph:
    """The graph in which every candidate is an edge."""
    pairs = draw_candidates(signatures)
    links = [Link(source.name, target.name, "", "", Evidence.RANDOM, 1.0) for source, target in pairs]
    return SignatureGraph(signatures, links)


def time_walks(graph: SignatureGraph, label: str) -> float:
    """Seconds of NUM_WALKS walks; prints them."""
    started = time.perf_counter()
    walks = graph.walks(NUM_WALKS, length=WALK_LENGTH)
    took = time.perf_counter() - started
    mean, covered = sum(map(len, walks)) / len(walks), graph.coverage(walks)
    print(f"{len(walks)} walks, {label}: {took:.2f} s, mean length {mean:.2f}, edges covered {covered:.1%}")
    return took


def peer_seconds(graph: SignatureGraph) -> float:
    """Seconds networkx would take: its set-up, done with the first walk, and the other walks scaled up."""
    started = time.perf_counter()
    walks = nx.generate_random_paths(graph.digraph, NUM_PEER_WALKS, WALK_LENGTH - 1, seed=0)
    next(walks)
    ready = time.perf_counter()
    rest = sum(1 for _ in walks)
    return ready - started + (time.perf_counter() - ready) * NUM_WALKS / rest


def main() -> None:
    """Print the figures."""
    tools, share = functions(NUM_FUNCTIONS)
    print(f"{len(tools)} functions, {share:.1%} of them perturbed copies")
    started = time.perf_counter()
    signatures, graph = build(tools)
    took = time.perf_counter() - started
    num_pairs, categories = (
        sum(1 for _ in draw_candidates(signatures)),
        {each.category for each in signatures},
    )
    print(f"graph: {took:.2f} s, {num_pairs} pairs in {len(categories)} categories, {len(graph.edges)} edges")
    naive = naive_seconds(signatures, NUM_PEER_PAIRS) * num_pairs
    print(f"pair by pair without an index: {naive:.1f} s (from {NUM_PEER_PAIRS} pairs), {naive / took:.1f} x")
    time_walks(graph, "by schema")
    full = full_graph(signatures)
    walked = time_walks(full, f"{len(full.edges)} edges")
    peer = peer_seconds(full)
    print(
        f"networkx.generate_random_paths: {peer:.1f} s (from {NUM_PEER_WALKS} walks), {peer / walked:.1f} x"
    )


if __name__ == "__main__":
    main()
