"""Programs over text."""

from __future__ import annotations

import random
from typing import Any

from pipeline.environments.code_repair.program import Program

R = random.Random


def _letters(rng: R, alphabet: str, least: int = 0, most: int = 8) -> str:
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(least, most)))


def _palindrome_case(rng: R) -> list[Any]:
    half = _letters(rng, "ab ,B", 1, 4)
    return [rng.choice((half + half[::-1], half + rng.choice("xa") + half[::-1].upper(), half))]


def _brackets_case(rng: R) -> list[Any]:
    text = "x"
    for _ in range(rng.randint(1, 4)):
        pair = rng.choice(("()", "[]"))
        text = rng.choice((f"{pair[0]}{text}{pair[1]}", f"{text}{pair}"))
    at = rng.randrange(len(text))
    return [rng.choice((text, text[:at] + text[at + 1 :], text[:at] + rng.choice("()[]") + text[at:]))]


def _prefix_case(rng: R) -> list[Any]:
    stem = _letters(rng, "ab", 0, 4)
    return [[stem + _letters(rng, "abc", 0, 3) for _ in range(rng.randint(1, 4))]]


def _roman(number: int) -> str:
    signs = (
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    )
    text = ""
    for value, sign in signs:
        text += sign * (number // value)
        number %= value
    return text


RUNS = Program(
    "run_length",
    "strings",
    '''\
def run_length(text):
    """[character, count] for each run of equal characters."""
    runs = []
    i = 0
    while i < len(text):
        j = i + 1
        while j < len(text) and text[j] == text[i]:
            j += 1
        runs.append([text[i], j - i])
        i = j
    return runs
''',
    {
        "run_length": ("encode_runs", "count_runs"),
        "text": ("word", "s"),
        "runs": ("result", "pairs"),
        "i": ("start", "left"),
        "j": ("stop", "right"),
    },
    (["aab"], [""], ["abc"], ["zzz"], ["abba"]),
    (["a"], ["xxyyxx"], ["mississippi"], ["aaaab"], ["baaaa"]),
    lambda rng: [_letters(rng, "aab", 1, 9)],
)

PALINDROME = Program(
    "is_palindrome",
    "strings",
    '''\
def is_palindrome(text):
    """Whether the letters of `text` read the same both ways, any case."""
    i, j = 0, len(text) - 1
    while i < j:
        if not text[i].isalpha():
            i += 1
        elif not text[j].isalpha():
            j -= 1
        elif text[i].lower() != text[j].lower():
            return False
        else:
            i += 1
            j -= 1
    return True
''',
    {
        "is_palindrome": ("reads_same", "palindrome"),
        "text": ("phrase", "s"),
        "i": ("left", "start"),
        "j": ("right", "end"),
    },
    (["Anna"], ["ab"], [""], ["a, bA"], ["no lemon no melon"]),
    (["x"], [",,"], ["abca"], ["Aba b"], [" ab a"], ["a!b"], ["abcb"], ["aabb"]),
    _palindrome_case,
)

BALANCED = Program(
    "balanced",
    "strings",
    '''\
def balanced(text):
    """Whether the brackets () and [] in `text` match."""
    closing = {")": "(", "]": "["}
    stack = []
    for char in text:
        if char in "([":
            stack.append(char)
        elif char in closing:
            if not stack or stack[-1] != closing[char]:
                return False
            stack.pop()
    return len(stack) == 0
''',
    {
        "balanced": ("brackets_match", "well_formed"),
        "text": ("code", "s"),
        "closing": ("pairs", "opener"),
        "stack": ("waiting", "still_open"),
        "char": ("sign", "c"),
    },
    (["(a)"], ["(]"], [""], ["(("], ["[()]x"]),
    (["]"], ["([)]"], ["()[]"], ["(()"], ["a[b(c)d]"], ["())"], ["[[x]"]),
    _brackets_case,
)

CAESAR = Program(
    "caesar",
    "strings",
    '''\
def caesar(text, shift):
    """`text` with small letters moved `shift` places, z before a."""
    result = ""
    for char in text:
        if "a" <= char <= "z":
            place = (ord(char) - ord("a") + shift) % 26
            result += chr(ord("a") + place)
        else:
            result += char
    return result
''',
    {
        "caesar": ("shift_letters", "encode"),
        "text": ("message", "s"),
        "shift": ("key", "places"),
        "result": ("out", "coded"),
        "char": ("letter", "c"),
    },
    (["abc", 1], ["xyz", 2], ["Hi!", 3], ["", 5], ["a z", 26]),
    (["z", 1], ["a", -1], ["az", 27], ["Zz{`", 4], ["hello world", 13]),
    lambda rng: [_letters(rng, "amz Q.", 1, 7), rng.randint(-30, 30)],
)

PREFIX = Program(
    "common_prefix",
    "strings",
    '''\
def common_prefix(words):
    """Longest start that all words share; "" for no words."""
    if not words:
        return ""
    shortest = min(words, key=len)
    for i in range(len(shortest)):
        for word in words:
            if word[i] != shortest[i]:
                return shortest[:i]
    return shortest
''',
    {
        "common_prefix": ("shared_start", "prefix_of"),
        "words": ("names", "lines"),
        "shortest": ("base", "least"),
        "word": ("name", "line"),
    },
    ([["flow", "flat"]], [[]], [["a"]], [["ab", "abc"]], [["x", "y"]]),
    ([["", "a"]], [["same", "same"]], [["abcd", "abce", "ab"]], [["inter", "internal", "into"]]),
    _prefix_case,
)

EXPAND = Program(
    "expand",
    "strings",
    '''\
def expand(text):
    """Undo run-length coding: "a3b" is "aaab", "x12" is twelve x."""
    result = ""
    i = 0
    while i < len(text):
        char = text[i]
        i += 1
        count = 0
        while i < len(text) and text[i].isdigit():
            count = count * 10 + int(text[i])
            i += 1
        result += char * max(count, 1)
    return result
''',
    {
        "expand": ("decode_runs", "unpack"),
        "text": ("code", "s"),
        "result": ("out", "plain"),
        "char": ("letter", "c"),
        "count": ("times", "number"),
    },
    (["a3b"], [""], ["x12"], ["ab"], ["z2y1"]),
    (["q"], ["a10b2"], ["k2k3"], ["abc4"], ["m21"]),
    lambda rng: ["".join(rng.choice("abc") + rng.choice(("", str(rng.randint(2, 14)))) for _ in range(4))],
)

WRAP = Program(
    "wrap",
    "strings",
    '''\
def wrap(words, width):
    """Lines of words joined by blanks, at most `width` long."""
    lines = []
    line = ""
    for word in words:
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines
''',
    {
        "wrap": ("fill_lines", "break_lines"),
        "words": ("parts", "tokens"),
        "width": ("limit", "size"),
        "lines": ("result", "rows"),
        "line": ("current", "row"),
        "word": ("part", "token"),
    },
    ([["a", "bb", "c"], 4], [[], 5], [["long"], 2], [["ab", "cd"], 5], [["x", "y", "z"], 3]),
    ([["ab", "cd"], 4], [["a", "b", "c", "d"], 1], [["one", "two", "three"], 7], [["aa", "b", "cc"], 6]),
    lambda rng: [[_letters(rng, "ab", 1, 4) for _ in range(rng.randint(1, 6))], rng.randint(2, 9)],
)

COLUMN = Program(
    "column_name",
    "strings",
    '''\
def column_name(number):
    """Spreadsheet column: 1 is A, 26 is Z, 27 is AA."""
    name = ""
    while number > 0:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name
''',
    {
        "column_name": ("column_label", "sheet_column"),
        "number": ("index", "n"),
        "name": ("label", "out"),
        "letter": ("rest", "digit"),
    },
    ([1], [26], [27], [52], [0]),
    ([2], [25], [28], [702], [703], [80]),
    lambda rng: [rng.randint(20, 2000)],
)

ROMAN = Program(
    "roman_value",
    "strings",
    '''\
def roman_value(numeral):
    """Value of a Roman numeral such as XIV."""
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
    total = 0
    for i in range(len(numeral)):
        value = values[numeral[i]]
        if i + 1 < len(numeral) and value < values[numeral[i + 1]]:
            total -= value
        else:
            total += value
    return total
''',
    {
        "roman_value": ("read_roman", "from_roman"),
        "numeral": ("text", "roman"),
        "values": ("signs", "worth"),
        "total": ("result", "acc"),
        "value": ("current", "v"),
    },
    (["IV"], ["VI"], [""], ["XIV"], ["LX"]),
    (["I"], ["XCIX"], ["III"], ["XL"], ["CXC"], ["LXXXVIII"]),
    lambda rng: [_roman(rng.randint(1, 299))],
    unseen=True,
)

DISTANCE = Program(
    "edit_distance",
    "strings",
    '''\
def edit_distance(first, second):
    """Fewest inserts, deletes and replacements between two texts."""
    above = list(range(len(second) + 1))
    for i in range(len(first)):
        row = [i + 1]
        for j in range(len(second)):
            cost = 0 if first[i] == second[j] else 1
            row.append(min(above[j] + cost, above[j + 1] + 1, row[j] + 1))
        above = row
    return above[-1]
''',
    {
        "edit_distance": ("distance", "changes"),
        "first": ("source", "s"),
        "second": ("target", "t"),
        "above": ("previous", "last"),
        "row": ("current", "line"),
    },
    (["cat", "cut"], ["", "ab"], ["abc", ""], ["same", "same"], ["ab", "ba"]),
    (["kitten", "sitting"], ["flaw", "lawn"], ["a", "b"], ["", ""], ["aaa", "a"], ["x", "yxz"]),
    lambda rng: [_letters(rng, "abc", 1, 5), _letters(rng, "abc", 1, 5)],
    unseen=True,
)

TEXT = (RUNS, PALINDROME, BALANCED, CAESAR, PREFIX, EXPAND, WRAP, COLUMN, ROMAN, DISTANCE)
