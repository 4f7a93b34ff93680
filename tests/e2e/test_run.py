"""`radchat run` and the examples: real programs, the real model, one daemon."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.homes import Home, Shell, finish
from tests.waiting import wait_until

pytestmark = pytest.mark.model
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = 16
USAGE = ("input_tokens", "cached_input_tokens", "output_tokens", "forced_tokens")


@pytest.fixture(scope="module")
def real(sources: str, smollm2: Path) -> Iterator[Home]:
    kept = {"RADCHAT_KV_DEVICE": "4096tok", "RADCHAT_PERSIST": "off"}
    home = Home(sources, {"smollm2-135m": smollm2}, **kept)
    yield home
    home.close()


@pytest.fixture
def shell(real: Home, request: pytest.FixtureRequest) -> Shell:
    return Shell(real, request.node.name[:20])


def calls(of: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    found = [of] if of["kind"] in kinds else []
    return found + [each for inner in of.get("calls", ()) for each in calls(inner, *kinds)]


def run_fresh(shell: Shell, name: str, *args: str) -> dict[str, Any]:
    """Its document, from an empty cache: what the model ran is what its tree has, and once more the
    last id of a prompt that was cached to its end. Branches that run at once do not wait for each
    other's first words: less than a page that they have in common may be run by each.
    """
    home = shell.home
    shell.call("cache.clear")
    before = rows_run(home)
    done = shell("run", str(EXAMPLES / f"{name}.py"), "--seed", "3", *args)
    home.assert_balanced()
    ran = rows_run(home) - before
    held = sum(node["end"] - node["start"] for node in shell.call("cache.tree")["nodes"])
    document = dict(done.json)
    asked = len(calls(document["trace"], "gen", "fork"))
    asked += 4 * len(calls(document["trace"], "select"))  # each choice is one more
    branches = len(calls(document["trace"], "branch"))
    assert 0 <= ran - held <= asked + PAGE * branches, name
    adds_up(document)
    return document


def rows_run(home: Home) -> int:
    """By the model's own count; not known yet where none is loaded."""
    return home.stats().get("rows_run") or 0


def adds_up(document: dict[str, Any]) -> None:
    """Every token in its place: the calls' own sum up to the whole, which is the document's."""
    trace, usage, cache = document["trace"], document["usage"], document["cache"]
    assert (trace["usage"], trace["cache"]) == (usage, cache)
    assert sum(cache.values()) == usage["input_tokens"]
    assert cache["computed"] == usage["input_tokens"] - usage["cached_input_tokens"]
    asked = calls(trace, "gen", "select")
    for name in USAGE:
        least = sum(call["usage"][name] for call in asked)
        assert least <= usage[name]
        assert least == usage[name] or calls(trace, "fork")  # having ids cached costs, too
    assert usage["output_tokens"] == sum(call["usage"]["output_tokens"] for call in asked)


def short(**more: object) -> list[str]:
    return [word for name, value in more.items() for word in ("--arg", f"{name}={value}")]


def test_the_examples_say_what_they_promise_and_compute_each_token_once(shell: Shell) -> None:
    topic = run_fresh(shell, "few_shot")
    assert topic["result"] == topic["variables"]["topic"] == "sport"

    votes = run_fresh(shell, "self_consistency", *short(tokens=6, paths=3))
    assert sum(votes["result"].values()) == 3
    assert set(votes["result"]) <= {"horse", "dog"}

    talk = run_fresh(shell, "interview", *short(tokens=6))
    assert talk["result"] == list(talk["variables"].values())
    assert all(talk["result"])

    thoughts = run_fresh(shell, "tree_of_thought", *short(tokens=6, breadth=2))
    scores = [call["text"] for call in calls(thoughts["trace"], "gen") if call["name"] == "score"]
    assert len(scores) == 2 + 2 * 2
    assert all(re.fullmatch("[1-9]", score) for score in scores)
    assert len(thoughts["result"]) == 2

    outline = run_fresh(shell, "skeleton_of_thought", *short(tokens=6))
    assert len(outline["variables"]["outline"]) == 3
    assert list(outline["result"]) == outline["variables"]["outline"]

    grades = run_fresh(shell, "judge", *short(tokens=6))["result"]
    assert set(grades) == {"clarity", "originality", "evidence", "verdict"}
    assert {grades[side] for side in ("clarity", "originality", "evidence")} <= {
        "Poor", "Fair", "Good",
    }  # fmt: skip

    person = run_fresh(shell, "extract_json")
    assert person["result"]["name"] == "Mario Rossi"
    assert person["result"]["age"] == 58
    assert person["usage"]["forced_tokens"] >= 10


def test_rows_in_rows_out_a_broken_one_beside_them_and_a_session_to_talk_on(shell: Shell) -> None:
    program = shell.folder / "review.py"
    program.write_text(
        "from radchat.programs import assistant, gen, program, user\n"
        "print('one for the log')\n"
        "@program\n"
        "def main(s, word: str, n: int = 1):\n"
        "    s += user(f'Say {word}.')\n"
        "    s += assistant('I say ' + gen('said', max_tokens=3))\n"
        "    return [s['said'], 6 / n]\n"
    )
    rows = [{"word": "tea"}, {"word": "no", "n": 0}, {"word": "hay", "n": 3}]
    text = "\n".join(map(json.dumps, rows))
    done = shell("run", str(program), "--input", "-", "--trace", stdin=text, code=1)
    first, broken, third = map(json.loads, done.out.splitlines())
    assert (first["result"][1], third["result"][1]) == (6, 2)
    assert broken["error"]["message"] == f"{program}:7: ZeroDivisionError: division by zero"
    assert "one for the log" in done.err
    assert done.err.count("gen said  cached ") == 3
    assert "1 of 3 rows failed" in done.err
    adds_up(third)

    kept = shell("run", str(program), "--arg", "word=tea", "--save", "talk", "--temp", "0")
    assert re.search(r"talk · main@[0-9a-f]{4}", kept.err)
    roles = shell.texts(session="talk")
    assert roles == [("user", "Say tea."), ("assistant", "I say " + kept.json["result"][0])]
    for name, why in (("talk", "there is a session talk already"), ("a:b", "can't be the name of")):
        again = shell("run", str(program), "--arg", "word=tea", "--save", name, code=2)
        assert why in again.err
        assert "run.py:" not in again.err
    after = shell.say("And now?", "--session", "talk", "--max-tokens", "2", "--temp", "0")
    assert after["cache"]["computed"] < 20  # the rest is there
    shell.home.assert_balanced()


def test_ctrl_c_ends_every_branch(shell: Shell) -> None:
    home = shell.home
    program = str(EXAMPLES / "tree_of_thought.py")
    process = shell.start("run", program, *short(tokens=400, breadth=4))
    wait_until(lambda: home.status().get("running", 0) >= 4)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    home.assert_balanced()


@pytest.mark.parametrize("rows", [False, True])
def test_a_reader_that_goes_ends_it_in_silence(shell: Shell, tmp_path: Path, rows: bool) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n' * 3)
    more = ("--input", str(tmp_path / "in.jsonl")) if rows else ()
    child = shell.start("run", str(EXAMPLES / "few_shot.py"), *more)
    assert child.stdout is not None
    child.stdout.close()
    child.stdout = None  # nothing to read
    done = finish(child)
    assert (done.code, done.err) == (0, "")


def test_the_guides_own_programs_run(shell: Shell) -> None:
    guide = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 4
    program = shell.folder / "guide.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-P", str(program)],
        env=shell.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("yes ", "no "))
    assert "'name': " in done.stdout
