"""The guest agent. This folder is shown to a sandbox whole and read-only; `agent.py` is started there.

Its modules import each other relatively and C modules (`posix`, `_signal`, `_socket`) in place of `os`, `signal`,
`socket` and `typing`, which would add 20 ms to the start of every sandbox. The host imports `source` alone.
"""
