"""question_dag: similarity of tools, bands, distractors."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pipeline.environments.question_dag.items import MadeTool
from pipeline.environments.question_dag.similarity import BANDS, Distractors, cosines, lexical, tool_text
from pipeline.environments.question_dag.tasks import own_distractors, own_tools
from pipeline.errors import ConfigError


def made(name: str, domain: str, description: str = "Something.") -> MadeTool:
    return MadeTool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": {"x": {"type": "string"}}},
        code=f"def {name}(x):\n    return DATA[x]\n",
        domain=domain,
    )


def along(*angles: float):
    """An embedder that puts the n-th text at a cosine of `angles[n]` to the first."""

    def embed(texts: object) -> np.ndarray:
        return np.array([[cosine, np.sqrt(1 - cosine**2)] for cosine in angles])

    return embed


def test_lexical_vectors_see_words_and_spelling() -> None:
    texts = ["ship crew", "ships crews", "price of a mineral", "ship crew"]
    near = cosines(texts)
    assert near[0, 3] == pytest.approx(1.0)
    assert near[0, 0] == pytest.approx(1.0)
    assert near[0, 3] > near[0, 1] > near[0, 2]
    assert lexical(["", "a b"]).shape[0] == 2
    assert np.isfinite(cosines(["", "a b"])).all()


def test_bands_are_cut_after_min_max_over_other_domains() -> None:
    # Cosines to the first: .95 is of its own domain and does not count, so .9 becomes 1 and .1 becomes 0.
    pool = [made("a", "one"), made("b", "one"), *(made(name, "two") for name in "cdefg")]
    found = Distractors(pool, embedder=along(1.0, 0.95, 0.9, 0.79, 0.77, 0.42, 0.1)).bands("a")
    names = [[pool[place].name for place in band] for band in found]
    # (.79 - .1) / .8 = .8625, (.77 - .1) / .8 = .8375, (.42 - .1) / .8 = .4, which belongs below.
    assert names == [["c", "d"], ["e"], ["f", "g"]]
    assert BANDS == ((0.85, 1.0), (0.4, 0.85), (0.0, 0.4))


def test_every_other_tool_is_in_exactly_one_band() -> None:
    pool = own_distractors(unseen=True)
    for name, tool in own_tools().items():
        places = [place for band in pool.bands(name) for place in band]
        others = {other.name for other in pool.pool if other.domain != tool.domain}
        assert len(places) == len(set(places))
        assert {pool.pool[place].name for place in places} == others


def test_draws_take_each_band_and_never_a_domain_of_the_task() -> None:
    pool, own = own_distractors(unseen=False), own_tools()
    used = [own["ship_crew"], own["add"]]
    for seed in range(20):
        drawn = pool.draw(used, random.Random(seed), per_band=2)
        assert len(drawn) == 6
        assert len({tool.name for tool in drawn}) == 6
        assert not {tool.domain for tool in drawn} & {"harbour", "arithmetic"}
    assert pool.draw(used, random.Random(0), per_band=0) == []


def test_a_pool_of_one_domain_gives_nothing() -> None:
    pool = Distractors([made("a", "one"), made("b", "one")])
    assert pool.draw([pool.pool[0]], random.Random(0), per_band=3) == []


def test_equal_similarities_all_fall_below() -> None:
    pool = Distractors([made(name, name) for name in "abc"], embedder=along(1.0, 0.5, 0.5))
    assert pool.bands("a") == ((), (), (1, 2))


def test_an_embedder_that_answers_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="an embedder gave shape"):
        Distractors([made("a", "one"), made("b", "two")], embedder=lambda texts: [[1.0]])


def test_the_text_of_a_tool_has_its_parameters() -> None:
    assert tool_text(own_tools()["ship_crew"]) == "ship_crew The crew of a ship. ship"
