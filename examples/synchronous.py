"""The same without `async`, for notebooks and scripts."""

from __future__ import annotations

from ropewalk import RopewalkSync


def main() -> None:
    with RopewalkSync.open() as rw, rw.sandbox() as sandbox:
        sandbox.write("/work/hello.py", "print('hello from', __import__('os').getcwd())")
        print(sandbox.exec("python3 hello.py").stdout, end="")


if __name__ == "__main__":
    main()
