"""What llama.cpp's log says about each request: the truth of the cold-start benchmark."""

from __future__ import annotations

import pytest

from monitor.cli.model_server import Served, served

BOOT = """\
0.00.031.100 I srv    load_model: loading model '/weights/SmolLM2-135M-Instruct.Q4_1.gguf'
0.00.400.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 1024, kv_unified = 'false'
"""
REQUEST = """\
{0} I slot get_availabl: id  1 | task -1 | selected slot by LRU, t_last = -1
{0} I slot launch_slot_: id  1 | task 51 | processing task, is_child = 0
{0} I slot      release: id  1 | task 51 | stop processing: n_tokens = 68, truncated = 0
"""
ASLEEP = """\
0.07.960.161 I que    start_loop: entering sleeping state
0.07.960.332 I srv  handle_sleep: server is entering sleeping state
"""
AWAKE = """\
0.09.963.534 I que    start_loop: exiting sleeping state
0.09.963.579 I srv  handle_sleep: server is exiting sleeping state
0.09.963.626 I srv    load_model: loading model '/weights/SmolLM2-135M-Instruct.Q4_1.gguf'
0.10.769.414 I cmn          init: llama threadpool init, n_threads = 1
"""


def test_a_load_belongs_to_the_request_that_follows_it() -> None:
    """With how long it took: from leaving its sleep to taking up the request. The load at the start is nobody's."""
    log = BOOT + REQUEST.format("0.01.000.000") + ASLEEP + AWAKE + REQUEST.format("0.10.855.368") * 2
    first, woken, warm = served(log)
    assert (first, warm) == (Served(False, None), Served(False, None))
    assert woken.woke_the_model
    assert woken.load_seconds is not None
    assert woken.load_seconds == pytest.approx(10.855368 - 9.963534)


def test_what_is_still_asleep_or_cut_off_is_no_request() -> None:
    """A log that ends anywhere gives the requests that were begun."""
    assert served("") == served(BOOT + ASLEEP) == served(BOOT + ASLEEP + AWAKE) == []
