"""Turns, gangs and exact arithmetic, by chance."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.core.errors import CallerError
from ropewalk.orchestration.contract import NeverFitsError, QueueFullError, ResourceRequest
from ropewalk.orchestration.ledger import Ledger, Ticket

requests = st.builds(
    ResourceRequest, cpus=st.sampled_from([0.1, 0.25, 0.3, 1.0, 1.7, 2.0]), memory_bytes=st.integers(1, 40)
)


def ask(count: int = 1, *, cpus: float = 1.0, memory_bytes: int = 1) -> list[ResourceRequest]:
    return [ResourceRequest(cpus=cpus, memory_bytes=memory_bytes)] * count


class Turns(RuleBasedStateMachine):
    """Any order of asking, giving back and giving up."""

    @initialize(cpus=st.sampled_from([2.0, 3.3, 4.0]), memory_bytes=st.integers(40, 120))
    def start(self, cpus: float, memory_bytes: int) -> None:
        self.ledger = Ledger(cpus=cpus, memory_bytes=memory_bytes, waiting_max=30)
        self.held: list[Ticket] = []
        self.waiting: list[Ticket] = []

    def take(self, granted: list[Ticket]) -> None:
        for ticket in granted:
            ours = [other for other in self.waiting if other.tenant == ticket.tenant]
            assert ours[0] is ticket, "first come, first served within a tenant"
            assert ticket.granted and len(ticket.slots) == len(ticket.requests), "all or none"
            self.waiting.remove(ticket)
            self.held.append(ticket)

    @rule(tenant=st.sampled_from("abc"), group=st.lists(requests, min_size=1, max_size=4))
    def submit(self, tenant: str, group: list[ResourceRequest]) -> None:
        try:
            before = sum(len(ticket.requests) for ticket in self.waiting)
            ticket, granted = self.ledger.submit(tenant, group)
        except NeverFitsError:
            cpus = sum((Fraction(r.cpus) for r in group), Fraction(0))
            assert cpus > self.ledger.cpus or sum(r.memory_bytes for r in group) > self.ledger.memory_bytes
        except QueueFullError as error:
            assert before + len(group) > 30 and error.retry_after_s
        else:
            self.waiting.append(ticket)
            self.take(granted)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.held))
        slot = data.draw(st.integers(0, len(ticket.requests) - 1))
        self.take(self.ledger.release(ticket, slot))
        self.take(self.ledger.release(ticket, slot))
        if not ticket.slots:
            self.held.remove(ticket)

    @precondition(lambda self: self.held or self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.held + self.waiting))
        (self.held if ticket in self.held else self.waiting).remove(ticket)
        self.take(self.ledger.cancel(ticket))
        self.take(self.ledger.cancel(ticket))

    @invariant()
    def what_is_free_is_what_nobody_holds(self) -> None:
        if not hasattr(self, "ledger"):
            return
        slots = [ticket.requests[slot] for ticket in self.held for slot in ticket.slots]
        assert self.ledger.cpus_free == self.ledger.cpus - sum((Fraction(r.cpus) for r in slots), Fraction(0)) >= 0
        assert self.ledger.memory_bytes_free == self.ledger.memory_bytes - sum(r.memory_bytes for r in slots) >= 0
        queued = {ticket for tickets in self.ledger.waiting().values() for ticket in tickets}
        assert queued == set(self.waiting)

    @invariant()
    def nobody_waits_in_an_empty_fleet(self) -> None:
        if hasattr(self, "ledger") and not self.held:
            assert not self.waiting

    def teardown(self) -> None:
        """Everybody is served in the end: nobody starves."""
        if not hasattr(self, "ledger"):
            return
        while self.held:
            ticket = self.held.pop(0)
            for slot in tuple(ticket.slots):
                self.take(self.ledger.release(ticket, slot))
        assert not self.waiting
        assert self.ledger.cpus_free == self.ledger.cpus and self.ledger.memory_bytes_free == self.ledger.memory_bytes


Turns.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestTurns = Turns.TestCase


@settings(deadline=None, max_examples=50)
@given(flood=st.integers(1, 40), size=st.integers(1, 4), rivals=st.integers(1, 3))
def test_a_large_group_is_served_although_small_ones_keep_coming(flood: int, size: int, rivals: int) -> None:
    """The starvation case: others ask again the moment they are done."""
    ledger = Ledger(cpus=4, memory_bytes=100, waiting_max=1000)
    running = [ledger.submit("small-0", ask())[0] for _ in range(4)]
    for _ in range(flood):
        for rival in range(rivals):
            ledger.submit(f"small-{rival}", ask())
    large, granted = ledger.submit("large", ask(size))
    assert not granted
    releases = 0
    while not large.granted:
        ticket = running.pop(0)
        granted = ledger.release(ticket, 0)
        running += [other for other in granted if other is not large]
        ledger.submit("small-0", ask())
        releases += 1
        # At most one turn of each rival, and then as many releases as it needs room.
        assert releases <= rivals + 1 + size + 4


def test_tenants_take_turns_whoever_asked_most() -> None:
    ledger = Ledger(cpus=1, memory_bytes=10, waiting_max=100)
    running, _ = ledger.submit("greedy", ask())
    for _ in range(5):
        ledger.submit("greedy", ask())
    for tenant in ("b", "c"):
        ledger.submit(tenant, ask())
        ledger.submit(tenant, ask())
    order = []
    while granted := ledger.release(running, 0):
        (running,) = granted
        order.append(running.tenant)
    assert order == ["greedy", "b", "c", "greedy", "b", "c", "greedy", "greedy", "greedy"]


def test_nobody_passes_the_group_whose_turn_it_is() -> None:
    ledger = Ledger(cpus=2, memory_bytes=10, waiting_max=100)
    first, _ = ledger.submit("a", ask())
    gang, granted = ledger.submit("a", ask(2))
    assert granted == []
    small, granted = ledger.submit("b", ask())
    assert granted == [] and ledger.cpus_free == 1
    assert ledger.release(first, 0) == [gang]
    assert ledger.cancel(gang) == [small]


def test_cpus_do_not_suffer_from_rounding() -> None:
    ledger = Ledger(cpus=1, memory_bytes=100, waiting_max=100)
    tickets = [ledger.submit("a", ask(cpus=0.1))[0] for _ in range(9)]
    for _ in range(50):
        ledger.release(tickets.pop(0), 0)
        tickets.append(ledger.submit("a", ask(cpus=0.1))[0])
    for ticket in tickets:
        ledger.release(ticket, 0)
    assert ledger.cpus_free == 1


def test_what_never_fits_and_what_makes_no_sense_is_said_at_once() -> None:
    ledger = Ledger(cpus=4, memory_bytes=100, waiting_max=10)
    for group in (ask(5), ask(cpus=4.1), ask(memory_bytes=101), ask(2, memory_bytes=51)):
        with pytest.raises(NeverFitsError, match="whole fleet"):
            ledger.submit("a", group)
    for group in ([], ask(cpus=0), ask(cpus=-1), ask(cpus=float("nan")), ask(cpus=float("inf")), ask(memory_bytes=0)):
        with pytest.raises(CallerError):
            ledger.submit("a", group)
    assert ledger.waiting() == {}


def test_a_full_queue_refuses_but_not_what_fits_at_once() -> None:
    ledger = Ledger(cpus=4, memory_bytes=100, waiting_max=1)
    assert ledger.submit("a", ask(4))[0].granted
    ledger.submit("a", ask())
    with pytest.raises(QueueFullError, match="1 placements are waiting"):
        ledger.submit("b", ask())
