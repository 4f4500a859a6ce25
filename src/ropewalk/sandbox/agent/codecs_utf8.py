"""Stands in for the package `encodings` while the agent's Python starts, which knows UTF-8 alone then.

The interpreter cannot start without a package of that name; the standard library's takes 1.5 ms to load, every time.
What the agent encodes otherwise (ASCII, Latin-1) the interpreter does by itself.
"""

import _codecs
import codecs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class Encoder(codecs.IncrementalEncoder):
    """For the text layers of stdout and stderr."""

    def encode(self, input: str, final: bool = False) -> bytes:
        """UTF-8 has no state."""
        return _codecs.utf_8_encode(input, self.errors)[0]


class Decoder(codecs.BufferedIncrementalDecoder):
    """For stdin's."""

    _buffer_decode = staticmethod(_codecs.utf_8_decode)  # type: ignore[assignment]


def decode(input: "Buffer", errors: str = "strict") -> tuple[str, int]:
    """A whole text."""
    return _codecs.utf_8_decode(input, errors, True)


def search(name: str) -> codecs.CodecInfo | None:
    """For `codecs.register`."""
    if name.replace("-", "_") not in ("utf_8", "utf8"):
        return None
    return codecs.CodecInfo(
        name="utf-8", encode=_codecs.utf_8_encode, decode=decode, incrementalencoder=Encoder,
        incrementaldecoder=Decoder, streamreader=codecs.StreamReader, streamwriter=codecs.StreamWriter,
    )  # fmt: skip


codecs.register(search)
