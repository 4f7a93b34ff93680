import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radchat import errors, protocol

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(["delta", "done"]), json_values)))
def test_events_survive_the_wire(pairs: list[tuple[str, object]]) -> None:
    events = [protocol.Event(name, {"value": value}) for name, value in pairs]
    body = b": keep-alive\n\n".join(event.encode() for event in events)
    assert list(protocol.decode_events(body.splitlines(keepends=True))) == events


@pytest.mark.parametrize("cls", errors._BY_CODE.values())
def test_an_error_crosses_the_socket_as_itself(cls: type[errors.RadchatError]) -> None:
    sent = cls("what and the way out", limit=10)
    got = errors.from_json(sent.to_json())
    assert type(got) is cls
    assert (got.message, got.data) == (sent.message, sent.data)


def test_an_unknown_code_is_still_an_error() -> None:
    assert errors.from_json({"code": "new", "message": "m"}).exit_code == 1


def test_the_build_id_changes_with_the_code_only() -> None:
    assert protocol.build_id() == protocol.build_id()
    assert protocol.build_id().startswith("0.")


def test_importing_radchat_imports_nothing_heavy() -> None:
    code = "import sys, radchat, radchat.protocol; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
