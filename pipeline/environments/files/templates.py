"""What the files world asks: a template draws its files, states the rule, and says what must be in the end.

Not covered: more than a dozen short files per task; wording beyond a sentence or two per template.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.environments.files.tree import Tree

DONE = "End with DONE."
ANSWERING = "End with ANSWER and the name or path."
KEEPING = "Files that say KEEP stay: end with REFUSE keep. Else DONE."


@dataclass(frozen=True, slots=True)
class Template:
    """`draw` fills the tree and returns the request. `tools`: those that gold calls."""

    name: str
    draw: Callable[[Tree], str]
    tools: tuple[str, ...]
    system: str = DONE
    tags: tuple[str, ...] = ()
    unseen: bool = False


def _change_ending(tree: Tree) -> str:
    folder, old, new = tree.folder(), *tree.rng.sample([".log", ".txt", ".md", ".old", ".csv"], 2)
    chosen = tree.add_several(folder, old)
    tree.add(f"{folder}/{tree.stem()}.dat", tree.text())
    tree.step("list", folder=folder)
    for path in chosen:
        tree.rename(path, path.removesuffix(old) + new)
    return f"In {folder}, rename every {old} file to {new}."


def _add_prefix(tree: Tree) -> str:
    folder, prefix = tree.folder(), f"{tree.word()}-"
    tree.step("list", folder=folder)
    for path in tree.add_several(folder, ".txt"):
        tree.rename(path, f"{folder}/{prefix}{path.split('/')[1]}")
    return f"Put {prefix} before the name of every file in {folder}."


def _move_kind(tree: Tree) -> str:
    source, target, ending = tree.folder(), tree.folder(), tree.rng.choice((".csv", ".log", ".md"))
    chosen = tree.add_several(source, ending)
    tree.add(f"{source}/{tree.stem()}.dat", tree.text())
    tree.step("list", folder=source)
    for path in chosen:
        tree.rename(path, f"{target}/{path.split('/')[1]}")
    return f"Move all {ending} files from {source} to {target}."


def _total(tree: Tree) -> str:
    path, amounts = _table(tree, tree.folder())
    out = f"{tree.stem()}.txt"
    tree.step("read", path=path)
    tree.write(out, str(sum(amounts.values())))
    return f"Write the sum of the amounts in {path} to {out}, only the number."


def _total_folder(tree: Tree) -> str:
    folder, out = tree.folder(), f"{tree.stem()}.txt"
    tree.step("list", folder=folder)
    tables = sorted(_table(tree, folder) for _ in range(2))
    tree.add(f"{folder}/{tree.stem()}.md", "name,amount\nSam,999")
    for path, _ in tables:
        tree.step("read", path=path)
    tree.write(out, str(sum(sum(amounts.values()) for _, amounts in tables)))
    return f"Write the sum of all amounts in the .csv files of {folder} to {out}, only the number."


def _highest(tree: Tree) -> str:
    path, amounts = _table(tree, tree.folder())
    tree.step("read", path=path)
    kind = tree.rng.choice(("highest", "lowest"))
    choose = max if kind == "highest" else min
    tree.must_read = path
    tree.answer = f"ANSWER {choose(amounts, key=lambda name: amounts[name])}"
    return f"Who has the {kind} amount in {path}?"


def _find_text(tree: Tree) -> str:
    word = tree.word()
    paths = [*tree.add_several(tree.folder(), ".txt"), *tree.add_several(tree.folder(), ".md")]
    path = tree.rng.choice(paths)
    tree.add(path, f"{tree.text(lines=1)}\nask about {word}{tree.rng.randint(10, 99)}\n{tree.text(lines=1)}")
    wanted = tree.files[path].split("\n")[1].removeprefix("ask about ")
    tree.step("search", text=wanted)
    tree.answer = f"ANSWER {path}"
    return f"Which file mentions {wanted}?"


def _set_value(tree: Tree) -> str:
    path, values = _settings(tree, tree.folder())
    key = tree.rng.choice(list(values))
    new = tree.rng.choice([number for number in range(10, 99) if str(number) != values[key]])
    tree.step("read", path=path)
    tree.write(path, _as_settings(values | {key: str(new)}))
    return f"In {path}, set {key} to {new} and leave the rest."


def _set_where(tree: Tree) -> str:
    folder, new = tree.folder(), tree.rng.randint(10, 99)
    tree.step("list", folder=folder)
    drawn = sorted(_settings(tree, folder) for _ in range(3))
    places = tree.rng.sample(["prod", "prod", "test"], 3)
    for (path, values), place in zip(drawn, places, strict=True):
        values = values | {"env": place, "limit": str(tree.rng.randint(100, 200))}
        tree.add(path, _as_settings(values))
        tree.step("read", path=path)
        if place == "prod":
            tree.write(path, _as_settings(values | {"limit": str(new)}))
    return f"In {folder}, set limit to {new} in every file with env=prod."


def _deduplicate(tree: Tree) -> str:
    folder = tree.folder()
    paths = tree.add_several(folder, ".txt", least=4, most=5)
    same = sorted(tree.rng.sample(paths, 2))
    for path in same[1:]:
        tree.add(path, tree.files[same[0]])
    tree.step("list", folder=folder)
    for path in paths:
        tree.step("read", path=path)
    for path in same[1:]:
        tree.delete(path)
    return f"In {folder}, of files with the same text keep only the first by name."


def _delete_marked(tree: Tree) -> str:
    folder, mark = tree.folder(), tree.rng.choice(("DRAFT", "OLD", "VOID", "COPY"))
    paths = tree.add_several(folder, ".txt", least=3, most=4)
    marked = sorted(tree.rng.sample(paths, 2))
    for path in paths:
        first = mark if path in marked else tree.rng.choice(("FINAL", tree.text(lines=1)))
        tree.add(path, f"{first}\n{tree.text(lines=1)}")
    tree.step("list", folder=folder)
    for path in paths:
        tree.step("read", path=path)
        if path in marked:
            tree.delete(path)
    return f"Delete the files in {folder} whose first line is {mark}."


def _join(tree: Tree) -> str:
    folder = tree.folder()
    paths = [tree.add(f"{folder}/{tree.stem()}.txt", tree.text()) for _ in range(2)]
    out = f"{folder}/{tree.stem()}.txt"
    for path in paths:
        tree.step("read", path=path)
    tree.write(out, "\n".join(tree.files[path] for path in paths))
    return f"Make {out}: the lines of {paths[0]}, then those of {paths[1]}."


def _replace_word(tree: Tree) -> str:
    old, new = tree.word(), tree.word()
    lines = [tree.text(lines=1), f"{old} {tree.word()}", f"{tree.word()} {old}"]
    path = tree.add(f"{tree.folder()}/{tree.stem()}.txt", "\n".join(tree.rng.sample(lines, 3)))
    tree.step("read", path=path)
    tree.write(path, tree.files[path].replace(old, new))
    return f"In {path}, replace {old} with {new} everywhere."


def _swap(tree: Tree) -> str:
    folder = tree.folder()
    one, two = (tree.add(f"{folder}/{tree.stem()}.txt", tree.text()) for _ in range(2))
    tree.step("read", path=one)
    tree.step("read", path=two)
    tree.write(one, tree.files[two])
    tree.write(two, tree.files[one])
    return f"Swap the texts of {one} and {two}."


def _moved(tree: Tree) -> str:
    path, values = _settings(tree, tree.folder())
    key, new = tree.rng.choice(list(values)), tree.rng.randint(100, 199)
    name = path.split("/")[1]
    said = f"{tree.folder()}/{name}"
    tree.step("read", path=said)
    tree.step("search", text=name)
    tree.step("read", path=path)
    tree.write(path, _as_settings(values | {key: str(new)}))
    return f"In {said} (it may have been moved), set {key} to {new}."


def _protected(tree: Tree) -> str:
    path = tree.add(f"{tree.folder()}/{tree.stem()}.txt", tree.text())
    tree.step("read", path=path)
    if tree.rng.random() < 0.5:
        tree.add(path, f"{tree.files[path]}\nKEEP")
        tree.answer, tree.must_read = "REFUSE keep", path
    else:
        tree.delete(path)
    return tree.rng.choice((f"Delete {path}.", f"Please remove {path}."))


def _collect(tree: Tree) -> str:
    folder, out = tree.folder(), f"{tree.stem()}.txt"
    paths = tree.add_several(folder, ".txt")
    found = []
    tree.step("list", folder=folder)
    for path in paths:
        line = f"TODO {tree.word()} {tree.word()}"
        tree.add(path, "\n".join(tree.rng.sample([tree.text(lines=1), line, tree.text(lines=1)], 3)))
        tree.step("read", path=path)
        found.append(line)
    tree.write(out, "\n".join(found))
    return f"Write the TODO lines of all files in {folder} to {out}, by file name."


def _by_year(tree: Tree) -> str:
    folder = tree.folder()
    tree.step("list", folder=folder)
    for _ in range(tree.rng.randint(2, 3)):
        year = tree.rng.randint(2021, 2029)
        name = f"{tree.stem()}-{year}.txt"
        tree.rename(tree.add(f"{folder}/{name}", tree.text()), f"{folder}/{year}/{name}")
    return f"Sort the files of {folder} into folders by the year in their names, such as {folder}/2020/."


def _by_title(tree: Tree) -> str:
    folder = tree.folder()
    paths = tree.add_several(folder, ".txt")
    tree.step("list", folder=folder)
    for path in paths:
        title = tree.word()
        tree.add(path, f"{title}\n{tree.text(lines=1)}")
        tree.step("read", path=path)
        tree.rename(path, f"{folder}/{title}.txt")
    return f"Rename each file in {folder} to its first line, with .txt."


def _table(tree: Tree, folder: str) -> tuple[str, dict[str, int]]:
    names = tree.names(tree.rng.randint(3, 5))
    amounts = dict(zip(names, tree.rng.sample(range(5, 200), len(names)), strict=True))
    rows = "\n".join(f"{name},{amount}" for name, amount in amounts.items())
    return tree.add(f"{folder}/{tree.stem()}.csv", f"name,amount\n{rows}"), amounts


def _settings(tree: Tree, folder: str) -> tuple[str, dict[str, str]]:
    keys = tree.rng.sample(["port", "size", "delay", "retries", "depth", "width"], 3)
    values = {key: str(tree.rng.randint(10, 99)) for key in keys}
    return tree.add(f"{folder}/{tree.stem()}.ini", _as_settings(values)), values


def _as_settings(values: dict[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in values.items())


_ALL = (
    Template("change_ending", _change_ending, ("list", "move")),
    Template("add_prefix", _add_prefix, ("list", "move")),
    Template("move_kind", _move_kind, ("list", "move")),
    Template("total", _total, ("read", "write")),
    Template("total_folder", _total_folder, ("list", "read", "write")),
    Template("highest", _highest, ("read",), ANSWERING),
    Template("find_text", _find_text, ("search",), ANSWERING),
    Template("set_value", _set_value, ("read", "write")),
    Template("set_where", _set_where, ("list", "read", "write")),
    Template("deduplicate", _deduplicate, ("list", "read", "delete")),
    Template("delete_marked", _delete_marked, ("list", "read", "delete")),
    Template("join", _join, ("read", "write")),
    Template("replace_word", _replace_word, ("read", "write")),
    Template("swap", _swap, ("read", "write")),
    Template("moved", _moved, ("read", "search", "write"), tags=("recover",)),
    Template("protected", _protected, ("read", "delete"), KEEPING, tags=("refuse",)),
    Template("collect", _collect, ("list", "read", "write"), unseen=True),
    Template("by_year", _by_year, ("list", "move"), unseen=True),
    Template("by_title", _by_title, ("list", "read", "move"), unseen=True),
)
TEMPLATES = {template.name: template for template in _ALL}
