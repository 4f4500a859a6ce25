"""Many layers into one, with overlayfs' meaning: upper members hide lower ones, whiteouts and opaque folders too."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.sandbox.layers import LayerRecord, LayerStore


def flatten(layers: LayerStore, digests: Sequence[str]) -> LayerRecord:
    """One layer that stands for all of these, lowest first, above whatever lies below them.

    Whiteouts and opaque marks are kept, since what they hide may lie in an image further down.
    """
    raise NotImplementedError
