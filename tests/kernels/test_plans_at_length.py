"""The properties of plans on thousands of steps: two bugs hid from the first two hundred."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import test_pack, test_plan_shared, test_torch_exec_shared
from tests.kernels.test_plan_shared import WINDOWS
from tests.kernels.trees import limits, steps

pytestmark = pytest.mark.slow
COVER: Any = test_plan_shared.test_each_row_sees_each_of_its_tokens_once
PROMISE: Any = test_plan_shared.test_what_items_promise
PACKED: Any = test_pack.test_the_words_say_what_each_row_sees
RUN: Any = test_torch_exec_shared.test_however_the_work_is_cut_the_answer_is_the_reference_s


@settings(deadline=None, max_examples=4000)
@given(steps(), WINDOWS, limits(), st.booleans())
def test_plans_and_words(segments: Any, window: Any, wants: Any, direct: bool) -> None:
    COVER.hypothesis.inner_test(segments, window, wants)
    PROMISE.hypothesis.inner_test(segments, window, wants)
    PACKED.hypothesis.inner_test(segments, window, wants, direct)


@settings(deadline=None, max_examples=4000)
@given(steps(), WINDOWS, limits(), st.sampled_from([None, 1.5]), st.booleans())
def test_answers(segments: Any, window: Any, wants: Any, softcap: Any, sinks: bool) -> None:
    RUN.hypothesis.inner_test(segments, window, wants, softcap, sinks)
