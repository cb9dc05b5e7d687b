"""What each program of code_repair ought to compute, written another way."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any


def _kth(items: list[int], k: int) -> int | None:
    return sorted(items)[k - 1] if 1 <= k <= len(items) else None


def _best_run(values: list[int]) -> list[int]:
    ends = itertools.combinations_with_replacement(range(len(values)), 2)
    runs = [[i, j, sum(values[i : j + 1])] for i, j in ends]
    top = max(run[2] for run in runs)
    # The first to end, and of those the first to begin.
    return min((run for run in runs if run[2] == top), key=lambda run: (run[1], run[0]))


def _pair(values: list[int], target: int) -> list[int] | None:
    pairs = [(j, i) for j in range(len(values)) for i in range(j) if values[i] + values[j] == target]
    return [min(pairs)[1], min(pairs)[0]] if pairs else None


def _rise(values: list[int]) -> int:
    sizes = range(len(values), -1, -1)
    return next(
        size
        for size in sizes
        if any(
            all(a < b for a, b in itertools.pairwise(some)) for some in itertools.combinations(values, size)
        )
    )


def _spiral(grid: list[list[int]]) -> list[int]:
    cells: list[int] = []
    while grid and grid[0]:
        cells += grid[0]
        grid = [list(row) for row in zip(*grid[1:], strict=True)][::-1]
    return cells


def _intervals(spans: list[list[int]]) -> list[list[int]]:
    inside = {
        2 * point + half
        for a, b in spans
        for point in range(a, b + 1)
        for half in (0, 1)
        if point < b or not half
    }
    starts = [point for point in sorted(inside) if point - 1 not in inside]
    ends = [point for point in sorted(inside) if point + 1 not in inside]
    return [[a // 2, b // 2] for a, b in zip(starts, ends, strict=True)]


def _maze(grid: list[list[int]]) -> int:
    reached, steps = {(0, 0)}, 0
    while (len(grid) - 1, len(grid[0]) - 1) not in reached:
        near = {(r + a, c + b) for r, c in reached for a, b in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))}
        more = {
            (r, c) for r, c in near if 0 <= r < len(grid) and 0 <= c < len(grid[0]) and not grid[r][c]
        } | {(0, 0)}
        if more == reached:
            return -1
        reached, steps = more, steps + 1
    return steps


def _climbs(stairs: int, longest: int) -> int:
    return (
        1
        if stairs == 0
        else sum(_climbs(stairs - jump, longest) for jump in range(1, min(longest, stairs) + 1))
    )


def _collatz(limit: int) -> int:
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    return max(range(1, limit + 1), key=steps)


def _base(number: int, base: int) -> list[int]:
    return [number] if number < base else [*_base(number // base, base), number % base]


def _coins(coins: list[int], amount: int) -> int:
    sums, count = {0}, 0
    while amount not in sums:
        more = {total + coin for total in sums for coin in coins if total + coin <= amount}
        count += 1
        if not more or count > amount:
            return -1
        sums = more
    return count


def _factors(n: int) -> list[list[int]]:
    primes = [p for p in range(2, n + 1) if n % p == 0 and all(p % d for d in range(2, p))]
    return [[p, max(e for e in range(1, 12) if n % p**e == 0)] for p in primes]


def _pack(weights: list[int], values: list[int], capacity: int) -> int:
    chosen = itertools.product((0, 1), repeat=len(weights))
    fits = [c for c in chosen if sum(w * x for w, x in zip(weights, c, strict=True)) <= capacity]
    return max(sum(v * x for v, x in zip(values, c, strict=True)) for c in fits)


def _palindrome(text: str) -> bool:
    letters = [char.lower() for char in text if char.isalpha()]
    return letters == letters[::-1]


def _balanced(text: str) -> bool:
    brackets = re.sub(r"[^()\[\]]", "", text)
    while (shorter := brackets.replace("()", "").replace("[]", "")) != brackets:
        brackets = shorter
    return not brackets


def _caesar(text: str, shift: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return text.translate(str.maketrans(letters, letters[shift % 26 :] + letters[: shift % 26]))


def _prefix(words: list[str]) -> str:
    ends = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    return "".join(column[0] for column in ends)


def _expand(text: str) -> str:
    return "".join(char * int(count or 1) for char, count in re.findall(r"(\D)(\d*)", text))


def _wrap(words: list[str], width: int) -> list[str]:
    lines: list[list[str]] = []
    for word in words:
        if lines and len(" ".join([*lines[-1], word])) <= width:
            lines[-1].append(word)
        else:
            lines.append([word])
    return [" ".join(line) for line in lines]


def _column(number: int) -> str:
    names = itertools.chain.from_iterable(
        itertools.product("ABCDEFGHIJKLMNOPQRSTUVWXYZ", repeat=size) for size in itertools.count(0)
    )
    return "".join(next(itertools.islice(names, number, None)))


def _roman(numeral: str) -> int:
    worth = {
        "CM": 900,
        "CD": 400,
        "XC": 90,
        "XL": 40,
        "IX": 9,
        "IV": 4,
        "C": 100,
        "L": 50,
        "X": 10,
        "V": 5,
        "I": 1,
    }
    return sum(worth[sign] for sign in re.findall("|".join(worth), numeral))


def _distance(first: str, second: str) -> int:
    if not first or not second:
        return len(first) + len(second)
    same = _distance(first[1:], second[1:])
    if first[0] == second[0]:
        return same
    return 1 + min(same, _distance(first[1:], second), _distance(first, second[1:]))


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, n))


ORACLES: dict[str, Callable[..., Any]] = {
    "binary_search": lambda a, target: a.index(target) if target in a else -1,
    "insertion_sort": sorted,
    "k_largest": lambda items, k: sorted(items, reverse=True)[:k],
    "merge_sorted": lambda first, second: sorted(first + second),
    "kth_smallest": _kth,
    "best_run": _best_run,
    "find_pair": _pair,
    "longest_rise": _rise,
    "window_sums": lambda values, width: (
        [sum(values[i : i + width]) for i in range(len(values) - width + 1)] if width else []
    ),
    "spiral": _spiral,
    "merge_intervals": _intervals,
    "shortest_path": _maze,
    "common_multiple": lambda numbers: math.lcm(*numbers),
    "is_prime": _is_prime,
    "primes_below": lambda limit: [n for n in range(limit) if _is_prime(n)],
    "climbs": _climbs,
    "power_mod": pow,
    "longest_collatz": _collatz,
    "to_base": _base,
    "pascal_row": lambda n: [math.comb(n, k) for k in range(n + 1)],
    "fewest_coins": _coins,
    "factorize": _factors,
    "best_value": _pack,
    "run_length": lambda text: [[char, len(list(run))] for char, run in itertools.groupby(text)],
    "is_palindrome": _palindrome,
    "balanced": _balanced,
    "caesar": _caesar,
    "common_prefix": _prefix,
    "expand": _expand,
    "wrap": _wrap,
    "column_name": _column,
    "roman_value": _roman,
    "edit_distance": _distance,
}
