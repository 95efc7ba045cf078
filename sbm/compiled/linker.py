"""Link kernels: object files of LLVM become one shared library, which the system loads.

A machine that has only Python has no linker, and LLVM, which has one, takes 60 MB in every process
that loads it. Kernels need little of a linker: apart from some functions of the C library they use
nothing but themselves, and they have neither exceptions nor data of their own threads. So `link`
writes the ELF file for x86-64 Linux itself. The file has four segments: constants, code, data with
the table of addresses that the code looks up, and the tables by which the system's loader finds
symbols and adjusts addresses.

Source: System V ABI and its AMD64 supplement (file format, types of relocations).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence

from sbm.errors import SbmError

__all__ = ["C_FUNCTIONS", "NEVER_CALLED", "LinkError", "link"]

# Functions of the C library that LLVM calls; found when the library is loaded.
C_FUNCTIONS = frozenset({"memcpy", "memmove", "memset"})
# What numba refers to in order to raise exceptions. No kernel raises, so all of these become
# `_TRAP`, an invalid instruction.
NEVER_CALLED = frozenset({
    "numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise",
    "numba_runtime_build_excinfo_struct", "NRT_Free", "NRT_MemInfo_call_dtor",
    "PyErr_Clear", "PyErr_SetNone", "PyErr_SetString", "PyErr_WriteUnraisable",
    "PyUnicode_FromString", "PyBytes_FromStringAndSize", "Py_DecRef",
    "PyExc_SystemError", "PyExc_StopIteration", "PyExc_RuntimeError",
})  # fmt: skip
_TRAP = b"\x0f\x0b"  # ud2

# Numbers of the format, with the names that the ABI gives them.
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 1, 2, 4, 8
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_PF_R, _PF_X, _PF_W = 4, 1, 2
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_RELAENT = 4, 5, 6, 7, 8, 9
_DT_STRSZ, _DT_SYMENT = 10, 11
_R_64, _R_PC32, _R_PLT32, _R_GLOB_DAT, _R_RELATIVE = 1, 2, 4, 6, 8
_R_GOTPCREL = (9, 41, 42)  # address of an entry of the table of addresses; three spellings
_GLOBAL, _FUNCTION = 0x10, 0x12

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address twice, size twice, alignment
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name type flags address offset size link info align entry
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_RELOCATION = struct.Struct("<QQq")  # offset, type and symbol, addend
_PAGE = 4096
_SEGMENTS = 6  # four of memory, the dynamic table, and a stack that is not executable


class LinkError(SbmError):
    """An object file with something that `link` does not know: a bug, or a newer LLVM."""


class _Object:
    """Sections, symbols and relocations of an object file."""

    def __init__(self, code: bytes) -> None:
        try:
            (table,) = struct.unpack_from("<Q", code, 40)
            (count,) = struct.unpack_from("<H", code, 60)
            headers = code[table : table + count * _SECTION.size]
            self.code, self.sections = code, list(_SECTION.iter_unpack(headers))
            (symbols,) = [section for section in self.sections if section[1] == _SHT_SYMTAB]
            self.symbols = list(_SYMBOL.iter_unpack(self.content(symbols)))
            self._names = self.content(self.sections[symbols[6]])
        except (struct.error, ValueError, IndexError) as error:
            raise LinkError(f"not an object file: {error}") from error

    def content(self, section: tuple[int, ...]) -> bytes:
        if section[1] == _SHT_NOBITS:
            return bytes(section[5])
        return self.code[section[4] : section[4] + section[5]]

    def name(self, symbol: tuple[int, ...]) -> str:
        return self._names[symbol[0] : self._names.index(b"\0", symbol[0])].decode()

    def relocations(self) -> Iterator[tuple[int, int, int, tuple[int, ...], int]]:
        """Yield section, offset, type, symbol and addend of each place that needs an address."""
        for section in self.sections:
            if section[1] == _SHT_RELA:
                for offset, what, addend in _RELOCATION.iter_unpack(self.content(section)):
                    symbol = self.symbols[what >> 32]
                    yield section[7], offset, what & 0xFFFFFFFF, symbol, addend


class _Segment:
    """Part of the library that is mapped with the same rights."""

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.content = bytearray()
        self.address = 0  # in the file and in memory, counted from the begin of the library

    def add(self, content: bytes, align: int) -> int:
        """Append content; return its offset in the segment."""
        self.content += bytes(-len(self.content) % max(1, align))
        self.content += content
        return len(self.content) - len(content)


_Place = tuple[_Segment, int]


def _address(place: _Place) -> int:
    return place[0].address + place[1]


class _Layout:
    """Where the sections of all objects are, and the table of addresses that their code reads."""

    def __init__(self, objects: Sequence[_Object]) -> None:
        self.constants, self.code = _Segment(_PF_R), _Segment(_PF_R | _PF_X)
        self.data, self.tables = _Segment(_PF_R | _PF_W), _Segment(_PF_R)
        self.segments = self.constants, self.code, self.data, self.tables
        self.constants.add(bytes(_HEADER.size + _SEGMENTS * _PROGRAM.size), 1)
        self._trap = self.code, self.code.add(_TRAP, 16)
        self._sections: dict[tuple[int, int], _Place] = {}
        self.entries: dict[_Place | str, _Place] = {}
        self.jumps: dict[str, _Place] = {}
        for number, given in enumerate(objects):
            for k, section in enumerate(given.sections):
                if section[1] in (_SHT_PROGBITS, _SHT_NOBITS) and section[2] & _SHF_ALLOC:
                    segment = self._segment(section[2])
                    place = segment, segment.add(given.content(section), section[8])
                    self._sections[number, k] = place

    def _segment(self, flags: int) -> _Segment:
        if flags & _SHF_EXECINSTR:
            return self.code
        return self.data if flags & _SHF_WRITE else self.constants

    def section(self, number: int, k: int) -> _Place | None:
        """Return the place of a section of an object; None for what is not in memory."""
        return self._sections.get((number, k))

    def target(self, number: int, given: _Object, symbol: tuple[int, ...]) -> _Place | str:
        """Return the place of a symbol, or the name of a function of the C library."""
        place = self.section(number, symbol[3])
        if place is not None:
            return place[0], place[1] + symbol[4]
        name = given.name(symbol)
        if symbol[3] == 0 and name in NEVER_CALLED:
            return self._trap
        if symbol[3] == 0 and name in C_FUNCTIONS:
            return name
        raise LinkError(f"unknown symbol {name!r}")

    def entry(self, target: _Place | str) -> _Place:
        """Return the entry of a target in the table of addresses."""
        if target not in self.entries:
            self.entries[target] = self.data, self.data.add(bytes(8), 8)
        return self.entries[target]

    def jump(self, name: str) -> _Place:
        """Return the place of a jump to a function of the C library."""
        if name not in self.jumps:
            self.jumps[name] = self.code, self.code.add(b"\xff\x25" + bytes(4), 8)
        return self.jumps[name]

    def place_segments(self) -> int:
        """Set the addresses of all segments, each on pages of its own; return the length."""
        end = 0
        for segment in self.segments:
            segment.address = end + -end % _PAGE
            end = segment.address + len(segment.content)
        return end


def link(objects: Mapping[str, tuple[str, bytes]]) -> bytes:
    """Return a shared library.

    Parameters
    ----------
    objects : mapping of str to (str, bytes)
        For each symbol of the library: the name of the function in an object file, and the object
        file, compiled as position-independent code of the small code model.

    Returns
    -------
    bytes
        Content of an ELF file for x86-64 Linux.

    Raises
    ------
    LinkError
        If an object refers to an unknown function, or has a relocation of unknown type.
    """
    parsed = [_Object(code) for _, code in objects.values()]
    layout = _Layout(parsed)
    distances: list[tuple[_Place, _Place, int]] = []  # where one goes, to what, plus how much
    addresses: list[tuple[_Place, _Place | str, int]] = []  # the same
    for number, given in enumerate(parsed):
        for section, offset, kind, symbol, addend in given.relocations():
            inside = layout.section(number, section)
            if inside is None:
                continue
            at, target = (inside[0], inside[1] + offset), layout.target(number, given, symbol)
            if kind in _R_GOTPCREL:
                distances.append((at, layout.entry(target), addend))
            elif kind in (_R_PC32, _R_PLT32):
                near = layout.jump(target) if isinstance(target, str) else target
                distances.append((at, near, addend))
            elif kind == _R_64 and at[0] is layout.data:
                addresses.append((at, target, addend))
            else:
                raise LinkError(f"unknown relocation {kind} of {given.name(symbol)!r}")
    for name, (segment, offset) in layout.jumps.items():
        distances.append(((segment, offset + 2), layout.entry(name), -4))
    addresses += [(place, target, 0) for target, place in layout.entries.items()]
    functions = {
        name: _function(layout, number, given, function)
        for number, (given, (name, (function, _))) in enumerate(
            zip(parsed, objects.items(), strict=True)
        )
    }
    return _write(layout, functions, distances, addresses)


def _function(layout: _Layout, number: int, given: _Object, name: str) -> _Place:
    """Return the place of a function that an object defines."""
    for symbol in given.symbols:
        if layout.section(number, symbol[3]) and given.name(symbol) == name:
            place = layout.target(number, given, symbol)
            assert not isinstance(place, str)
            return place
    raise LinkError(f"no function {name!r}")


def _write(
    layout: _Layout,
    functions: Mapping[str, _Place],
    distances: Sequence[tuple[_Place, _Place, int]],
    addresses: Sequence[tuple[_Place, _Place | str, int]],
) -> bytes:
    """Fill in distances and addresses, add the tables of the loader, and join the segments."""
    imported = sorted({target for _, target, _ in addresses if isinstance(target, str)})
    numbers = {name: 1 + k for k, name in enumerate([*imported, *functions])}
    names, name_at = bytearray(b"\0"), {}
    for name in numbers:
        name_at[name] = len(names)
        names += name.encode() + b"\0"
    tables = layout.tables
    symbols = tables, tables.add(bytes(_SYMBOL.size * (1 + len(numbers))), 8)
    relocations = tables, tables.add(bytes(_RELOCATION.size * len(addresses)), 8)
    hashes = tables, tables.add(_hash_table(list(numbers)), 8)
    strings = tables, tables.add(bytes(names), 1)
    dynamic = layout.data, layout.data.add(bytes(16 * 9), 8)
    length = layout.place_segments()

    for at, place, plus in distances:
        distance = _address(place) + plus - _address(at)
        struct.pack_into("<i", at[0].content, at[1], distance)
    for k, name in enumerate(numbers):
        value = (name_at[name], _GLOBAL, 0, 0, 0, 0)
        if name in functions:
            value = (name_at[name], _FUNCTION, 0, 1, _address(functions[name]), 0)
        _SYMBOL.pack_into(tables.content, symbols[1] + (1 + k) * _SYMBOL.size, *value)
    for k, (at, target, plus) in enumerate(addresses):
        if isinstance(target, str):
            what = numbers[target] << 32 | (_R_64 if plus else _R_GLOB_DAT)
        else:
            what, plus = _R_RELATIVE, _address(target) + plus
        slot = relocations[1] + k * _RELOCATION.size
        _RELOCATION.pack_into(tables.content, slot, _address(at), what, plus)
    entries = [
        (_DT_HASH, _address(hashes)), (_DT_STRTAB, _address(strings)), (_DT_STRSZ, len(names)),
        (_DT_SYMTAB, _address(symbols)), (_DT_SYMENT, _SYMBOL.size),
        (_DT_RELA, _address(relocations)), (_DT_RELASZ, _RELOCATION.size * len(addresses)),
        (_DT_RELAENT, _RELOCATION.size), (0, 0),
    ]  # fmt: skip
    for k, entry in enumerate(entries):
        struct.pack_into("<QQ", layout.data.content, dynamic[1] + 16 * k, *entry)

    library = bytearray(length)
    for segment in layout.segments:
        library[segment.address : segment.address + len(segment.content)] = segment.content
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, lowest byte first
    _HEADER.pack_into(
        library, 0, identity, 3, 62, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _PROGRAM.size,
        _SEGMENTS, 64, 0, 0,
    )  # fmt: skip
    programs = [
        (_PT_LOAD, segment.flags, segment.address, len(segment.content), _PAGE)
        for segment in layout.segments
    ]
    programs.append((_PT_DYNAMIC, layout.data.flags, _address(dynamic), 16 * len(entries), 8))
    programs.append((_PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 16))
    for k, (kind, flags, address, size, align) in enumerate(programs):
        _PROGRAM.pack_into(
            library, _HEADER.size + k * _PROGRAM.size,
            kind, flags, address, address, address, size, size, align,
        )  # fmt: skip
    return bytes(library)


def _hash_table(names: Sequence[str]) -> bytes:
    """Return the table in which the loader looks up symbols, numbered from 1."""
    size = max(1, len(names))
    buckets, chains = [0] * size, [0] * (1 + len(names))
    for number, name in enumerate(names, 1):
        code = 0
        for letter in name.encode():
            code = (code << 4) + letter
            code = (code ^ (code >> 24 & 0xF0)) & 0x0FFFFFFF
        chains[number], buckets[code % size] = buckets[code % size], number
    return struct.pack(f"<{2 + 2 * size + 1}I", size, 1 + len(names), *buckets, *chains)
