"""Compiled kernels without numba at run time: machine code is read from disk and called.

A kernel is a numba function under a ``kernels/`` folder. It takes arrays and numbers, changes
arrays in place and returns nothing or whole numbers. Importing numba and loading a kernel from its
cache takes 0.5 s and 150 MB per process, more than a small training. So machine code is stored as
shared libraries, which the system loads and ctypes calls, without the interpreter's lock. numba is
imported only to compile, in a child process::

    rows = load("sbm.store.kernels.rows")
    used = rows.encode_numbers(lengths, symbols, bits)  # as if rows were the module

Kernels do not allocate or raise: scratch arrays are arguments, errors are returned as numbers.

- `calls`: `load`; a kernel loads the code for the types of its arguments when it is first called
- `cache`: which folders and files of machine code are used, and which are safe
- `processor`: for which processors code is compiled, and what its name depends on
- `compiler`: numba and LLVM make an object file of a kernel
- `linker`: object files become a shared library
- `declared`: for which types of arguments kernels are compiled
- `child`: compiling in other processes
- `clock`: time without that for compiling
"""
