"""Questions about combinations, fractions, chances and money."""

from __future__ import annotations

import functools
import math
import random
from fractions import Fraction

from pipeline.environments.python_math.template import Question, Template, question

R = random.Random


def _paths(rng: R) -> Question:
    rows, columns = rng.randint(6, 14), rng.randint(6, 14)
    r, c = rng.randint(2, rows - 1), rng.randint(2, columns - 1)
    grid = f"a grid of {rows} rows and {columns} columns"
    texts = (
        f"A robot moves right or down from the top left to the bottom right cell of {grid}. "
        f"Row {r}, column {c} is blocked. How many routes are there?",
        f"How many ways lead from the first to the last cell of {grid}, going only right or down "
        f"and avoiding the cell in row {r}, column {c}?",
    )
    code = (
        f"ways = [[0] * {columns} for _ in range({rows})]\nways[0][0] = 1\n"
        f"for r in range({rows}):\n    for c in range({columns}):\n"
        f"        if (r, c) == ({r - 1}, {c - 1}):\n            ways[r][c] = 0\n            continue\n"
        "        if r:\n            ways[r][c] += ways[r - 1][c]\n"
        "        if c:\n            ways[r][c] += ways[r][c - 1]\nprint(ways[-1][-1])"
    )
    through = math.comb(r + c - 2, r - 1) * math.comb(rows - r + columns - c, rows - r)
    return question(rng, texts, code, math.comb(rows + columns - 2, rows - 1) - through)


def _committee(rng: R) -> Question:
    men, women, size = rng.randint(6, 20), rng.randint(6, 20), rng.randint(4, 9)
    least = rng.randint(2, 4)
    texts = (
        f"From {men} men and {women} women, {size} people are chosen, at least {least} of them women. "
        "In how many ways?",
        f"A team of {size} is picked from {women} women and {men} men. "
        f"How many teams have {least} women or more?",
    )
    code = (
        f"from math import comb\nprint(comb({men + women}, {size})\n"
        f"      - sum(comb({women}, w) * comb({men}, {size} - w) for w in range({least})))"
    )
    answer = sum(math.comb(women, w) * math.comb(men, size - w) for w in range(least, min(women, size) + 1))
    return question(rng, texts, code, answer)


def _fraction_sum(rng: R) -> Question:
    a, d, n = rng.randint(2, 30), rng.randint(2, 9), rng.randint(12, 60)
    terms = f"1/({a}*{a + d}) + 1/({a + d}*{a + 2 * d}) + 1/({a + 2 * d}*{a + 3 * d}) + ..."
    texts = (
        f"What is {terms}, {n} terms in all, as a fraction in lowest terms?",
        f"Add the first {n} terms of {terms} Give the exact fraction.",
    )
    code = (
        "from fractions import Fraction\n"
        f"print(sum(Fraction(1, k * (k + {d})) for k in range({a}, {a} + {n} * {d}, {d})))"
    )
    return question(rng, texts, code, Fraction(n, a * (a + n * d)))


def _coin_ways(rng: R) -> Question:
    coins = tuple(sorted(rng.sample((2, 3, 5, 7, 10, 12, 15, 20, 25), 4)))
    amount = rng.randint(120, 400)
    named = f"{coins[0]}, {coins[1]}, {coins[2]} and {coins[3]}"
    texts = (
        f"In how many ways can {amount} cents be paid with coins of {named} cents?",
        f"Coins are worth {named}. How many combinations of them make {amount}?",
    )
    code = (
        f"ways = [1] + [0] * {amount}\nfor coin in {coins}:\n"
        f"    for total in range(coin, {amount} + 1):\n        ways[total] += ways[total - coin]\n"
        "print(ways[-1])"
    )
    return question(rng, texts, code, _ways(amount, coins))


@functools.lru_cache(maxsize=65536)
def _ways(amount: int, coins: tuple[int, ...]) -> int:
    if len(coins) == 1:
        return int(amount % coins[0] == 0)
    return sum(_ways(rest, coins[:-1]) for rest in range(amount, -1, -coins[-1]))


def _gifts(rng: R) -> Question:
    gifts, children, m = rng.randint(12, 60), rng.randint(4, 12), rng.randint(1_001, 99_999)
    texts = (
        f"In how many ways can {gifts} different books be given to {children} children so that each gets one "
        f"or more? Answer modulo {m}.",
        f"{gifts} different tasks are shared among {children} people, and nobody goes without. "
        f"What remains when the number of ways is divided by {m}?",
    )
    code = (
        f"ways = [1] + [0] * {children}\nfor _ in range({gifts}):\n"
        f"    ways = [0] + [k * (ways[k] + ways[k - 1]) for k in range(1, {children} + 1)]\n"
        f"print(ways[-1] % {m})"
    )
    answer = sum((-1) ** k * math.comb(children, k) * (children - k) ** gifts for k in range(children + 1))
    return question(rng, texts, code, answer % m)


def _savings(rng: R) -> Question:
    start, percent = rng.randint(1_000, 9_000), rng.randint(2, 9)
    added, years = rng.randint(50, 900), rng.randint(8, 25)
    texts = (
        f"An account holds {start} cents. Each year it earns {percent}% interest, rounded down to a cent, "
        f"and then {added} cents are paid in. How many cents after {years} years?",
        f"Every year {percent}% is added to a balance of {start} cents (fractions of a cent are dropped), "
        f"then {added} cents more. What is the balance in cents after {years} years?",
    )
    code = (
        f"balance = {start}\nfor _ in range({years}):\n"
        f"    balance = balance + balance * {percent} // 100 + {added}\nprint(balance)"
    )
    balance = start
    for _ in range(years):
        balance = math.floor(balance * (1 + Fraction(percent, 100))) + added
    return question(rng, texts, code, balance)


def _nested(rng: R) -> Question:
    terms = [rng.randint(1, 9) for _ in range(rng.randint(6, 10))]
    text = " + 1/(".join(map(str, terms)) + ")" * (len(terms) - 1)
    texts = (
        f"What is {text} as a fraction in lowest terms?",
        f"Write {text} as one exact fraction.",
    )
    code = (
        f"from fractions import Fraction\nvalue = Fraction({terms[-1]})\n"
        f"for term in {terms[-2::-1]}:\n    value = term + 1 / value\nprint(value)"
    )
    before, above, low, below = 1, terms[0], 0, 1
    for term in terms[1:]:
        before, above = above, term * above + before
        low, below = below, term * below + low
    return question(rng, texts, code, Fraction(above, below))


def _dice(rng: R) -> Question:
    dice, sides = rng.randint(4, 7), rng.choice((4, 6, 8, 10, 12))
    total = rng.randint(dice + 2, dice * sides - 2)
    texts = (
        f"{dice} fair dice with {sides} sides each are rolled. "
        f"What is the probability of a total of {total}?",
        f"What is the chance that {dice} dice, numbered 1 to {sides}, show {total} in all? Give a fraction.",
    )
    code = (
        "from fractions import Fraction\nways = {0: 1}\n"
        f"for _ in range({dice}):\n    more = {{}}\n    for total, count in ways.items():\n"
        f"        for side in range(1, {sides} + 1):\n"
        "            more[total + side] = more.get(total + side, 0) + count\n    ways = more\n"
        f"print(Fraction(ways[{total}], {sides}**{dice}))"
    )
    ways = sum(
        (-1) ** k * math.comb(dice, k) * math.comb(total - k * sides - 1, dice - 1)
        for k in range(dice + 1)
        if total - k * sides >= dice
    )
    return question(rng, texts, code, Fraction(ways, sides**dice))


COUNTING = (
    Template("paths", ("combinatorics",), _paths),
    Template("committee", ("combinatorics",), _committee),
    Template("fraction_sum", ("rational", "sequence"), _fraction_sum),
    Template("coin_ways", ("combinatorics",), _coin_ways),
    Template("gifts", ("combinatorics",), _gifts),
    Template("savings", ("word", "sequence"), _savings),
    Template("nested", ("rational",), _nested),
    Template("dice", ("rational", "combinatorics"), _dice, unseen=True),
)
