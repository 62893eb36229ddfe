"""When requests are repeated, how long is waited, and that identical ones are one."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import format_datetime

import pytest

from pgrag.errors import BudgetError, ModelError
from pgrag.llm.litellm_calls import call_error, refused_option, too_long
from pgrag.llm.retry import CallError, CallTimeoutError, parse_retry_after, wait_before, with_retries
from pgrag.llm.singleflight import SingleFlight, finish
from pgrag.llm.spending import Bill, Spending

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        (format_datetime(datetime.fromtimestamp(NOW + 30, UTC), usegmt=True), 30.0),
        (format_datetime(datetime.fromtimestamp(NOW - 30, UTC), usegmt=True), 0.0),
        ("Tue, 14 Nov 2023 22:13:25 -0000", 5.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


def test_waits_double_up_to_a_minute_and_are_spread() -> None:
    assert [wait_before(n, None, 1.0) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 16]
    assert wait_before(3, None, 0.0) == 2
    assert wait_before(20, None, 1.0) == 60


def test_the_server_is_never_asked_before_it_says_and_never_waited_for_without_end() -> None:
    assert wait_before(1, 7.0, 0.0) == 7
    assert wait_before(1, 7.0, 0.5) == 7.5
    assert wait_before(1, 86_400.0, 0.0) == 120


@pytest.mark.parametrize("status", [None, 408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_passing_failures_are_repeated_as_often_as_the_setting_says(status: int | None) -> None:
    tries, waits = asyncio.run(_run_failing(CallError("x", status=status), retries=3))
    assert (tries, len(waits)) == (4, 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_lasting_failures_are_not_repeated(status: int) -> None:
    assert asyncio.run(_run_failing(CallError("x", status=status), retries=3)) == (1, [])


def test_time_outs_are_repeated_twice_at_most() -> None:
    assert asyncio.run(_run_failing(CallTimeoutError("x"), retries=9))[0] == 3
    assert asyncio.run(_run_failing(CallTimeoutError("x"), retries=1))[0] == 2


async def _run_failing(error: CallError, retries: int) -> tuple[int, list[float]]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def call() -> None:
        raise error

    with pytest.raises(CallError) as caught:
        await with_retries(call, retries, sleep)
    return caught.value.tries, waits


def test_what_is_no_call_error_is_not_repeated() -> None:
    calls = []

    async def call() -> None:
        calls.append(1)
        raise ModelError("no")

    with pytest.raises(ModelError):
        asyncio.run(with_retries(call, 5, asyncio.sleep))
    assert len(calls) == 1


# ---------------------------------------------------------------- the words of servers


def test_a_text_that_is_too_large_for_llama_cpp_is_not_sent_again() -> None:
    class InternalServerError(Exception):
        status_code = 500

    error = call_error(InternalServerError("input (601 tokens) is too large to process. increase the physical batch"))
    assert too_long(error)
    assert not error.passing
    assert call_error(InternalServerError("it broke")).passing


def test_an_error_is_one_line_of_the_servers_words() -> None:
    error = call_error(ValueError("litellm.BadRequestError: OpenAIException - no such thing\nTraceback (most recent)"))
    assert error.words == "ValueError: no such thing"
    assert len(call_error(ValueError("x" * 5000)).words) < 400


@pytest.mark.parametrize(
    ("status", "words", "option"),
    [
        (400, "response_format is not supported", "response_format"),
        (400, "Invalid 'json_schema'", "response_format"),
        (404, "No endpoints found that support response_format", "response_format"),
        (400, "'temperature' does not support 0 with this model", "temperature"),
        (422, "Unknown field: stream_options", "stream_options"),
        (400, "this model does not support matryoshka representation", "dimensions"),
        (500, "response_format is not supported", None),
        (401, "response_format is not supported", None),
        (400, "maximum context length is 8192 tokens; response_format counts", None),
        (400, "bad request", None),
    ],
)
def test_refused_options_are_told_by_status_and_words(status: int, words: str, option: str | None) -> None:
    options = ["model", "messages", "temperature", "response_format", "stream_options", "dimensions"]
    assert refused_option(CallError(words, status=status), options) == option
    assert refused_option(CallError(words, status=status), ["model", "messages"]) is None


@pytest.mark.parametrize(
    ("status", "words", "long"),
    [
        (400, "This model's maximum context length is 8192 tokens", True),
        (400, "input is too long for requested model", True),
        (422, "inputs tokens + max_new_tokens must be <= 4096; exceeded the limit", True),
        (400, "the request exceeds the available context size", True),
        (413, "", True),
        (400, "bad request", False),
        (500, "maximum context length", False),
    ],
)
def test_texts_that_are_too_long_are_told(status: int, words: str, long: bool) -> None:
    assert too_long(CallError(words, status=status)) is long


# ---------------------------------------------------------------- one request at a time


def test_callers_at_one_time_share_one_call_and_later_ones_do_not() -> None:
    calls: list[int] = []

    async def call() -> str:
        calls.append(1)
        await asyncio.sleep(0.01)
        return f"answer {len(calls)}"

    async def run() -> None:
        flights: SingleFlight[str] = SingleFlight()
        results = await asyncio.gather(*(flights.join("key", call) for _ in range(5)), flights.join("other", call))
        assert sorted(own for _, own in results) == [False] * 4 + [True] * 2
        assert len(calls) == 2
        assert (await flights.join("key", call)) == ("answer 3", True)

    asyncio.run(run())


def test_the_error_of_the_one_call_is_everybodys() -> None:
    async def call() -> str:
        await asyncio.sleep(0.01)
        raise ModelError("broken")

    async def run() -> list[object]:
        flights: SingleFlight[str] = SingleFlight()
        return list(await asyncio.gather(*(flights.join("key", call) for _ in range(3)), return_exceptions=True))

    assert [str(error) for error in asyncio.run(run())] == ["broken"] * 3


def test_when_the_one_that_asks_is_cancelled_another_asks() -> None:
    calls: list[int] = []

    async def call() -> int:
        calls.append(1)
        await asyncio.sleep(0.02)
        return len(calls)

    async def run() -> None:
        flights: SingleFlight[int] = SingleFlight()
        first = asyncio.create_task(flights.join("key", call))
        await asyncio.sleep(0)
        others = [asyncio.create_task(flights.join("key", call)) for _ in range(3)]
        await asyncio.sleep(0.005)
        others[2].cancel()  # who only waits takes nobody with it
        first.cancel()
        assert sorted(await asyncio.gather(*others[:2])) == [(2, False), (2, True)]
        assert first.cancelled()
        assert others[2].cancelled()

    asyncio.run(run())


def test_work_to_be_finished_is_finished_before_its_task_is_cancelled() -> None:
    done: list[str] = []

    async def commit() -> None:
        await asyncio.sleep(0.02)
        done.append("committed")

    async def run() -> None:
        task = asyncio.create_task(finish(commit()))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["committed"]

    asyncio.run(run())


# ---------------------------------------------------------------- the budget


def test_a_request_must_fit_beside_what_is_spent_and_under_way() -> None:
    spending = Spending(0.10)
    with ExitStack() as under_way:
        under_way.enter_context(spending.reserve("m", Decimal("0.04")))
        under_way.enter_context(spending.reserve("m", Decimal("0.06")))
        with pytest.raises(BudgetError, match="raise max_cost"):
            under_way.enter_context(spending.reserve("m", Decimal("0.001")))
    spending.add(Bill(10, 5, Decimal("0.05")))
    with spending.reserve("m", Decimal("0.05")):
        pass
    with pytest.raises(BudgetError) as caught, spending.reserve("m", Decimal("0.06")):
        pass
    assert caught.value.exit_code == 4
    assert "$0.0500 spent" in str(caught.value)
    assert spending.usage.calls == 1
    assert spending.usage.cost == Decimal("0.05")


def test_an_unknown_price_is_let_through_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    spending = Spending(0.10)
    for _ in range(2):
        with spending.reserve("openai/own", None):
            spending.add(Bill(10, 5, None))
    assert spending.usage.unpriced == 2
    assert [record.getMessage() for record in caplog.records] == [
        "max_cost does not count openai/own: its price is not known"
    ]


def test_without_a_limit_nothing_is_refused() -> None:
    spending = Spending(None)
    with spending.reserve("m", Decimal(1000)):
        spending.add(Bill(1, 1, Decimal(1000)))
    with spending.reserve("m", Decimal(1000)):
        pass
    assert spending.usage.cost == 1000
