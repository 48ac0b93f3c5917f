"""The data path as machine code: its modules, their compilation, and the check before use.

The modules are strictly typed Python, and mypyc makes C of them: attributes at fixed offsets, calls
without Python's objects, unboxed integers. The same files run interpreted everywhere else, at about
1.4 to 1.7 times the CPU for each connection and each small message. Bulk costs the same, because
the kernel moves it.

`make setup` compiles all of them into one library, in a folder for each Python (`cpython-…/`).
Beside the library is a manifest with digests of everything that went into it: the sources, the
modules that they import (whose types and constants are compiled in), and the list of compiled
modules. The name of the library has its digest. A separate process loads it first; if that
succeeds, its manifest is renamed into place, and from then on the library is used.
"""
