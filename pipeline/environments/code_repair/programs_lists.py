"""Programs over lists and tables."""

from __future__ import annotations

import random
from typing import Any

from pipeline.environments.code_repair.program import Program

R = random.Random


def numbers(rng: R, low: int = 0, high: int = 9, least: int = 0, most: int = 8) -> list[int]:
    """A random list."""
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def rising(rng: R, most: int = 9) -> list[int]:
    """A sorted list without repeats."""
    return sorted(rng.sample(range(30), rng.randint(0, most)))


def _search_case(rng: R) -> list[Any]:
    a = rising(rng)
    return [a, rng.choice([*a, rng.randrange(30)])]


def _pair_case(rng: R) -> list[Any]:
    values = numbers(rng, most=7)
    return [values, rng.randint(2, 17)]


def _grid(rng: R, cells: int) -> list[list[int]]:
    columns = rng.randint(1, 4)
    return [[rng.randint(0, cells) for _ in range(columns)] for _ in range(rng.randint(1, 4))]


def _maze(rng: R) -> list[Any]:
    size = rng.randint(2, 5)
    cells = [[int(rng.random() < 0.3) for _ in range(size)] for _ in range(rng.randint(2, 5))]
    cells[0][0] = cells[-1][-1] = 0
    return [cells]


SEARCH = Program(
    "binary_search",
    "lists",
    '''\
def search(a, target):
    """Index of `target` in the sorted list `a`, or -1."""
    low, high = 0, len(a) - 1
    while low <= high:
        mid = (low + high) // 2
        if a[mid] == target:
            return mid
        if a[mid] < target:
            low = mid + 1
        else:
            high = mid - 1
    return -1
''',
    {"search": ("find_index", "locate"), "a": ("items", "values"), "target": ("wanted", "key")},
    ([[1, 3, 5], 3], [[1, 3, 5], 6], [[1, 3, 5], 0], [[], 4], [[2, 4], 4]),
    ([[7], 7], [[7], 8], [[1, 2, 3, 4], 1], [[1, 2, 3, 4], 4], [[0, 5, 9, 12, 20], 13], [[3, 8], 3]),
    _search_case,
    unseen=True,
)

INSERTION = Program(
    "insertion_sort",
    "lists",
    '''\
def insertion_sort(items):
    """Sorted copy of `items`."""
    result = list(items)
    for i in range(1, len(result)):
        current = result[i]
        j = i - 1
        while j >= 0 and result[j] > current:
            result[j + 1] = result[j]
            j -= 1
        result[j + 1] = current
    return result
''',
    {
        "insertion_sort": ("sort_items", "sorted_copy"),
        "items": ("values", "data"),
        "result": ("ordered", "out"),
        "current": ("moving", "value"),
    },
    ([[3, 1, 2]], [[]], [[5, 4, 4, 1]], [[1, 2, 3]], [[2, 9, 0, 7]]),
    ([[1]], [[2, 1]], [[9, 8, 7, 6, 5]], [[0, 0, 0]], [[-1, 3, -5, 2]]),
    lambda rng: [numbers(rng, -9, 9, 2, 9)],
)

LARGEST = Program(
    "k_largest",
    "lists",
    '''\
def k_largest(items, k):
    """The `k` largest items, largest first; all if there are fewer."""
    rest = list(items)
    chosen = []
    while rest and len(chosen) < k:
        best = 0
        for i in range(1, len(rest)):
            if rest[i] > rest[best]:
                best = i
        chosen.append(rest.pop(best))
    return chosen
''',
    {
        "k_largest": ("top_items", "pick_largest"),
        "items": ("values", "scores"),
        "k": ("count", "wanted"),
        "chosen": ("picked", "top"),
        "best": ("at", "largest"),
    },
    ([[4, 9, 2, 7], 2], [[1, 2], 5], [[3, 1], 0], [[5, 5, 8], 1], [[1, 2, 3, 4], 3]),
    ([[], 2], [[6], 1], [[9, 1, 8], 3], [[2, 7, 7, 3], 2], [[-4, -2, -9], 2]),
    lambda rng: [numbers(rng, -9, 20, 1, 8), rng.randint(0, 6)],
)

MERGE = Program(
    "merge_sorted",
    "lists",
    '''\
def merge_sorted(first, second):
    """One sorted list of the items of two sorted lists."""
    merged = []
    i, j = 0, 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            merged.append(first[i])
            i += 1
        else:
            merged.append(second[j])
            j += 1
    return merged + first[i:] + second[j:]
''',
    {
        "merge_sorted": ("merge_lists", "join_sorted"),
        "first": ("left", "xs"),
        "second": ("right", "ys"),
        "merged": ("result", "out"),
    },
    ([[1, 4], [2, 3]], [[], [1]], [[5], []], [[1, 2], [3, 4]], [[2, 2], [1, 2, 6]]),
    ([[], []], [[9], [1, 2]], [[0, 7, 8], [1, 7, 9]], [[1, 1], [1]], [[3, 4, 5, 6], [5]]),
    lambda rng: [rising(rng, 6), rising(rng, 6)],
)

KTH = Program(
    "kth_smallest",
    "lists",
    '''\
def kth_smallest(items, k):
    """The `k`-th smallest item, counted from 1, or None."""
    if k < 1 or k > len(items):
        return None
    pivot = items[len(items) // 2]
    smaller = [x for x in items if x < pivot]
    equal = [x for x in items if x == pivot]
    if k <= len(smaller):
        return kth_smallest(smaller, k)
    if k <= len(smaller) + len(equal):
        return pivot
    larger = [x for x in items if x > pivot]
    return kth_smallest(larger, k - len(smaller) - len(equal))
''',
    {
        "kth_smallest": ("select_kth", "ranked"),
        "items": ("values", "pool"),
        "k": ("rank", "place"),
        "pivot": ("middle", "split"),
    },
    ([[4, 1, 3], 1], [[4, 1, 3], 3], [[2, 2, 5], 2], [[1], 2], [[6, 9, 7, 8], 0]),
    ([[], 1], [[5], 1], [[3, 3, 3, 1], 4], [[9, 8, 7, 6, 5], 2], [[1, 2, 3, 4, 5, 6], 6]),
    lambda rng: [numbers(rng, 0, 12, 1, 9), rng.randint(1, 9)],
)

BEST_RUN = Program(
    "best_run",
    "lists",
    '''\
def best_run(values):
    """[start, end, sum] of the first run with the largest sum."""
    best = [0, 0, values[0]]
    start, total = 0, 0
    for i, value in enumerate(values):
        if total < 0:
            start, total = i, 0
        total += value
        if total > best[2]:
            best = [start, i, total]
    return best
''',
    {
        "best_run": ("richest_run", "max_run"),
        "values": ("gains", "items"),
        "total": ("running", "acc"),
        "best": ("record", "top"),
    },
    ([[1, -2, 3, 4]], [[-3, -1, -2]], [[2, 2]], [[5, -9, 6]], [[4, -1, 2, -7, 3]]),
    ([[-4]], [[0, 0, 1]], [[1, -1, 1, -1, 2]], [[3, -5, 4, -1, 4, -9]], [[-2, 1]]),
    lambda rng: [numbers(rng, -9, 9, 1, 9)],
)

PAIR = Program(
    "find_pair",
    "lists",
    '''\
def find_pair(values, target):
    """[i, j] of the pair that first adds up to `target`, or None."""
    seen = {}
    for j, value in enumerate(values):
        missing = target - value
        if missing in seen:
            return [seen[missing], j]
        if value not in seen:
            seen[value] = j
    return None
''',
    {
        "find_pair": ("two_sum", "pair_for"),
        "values": ("items", "prices"),
        "target": ("total", "goal"),
        "seen": ("known", "first_at"),
        "missing": ("other", "needed"),
    },
    ([[2, 7, 11], 9], [[3, 3], 6], [[1, 2], 5], [[], 0], [[5, 1, 4, 5], 9]),
    ([[0, 4, 0], 0], [[1, 1, 8, 2], 3], [[6, 2, 9], 18], [[-3, 8, 5], 2], [[2, 2, 2, 5], 7]),
    _pair_case,
)

RISE = Program(
    "longest_rise",
    "lists",
    '''\
def longest_rise(values):
    """Length of the longest strictly rising subsequence."""
    lengths = []
    for i in range(len(values)):
        best = 0
        for j in range(i):
            if values[j] < values[i] and lengths[j] > best:
                best = lengths[j]
        lengths.append(best + 1)
    return max(lengths, default=0)
''',
    {
        "longest_rise": ("rise_length", "rising_length"),
        "values": ("heights", "items"),
        "lengths": ("ends", "sizes"),
        "best": ("longest", "top"),
    },
    ([[3, 1, 2, 5]], [[]], [[4, 4, 4]], [[5, 4, 3]], [[1, 9, 2, 8, 3]]),
    ([[7]], [[1, 2, 3, 4]], [[2, 2, 3, 3]], [[10, 1, 11, 2, 12, 3]], [[0, -5, -4, -3]]),
    lambda rng: [numbers(rng, 0, 12, 2, 9)],
)

WINDOWS = Program(
    "window_sums",
    "lists",
    '''\
def window_sums(values, width):
    """Sums of every `width` neighbours; none if they do not fit."""
    if width < 1 or width > len(values):
        return []
    total = sum(values[:width])
    sums = [total]
    for i in range(width, len(values)):
        total += values[i] - values[i - width]
        sums.append(total)
    return sums
''',
    {
        "window_sums": ("rolling_sums", "moving_sums"),
        "values": ("items", "sales"),
        "width": ("size", "span"),
        "total": ("running", "acc"),
        "sums": ("result", "out"),
    },
    ([[1, 2, 3, 4], 2], [[5], 1], [[1, 2], 3], [[3, 1, 4], 0], [[2, 2, 2], 3]),
    ([[], 1], [[9, 1], 2], [[1, 0, 5, 7, 2], 3], [[4, 8, 15], 1], [[-1, 6, -2, 3], 2]),
    lambda rng: [numbers(rng, -5, 9, 1, 8), rng.randint(1, 4)],
)

SPIRAL = Program(
    "spiral",
    "lists",
    '''\
def spiral(grid):
    """Cells of a grid clockwise, from the top left to the inside."""
    cells = []
    top, left = 0, 0
    bottom, right = len(grid) - 1, len(grid[0]) - 1
    while top <= bottom and left <= right:
        for c in range(left, right + 1):
            cells.append(grid[top][c])
        for r in range(top + 1, bottom + 1):
            cells.append(grid[r][right])
        if top < bottom and left < right:
            for c in range(right - 1, left - 1, -1):
                cells.append(grid[bottom][c])
            for r in range(bottom - 1, top, -1):
                cells.append(grid[r][left])
        top, left, bottom, right = top + 1, left + 1, bottom - 1, right - 1
    return cells
''',
    {"spiral": ("unwind", "around"), "grid": ("table", "board"), "cells": ("result", "path")},
    ([[[1, 2], [3, 4]]], [[[7]]], [[[1, 2, 3]]], [[[1], [2]]], [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]),
    ([[[1, 2, 3, 4], [5, 6, 7, 8]]], [[[1, 2], [3, 4], [5, 6]]], [[[0, 1], [2, 3], [4, 5], [6, 7]]]),
    lambda rng: [_grid(rng, 99)],
)

INTERVALS = Program(
    "merge_intervals",
    "lists",
    '''\
def merge_intervals(spans):
    """Overlapping or touching [start, end] pairs joined, in order."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
''',
    {
        "merge_intervals": ("join_spans", "combine"),
        "spans": ("intervals", "ranges"),
        "merged": ("joined", "result"),
    },
    ([[[1, 3], [2, 5]]], [[]], [[[1, 2], [4, 6]]], [[[5, 9], [1, 5]]], [[[1, 9], [2, 3], [10, 11]]]),
    ([[[4, 4]]], [[[3, 8], [1, 2], [7, 9]]], [[[0, 1], [1, 2], [2, 3]]], [[[6, 7], [1, 20], [2, 3]]]),
    lambda rng: [[sorted(rng.choices(range(20), k=2)) for _ in range(rng.randint(1, 6))]],
    unseen=True,
)

MAZE = Program(
    "shortest_path",
    "lists",
    '''\
def shortest_path(grid):
    """Fewest steps over 0 cells, top left to bottom right, or -1."""
    rows, columns = len(grid), len(grid[0])
    queue = [(0, 0, 0)]
    seen = {(0, 0)}
    while queue:
        row, column, steps = queue.pop(0)
        if row == rows - 1 and column == columns - 1:
            return steps
        for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            r, c = row + down, column + right
            if not (0 <= r < rows and 0 <= c < columns):
                continue
            if grid[r][c] == 0 and (r, c) not in seen:
                seen.add((r, c))
                queue.append((r, c, steps + 1))
    return -1
''',
    {
        "shortest_path": ("fewest_steps", "way_out"),
        "grid": ("maze", "board"),
        "queue": ("open_cells", "todo"),
        "seen": ("visited", "known"),
        "steps": ("distance", "moves"),
    },
    ([[[0, 0], [1, 0]]], [[[0]]], [[[0, 1], [1, 0]]], [[[0, 1, 0], [0, 0, 0]]], [[[0, 0, 0], [1, 1, 0]]]),
    (
        [[[0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0]]],
        [[[0, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 1, 0]]],
        [[[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]],
    ),
    _maze,
    unseen=True,
)

LISTS = (
    SEARCH,
    INSERTION,
    LARGEST,
    MERGE,
    KTH,
    BEST_RUN,
    PAIR,
    RISE,
    WINDOWS,
    SPIRAL,
    INTERVALS,
    MAZE,
)
