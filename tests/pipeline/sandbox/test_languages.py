"""Each language compiles, runs, reads input and fails in its own way; an absent tool says what to install."""

import shutil
from dataclasses import replace

import pytest

from pipeline.errors import ConfigError
from pipeline.sandbox.base import Limits, Outcome, Program, Sandbox
from pipeline.sandbox.toolchains import compile_limits, find_language, languages, toolchain
from tests.pipeline.sandbox.conftest import run

LONG = Limits(seconds=50)
# echo of standard input, then a failure
PROGRAMS = {
    "python": ("print(input())", "raise ValueError"),
    "c": (
        '#include <stdio.h>\n#include <math.h>\n'
        'int main(void) { char b[9]; puts(fgets(b, 3, stdin)); return sin(0); }',
        "int main(void) { return 3; }",
    ),
    "cpp": (
        "#include <iostream>\nint main() { std::string s; std::cin >> s; std::cout << s; }",
        "#include <stdexcept>\nint main() { throw std::runtime_error(\"x\"); }",
    ),
    "javascript": ("console.log(require('fs').readFileSync(0, 'utf8'))", "throw new Error('x')"),
    "bash": ("read line; echo \"$line\" | awk '{print $1}'", "exit 3"),
    "sql": ("select 'hi';", "select * from absent;"),
    "go": (
        'package main\nimport "fmt"\nfunc main() { var s string; fmt.Scan(&s); fmt.Println(s) }',
        "package main\nfunc main() { panic(1) }",
    ),
    "rust": (
        "fn main() { let mut s = String::new();"
        " std::io::stdin().read_line(&mut s).unwrap(); println!(\"{s}\"); }",
        "fn main() { panic!() }",
    ),
}  # fmt: skip
BROKEN = {"c": "int main(", "cpp": "int main(", "go": "package main\nfunc main() {", "rust": "fn main() {"}


def installed(name: str) -> None:
    try:
        toolchain(name)
    except ConfigError as error:
        pytest.skip(str(error))


def test_every_language_promised_ships() -> None:
    assert {each.name for each in languages().values()} == set(PROGRAMS)
    assert find_language("C++").name == "cpp" and find_language("node").name == "javascript"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_language_runs_and_fails(name: str, bubblewrap: Sandbox) -> None:
    installed(name)
    works, fails = PROGRAMS[name]
    done = run(bubblewrap, Program(works, name, stdin="hi\n", expected="hi"), LONG)
    assert done.ok, done
    assert run(bubblewrap, Program(fails, name), LONG).outcome is Outcome.RUNTIME_ERROR


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_compile_says_so(name: str, bubblewrap: Sandbox) -> None:
    installed(name)
    done = run(bubblewrap, Program(BROKEN[name], name), LONG)
    assert done.outcome is Outcome.COMPILE_ERROR and "main" in done.stderr


def test_sql_reads_a_database_of_the_program(bubblewrap: Sandbox) -> None:
    installed("sql")
    table = "create table t (x); insert into t values (7);"
    made = run(bubblewrap, Program(table, "sql", args=("d",), collect=("d",)), LONG)
    read = Program("select x + 1 from t;", "sql", args=("d",), files=dict(made.files), expected="8")
    assert run(bubblewrap, read, LONG).ok


def test_runtimes_that_notice_by_themselves_are_out_of_memory(bubblewrap: Sandbox) -> None:
    installed("cpp")
    code = "#include <new>\nint main() { throw std::bad_alloc(); }"
    assert run(bubblewrap, Program(code, "cpp"), LONG).outcome is Outcome.OUT_OF_MEMORY


def test_an_unknown_language_names_the_known_ones(bubblewrap: Sandbox) -> None:
    with pytest.raises(ConfigError, match="unknown language 'cobol'; known: bash, c, cpp, go"):
        run(bubblewrap, Program("", "cobol"))


def test_an_absent_tool_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    toolchain.cache_clear()
    for name, install in (
        ("go", "golang-go"),
        ("rust", "rustc"),
        ("javascript", "nodejs"),
        ("sql", "sqlite3"),
    ):
        with pytest.raises(
            ConfigError, match=f"{name} needs .* not on this machine; install it: .*{install}"
        ):
            toolchain(name)
    assert toolchain("python").run[1:] == ("main.py",)


def test_a_root_command_that_fails_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(find_language("rust"), root=("false",))
    monkeypatch.setitem(languages(), "broken", broken)
    with pytest.raises(ConfigError, match=r"names no directory .*install rust: apt-get install rustc"):
        toolchain("broken")


def test_a_tool_below_a_home_is_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"node": "/home/me/.nvm/bin/node"}
    monkeypatch.setattr(shutil, "which", found.get)
    toolchain.cache_clear()
    assert toolchain("javascript").mounts == ("/home/me/.nvm/bin/node",)
    toolchain.cache_clear()


def test_compilers_get_what_they_need() -> None:
    assert compile_limits(find_language("rust"), Limits()).memory_mib == 1536
    assert compile_limits(find_language("rust"), Limits(memory_mib=9999)).memory_mib == 9999
    assert compile_limits(find_language("python"), Limits()) == Limits()
