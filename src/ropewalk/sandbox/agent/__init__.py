"""The guest agent. `source` packs this folder's other modules into what a sandbox is shown, read-only, and starts.

They import each other relatively and C modules (`posix`, `_signal`) in place of `os`, `signal`,
`socket` and `typing`, which would add 20 ms to the start of every sandbox. The host imports `source` alone.
"""
