"""Questions about divisibility, digits, primes and sequences."""

from __future__ import annotations

import functools
import math
import random

from pipeline.environments.python_math.template import Question, Template, question

R = random.Random


def _residue(rng: R) -> Question:
    a, b, m = rng.randint(12, 999), rng.randint(50, 999), rng.randint(101, 9999)
    texts = (
        f"What is the remainder when {a}^{b} is divided by {m}?",
        f"{a} to the power {b} is divided by {m}. What remains?",
    )
    return question(rng, texts, f"print({a}**{b} % {m})", pow(a, b, m))


def _digit_sum(rng: R) -> Question:
    a, b = rng.randint(3, 99), rng.randint(40, 400)
    texts = (
        f"What is the sum of the decimal digits of {a}^{b}?",
        f"Write out {a} to the power {b}. What do its digits add up to?",
    )
    code = f"n, total = {a}**{b}, 0\nwhile n:\n    n, digit = divmod(n, 10)\n    total += digit\nprint(total)"
    return question(rng, texts, code, sum(map(int, str(a**b))))


def _multiples(rng: R) -> Question:
    low = rng.randint(100, 900)
    high = low + rng.randint(2_000, 9_000)
    a, b, c = rng.sample(range(4, 30), 3)
    texts = (
        f"How many whole numbers from {low} to {high} are divisible by {a} or {b} but not by {c}?",
        f"Count the integers n with {low} <= n <= {high} that {a} or {b} divides and {c} does not.",
    )
    code = (
        f"print(sum(1 for n in range({low}, {high} + 1)\n"
        f"          if (n % {a} == 0 or n % {b} == 0) and n % {c} != 0))"
    )

    def count(*divisors: int) -> int:
        step = math.lcm(*divisors)
        return high // step - (low - 1) // step

    either = count(a) + count(b) - count(a, b)
    return question(rng, texts, code, either - count(a, c) - count(b, c) + count(a, b, c))


def _prime_sum(rng: R) -> Question:
    low = rng.randint(50, 2_000)
    high = low + rng.randint(300, 1_500)
    texts = (
        f"What is the sum of all prime numbers between {low} and {high}?",
        f"Add up every prime p with {low} <= p <= {high}. What is the total?",
    )
    code = (
        "def prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n\n"
        f"print(sum(n for n in range({low}, {high} + 1) if prime(n)))"
    )
    sound = bytearray([1]) * (high + 1)
    for n in range(2, math.isqrt(high) + 1):
        sound[n * n :: n] = bytes(len(range(n * n, high + 1, n)))
    return question(rng, texts, code, sum(n for n in range(max(low, 2), high + 1) if sound[n]))


def _recurrence(rng: R) -> Question:
    first, second, p, q = (rng.randint(1, 9) for _ in range(4))
    n, m = rng.randint(40, 400), rng.randint(1_001, 99_999)
    rule = f"{p} times the term before plus {q} times the one before that"
    texts = (
        f"A sequence starts {first}, {second}; each later term is {rule}. What is term {n} modulo {m}?",
        f"The first two terms are {first} and {second}, then each is {rule}. "
        f"What remains when term {n} is divided by {m}?",
    )
    code = (
        f"a, b = {first}, {second}\nfor _ in range({n} - 2):\n    a, b = b, {p} * b + {q} * a\nprint(b % {m})"
    )
    w, x, *_ = _power((p, q, 1, 0), n - 2, m)
    return question(rng, texts, code, (w * second + x * first) % m)


Matrix = tuple[int, int, int, int]


def _power(matrix: Matrix, exponent: int, modulus: int) -> Matrix:
    """A two by two matrix to a power, by squaring."""
    if exponent == 0:
        return 1, 0, 0, 1
    half = _power(matrix, exponent // 2, modulus)
    squared = _times(half, half, modulus)
    return _times(squared, matrix, modulus) if exponent % 2 else squared


def _times(one: Matrix, other: Matrix, modulus: int) -> Matrix:
    (a, b, c, d), (e, f, g, h) = one, other
    found = (a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h)
    return found[0] % modulus, found[1] % modulus, found[2] % modulus, found[3] % modulus


def _remainders(rng: R) -> Question:
    moduli = rng.sample((7, 9, 11, 13, 16, 17, 19, 23, 25), 3)
    rests = [rng.randrange(modulus) for modulus in moduli]
    least = rng.randint(1_000, 30_000)
    parts = [f"{rest} when divided by {modulus}" for rest, modulus in zip(rests, moduli, strict=True)]
    texts = (
        f"What is the smallest integer above {least} that leaves {parts[0]}, {parts[1]} and {parts[2]}?",
        f"A number greater than {least} leaves {parts[0]}, {parts[1]} and {parts[2]}. "
        "What is the least such number?",
    )
    tests = " and ".join(f"n % {modulus} == {rest}" for rest, modulus in zip(rests, moduli, strict=True))
    code = f"n = {least} + 1\nwhile not ({tests}):\n    n += 1\nprint(n)"
    product = math.prod(moduli)
    found = sum(
        rest * (product // modulus) * pow(product // modulus, -1, modulus)
        for rest, modulus in zip(rests, moduli, strict=True)
    )
    return question(rng, texts, code, least + 1 + (found - least - 1) % product)


def _orbit(rng: R) -> Question:
    start = rng.randint(1_000, 90_000)
    rule = "halve it if it is even, else triple it and add 1"
    texts = (
        f"Start with {start} and repeat: {rule}. "
        f"What is the sum of all numbers met, from {start} to the first 1?",
        f"From {start} on, {rule}, until you reach 1. Add up every number on the way, both ends included.",
    )
    code = (
        f"n = {start}\ntotal = n\nwhile n != 1:\n    n = n // 2 if n % 2 == 0 else 3 * n + 1\n"
        "    total += n\nprint(total)"
    )
    return question(rng, texts, code, _orbit_sum(start))


@functools.lru_cache(maxsize=4096)
def _orbit_sum(n: int) -> int:
    return 1 if n == 1 else n + _orbit_sum(n // 2 if n % 2 == 0 else 3 * n + 1)


def _zeros(rng: R) -> Question:
    n, base = rng.randint(200, 4_000), rng.choice((6, 10, 12, 14, 15, 18, 20, 21, 24))
    texts = (
        f"With how many zeros does {n}! end when it is written in base {base}?",
        f"In base {base}, how many zeros stand at the end of the factorial of {n}?",
    )
    code = (
        f"import math\nn, zeros = math.factorial({n}), 0\nwhile n % {base} == 0:\n"
        f"    n //= {base}\n    zeros += 1\nprint(zeros)"
    )
    return question(rng, texts, code, min(_legendre(n, p) // e for p, e in _factors(base)))


def _factors(n: int) -> list[tuple[int, int]]:
    primes = [p for p in range(2, n + 1) if n % p == 0 and all(p % d for d in range(2, p))]
    return [(p, max(e for e in range(1, 8) if n % p**e == 0)) for p in primes]


def _legendre(n: int, prime: int) -> int:
    return 0 if n < prime else n // prime + _legendre(n // prime, prime)


def _pairs(rng: R) -> Question:
    n, g = rng.randint(120, 900), rng.randint(1, 6)
    texts = (
        f"How many pairs of integers 1 <= x < y <= {n} have greatest common divisor {g}?",
        f"Two different numbers are chosen from 1 to {n}. For how many such pairs is the gcd {g}?",
    )
    code = (
        f"import math\nprint(sum(1 for y in range(2, {n} + 1) for x in range(1, y)\n"
        f"          if math.gcd(x, y) == {g}))"
    )
    top = n // g
    totients = list(range(top + 1))
    for p in range(2, top + 1):
        if totients[p] == p:
            for multiple in range(p, top + 1, p):
                totients[multiple] -= totients[multiple] // p
    return question(rng, texts, code, sum(totients[2:]))


NUMBERS = (
    Template("residue", ("modular",), _residue),
    Template("digit_sum", ("digits",), _digit_sum),
    Template("multiples", ("counting",), _multiples),
    Template("prime_sum", ("primes",), _prime_sum),
    Template("recurrence", ("sequence", "modular"), _recurrence),
    Template("remainders", ("modular",), _remainders),
    Template("orbit", ("sequence",), _orbit),
    Template("zeros", ("digits", "primes"), _zeros, unseen=True),
    Template("pairs", ("counting", "primes"), _pairs, unseen=True),
)
