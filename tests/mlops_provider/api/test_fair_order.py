from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from mlops.contract.rest import Priority
from mlops_provider.api.fair_order import Waiting, run_after

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


def lined_up(users: str) -> str:
    """The order in which runs begin that were asked for in this order, while none begins; capitals: of low priority."""
    line: list[tuple[Waiting, str]] = []
    for number, user in enumerate(users):
        now = NOON + timedelta(seconds=number)
        priority: Priority = "low" if user.isupper() else "normal"
        at = run_after([waiting for waiting, _ in line], user.lower(), now, priority)
        assert at <= now, "Airflow would let it wait"
        line = sorted([*line, (Waiting(user.lower(), at, priority), user)], key=lambda each: each[0].run_after)
    return "".join(user for _, user in line)


def test_who_asks_for_one_does_not_wait_for_anothers_hundred() -> None:
    assert lined_up("a" * 100 + "b") == "ab" + "a" * 99
    assert lined_up("aaaabb") == "ababaa"
    assert lined_up("aabbcc") == "abcabc"
    assert lined_up("abab") == "abab"


def test_users_take_turns_whatever_the_order() -> None:
    """Broken: the n-th run of somebody would begin after another one's n+1-th."""
    chance = random.Random(7)
    for _ in range(200):
        order = lined_up("".join(chance.choices("abc", k=chance.randint(1, 60))))
        ranks = [order[: at + 1].count(user) for at, user in enumerate(order)]
        assert ranks == sorted(ranks), order


def test_low_runs_yield_to_all_normal_ones() -> None:
    """Broken: who says that a hundred runs may wait is in everybody's way all the same."""
    assert lined_up("AAAb") == "bAAA"
    assert lined_up("AAaBba") == "abaABA"
    assert lined_up("aAbB") == "abAB"


def test_of_each_priority_users_take_turns() -> None:
    """Broken: many normal runs that come before a low one end in an order of their own, or behind it."""
    chance = random.Random(11)
    for _ in range(50):
        order = lined_up("A" + "".join(chance.choices("abAB", k=chance.randint(1, 200))))
        whole = [user.islower() for user in order]
        assert whole == sorted(whole, reverse=True), order
        for likes in ("ab", "AB"):
            part = [user for user in order if user in likes]
            ranks = [part[: at + 1].count(user) for at, user in enumerate(part)]
            assert ranks == sorted(ranks), order


def test_what_somebody_has_put_off_holds_nobody_up() -> None:
    """Broken: one run that Airflow is to begin tomorrow has all wait until then."""
    now = NOON
    later = [Waiting("b", now + timedelta(days=1), "low"), Waiting("b", now + timedelta(days=2), "normal")]
    assert run_after(later, "a", now, "normal") == now
    assert run_after([*later, later[1]], "a", now, "normal") == now


def test_a_run_of_airflows_own_form_does_not_put_normal_ones_behind_low_ones() -> None:
    seconds = [timedelta(seconds=each) for each in (100, 99, 0)]
    normal, low, last = (NOON - each for each in seconds)
    line = [Waiting("a", normal, "normal"), Waiting("b", low, "low"), Waiting("b", last, "normal")]
    line.append(Waiting("b", last, "normal"))
    assert normal < run_after(line, "c", NOON, "normal") < low
