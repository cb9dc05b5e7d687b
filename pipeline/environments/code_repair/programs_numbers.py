"""Programs over whole numbers."""

from __future__ import annotations

import random
from typing import Any

from pipeline.environments.code_repair.program import Program

R = random.Random


def _pack_case(rng: R) -> list[Any]:
    number = rng.randint(1, 5)
    weights = [rng.randint(1, 6) for _ in range(number)]
    return [weights, [rng.randint(1, 20) for _ in range(number)], rng.randint(1, 12)]


LCM = Program(
    "common_multiple",
    "integers",
    '''\
def common_multiple(numbers):
    """Least common multiple of positive numbers; 1 for none."""
    result = 1
    for n in numbers:
        a, b = result, n
        while b > 0:
            a, b = b, a % b
        result = result * n // a
    return result
''',
    {
        "common_multiple": ("lcm_all", "smallest_multiple"),
        "numbers": ("values", "periods"),
        "result": ("multiple", "answer"),
        "n": ("value", "each"),
    },
    ([[4, 6]], [[]], [[5]], [[2, 3, 4]], [[6, 6]]),
    ([[1, 9]], [[8, 12, 18]], [[7, 11]], [[10, 4, 25]], [[3, 9, 27]]),
    lambda rng: [[rng.randint(1, 24) for _ in range(rng.randint(1, 4))]],
)

PRIME = Program(
    "is_prime",
    "integers",
    '''\
def is_prime(n):
    """Whether `n` is a prime number."""
    if n < 2:
        return False
    if n % 2 == 0:
        return n == 2
    divisor = 3
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 2
    return True
''',
    {"is_prime": ("prime", "check_prime"), "n": ("number", "value"), "divisor": ("factor", "d")},
    ([1], [2], [9], [13], [4]),
    ([0], [3], [5], [7], [8], [15], [25], [35], [49], [97], [121], [-7], [6]),
    lambda rng: [rng.randint(20, 400)],
)

SIEVE = Program(
    "primes_below",
    "integers",
    '''\
def primes_below(limit):
    """The primes below `limit`, rising."""
    marked = [False] * limit
    primes = []
    for n in range(2, limit):
        if not marked[n]:
            primes.append(n)
            for multiple in range(n * n, limit, n):
                marked[multiple] = True
    return primes
''',
    {
        "primes_below": ("sieve", "list_primes"),
        "limit": ("bound", "end"),
        "marked": ("crossed", "composite"),
        "primes": ("found", "result"),
    },
    ([10], [2], [3], [20], [0]),
    ([1], [4], [5], [12], [26], [50]),
    lambda rng: [rng.randint(6, 70)],
)

CLIMBS = Program(
    "climbs",
    "integers",
    '''\
def climbs(stairs, longest):
    """Ways to climb `stairs` by jumps of 1 to `longest`."""
    ways = [1]
    for stair in range(1, stairs + 1):
        total = 0
        for jump in range(1, longest + 1):
            if jump <= stair:
                total += ways[stair - jump]
        ways.append(total)
    return ways[stairs]
''',
    {
        "climbs": ("count_climbs", "ways_up"),
        "stairs": ("height", "top"),
        "longest": ("reach", "max_jump"),
        "ways": ("counts", "table"),
        "total": ("count", "acc"),
    },
    ([3, 2], [0, 2], [4, 1], [5, 3], [2, 3]),
    ([1, 1], [1, 4], [6, 2], [4, 4], [9, 3]),
    lambda rng: [rng.randint(0, 10), rng.randint(1, 5)],
)

POWER = Program(
    "power_mod",
    "integers",
    '''\
def power_mod(base, exponent, modulus):
    """`base` to the power `exponent`, modulo `modulus`."""
    result = 1
    base = base % modulus
    while exponent > 0:
        if exponent % 2 == 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent = exponent // 2
    return result % modulus
''',
    {
        "power_mod": ("mod_pow", "fast_power"),
        "base": ("number", "b"),
        "exponent": ("power", "e"),
        "modulus": ("m", "mod"),
        "result": ("answer", "product"),
    },
    ([2, 5, 7], [3, 0, 5], [10, 3, 6], [5, 1, 9], [4, 0, 1]),
    ([2, 10, 1000], [7, 2, 50], [9, 9, 10], [0, 3, 4], [12, 6, 11]),
    lambda rng: [rng.randint(2, 40), rng.randint(0, 30), rng.randint(2, 60)],
)

COLLATZ = Program(
    "longest_collatz",
    "integers",
    '''\
def longest_collatz(limit):
    """The start up to `limit` with most Collatz steps to 1, the first."""
    best, most = 1, 0
    for start in range(1, limit + 1):
        n, steps = start, 0
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        if steps > most:
            best, most = start, steps
    return best
''',
    {
        "longest_collatz": ("slowest_start", "collatz_record"),
        "limit": ("bound", "last"),
        "best": ("record", "winner"),
        "most": ("longest", "top"),
        "n": ("value", "current"),
    },
    ([1], [2], [5], [8], [12]),
    ([3], [4], [6], [7], [9], [18], [26]),
    lambda rng: [rng.randint(10, 30)],
)

BASE = Program(
    "to_base",
    "integers",
    '''\
def to_base(number, base):
    """Digits of `number` in `base`, the highest first."""
    if number == 0:
        return [0]
    digits = []
    while number > 0:
        digits.append(number % base)
        number = number // base
    return digits[::-1]
''',
    {
        "to_base": ("digits_in", "convert"),
        "number": ("n", "value"),
        "base": ("radix", "b"),
        "digits": ("result", "places"),
    },
    ([6, 2], [0, 3], [9, 10], [10, 10], [255, 16]),
    ([1, 2], [8, 2], [26, 3], [100, 7], [35, 36]),
    lambda rng: [rng.randint(1, 900), rng.randint(2, 12)],
)

PASCAL = Program(
    "pascal_row",
    "integers",
    '''\
def pascal_row(n):
    """Row `n` of Pascal's triangle; row 0 is [1]."""
    row = [1]
    for _ in range(n):
        longer = [1]
        for i in range(1, len(row)):
            longer.append(row[i - 1] + row[i])
        longer.append(1)
        row = longer
    return row
''',
    {"pascal_row": ("triangle_row", "binomials"), "n": ("index", "level"), "longer": ("below", "new")},
    ([0], [1], [2], [4]),
    ([3], [5], [6], [8]),
    lambda rng: [rng.randint(3, 10)],
)

COINS = Program(
    "fewest_coins",
    "integers",
    '''\
def fewest_coins(coins, amount):
    """Fewest coins that add up to `amount`, or -1."""
    fewest = [0] + [-1] * amount
    for total in range(1, amount + 1):
        for coin in coins:
            if coin > total or fewest[total - coin] < 0:
                continue
            count = fewest[total - coin] + 1
            if fewest[total] < 0 or count < fewest[total]:
                fewest[total] = count
    return fewest[amount]
''',
    {
        "fewest_coins": ("min_coins", "change"),
        "coins": ("stamps", "values"),
        "amount": ("price", "sum_wanted"),
        "fewest": ("best", "table"),
        "count": ("number", "used"),
    },
    ([[1, 5], 7], [[2], 3], [[3], 0], [[1, 3, 4], 6], [[5, 2], 4]),
    ([[4], 4], [[3, 7], 5], [[2, 5, 6], 10], [[1], 4], [[9, 6, 1], 12], [[5, 3], 11]),
    lambda rng: [rng.sample(range(1, 10), rng.randint(1, 4)), rng.randint(1, 18)],
)

FACTORS = Program(
    "factorize",
    "integers",
    '''\
def factorize(n):
    """Prime factors of `n` as [prime, exponent] pairs, rising."""
    factors = []
    prime = 2
    while prime * prime <= n:
        exponent = 0
        while n % prime == 0:
            n = n // prime
            exponent += 1
        if exponent > 0:
            factors.append([prime, exponent])
        prime += 1
    if n > 1:
        factors.append([n, 1])
    return factors
''',
    {
        "factorize": ("prime_factors", "decompose"),
        "n": ("number", "value"),
        "factors": ("found", "result"),
        "prime": ("p", "divisor"),
        "exponent": ("times", "count"),
    },
    ([12], [1], [7], [9], [10]),
    ([2], [4], [8], [30], [49], [36], [97]),
    lambda rng: [rng.randint(2, 400)],
)

PACK = Program(
    "best_value",
    "integers",
    '''\
def best_value(weights, values, capacity):
    """Largest total value of items within `capacity`, each used once."""
    best = [0] * (capacity + 1)
    for i in range(len(weights)):
        for room in range(capacity, weights[i] - 1, -1):
            with_item = best[room - weights[i]] + values[i]
            if with_item > best[room]:
                best[room] = with_item
    return best[capacity]
''',
    {
        "best_value": ("pack", "knapsack"),
        "weights": ("sizes", "costs"),
        "values": ("gains", "worths"),
        "capacity": ("limit", "budget"),
        "best": ("table", "most"),
    },
    ([[2, 3], [4, 5], 5], [[4], [9], 3], [[], [], 4], [[1, 2], [3, 8], 2], [[2], [7], 6]),
    ([[3], [5], 3], [[1, 1, 1], [2, 3, 4], 2], [[2, 3, 4], [3, 4, 6], 6], [[5, 1], [9, 2], 5]),
    _pack_case,
)

NUMBERS = (LCM, PRIME, SIEVE, CLIMBS, POWER, COLLATZ, BASE, PASCAL, COINS, FACTORS, PACK)
