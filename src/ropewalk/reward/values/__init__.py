"""The value protocol: instrumentation of test modules, typed plain data, comparison outside."""
