"""What this machine lets the driver do."""

from __future__ import annotations
from ropewalk.sandbox.contract import Probe
from ropewalk.store.layout import Layout


def probe(layout: Layout) -> Probe:
    raise NotImplementedError
