"""TensorFlow's BFC allocator on paper: best fit with coalescing, chunk by chunk.

Source: tensorflow/core/common_runtime/bfc_allocator.cc (in later releases xla/tsl/framework/bfc_allocator.cc).
"""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 256  # kMinAllocationSize: every chunk is a multiple
LARGEST_PADDING = 128 << 20  # a chunk keeps its rest unless that is as large as the request, or this large
_FIRST_GROWTH = 2 << 20


class OutOfMemoryError(Exception):
    """No chunk, and no room for a region, serves the request."""


class _Chunk:
    __slots__ = ("address", "free", "next", "previous", "region", "size")

    def __init__(self, address: int, size: int, region: int) -> None:
        self.address, self.size, self.region = address, size, region
        self.free = False
        self.previous: _Chunk | None = None
        self.next: _Chunk | None = None


class BfcAllocator:
    """A device's memory of ``limit_bytes``.

    regions: sizes of the regions that exist from the start; None: regions grow on demand (memory growth): 2 MiB,
    doubled each time, as large as needed, within the limit; wholly free ones are given back before giving up.
    """

    def __init__(self, limit_bytes: int, regions: tuple[int, ...] | None) -> None:
        self.limit_bytes = limit_bytes
        self.in_use_bytes = 0
        self.reach_bytes = 0  # from the start of the last region to the end of the highest chunk ever handed out of it
        # TensorFlow keeps its free chunks in bins of rising size; the first that is large enough is the same.
        self._order: list[tuple[int, int]] = []  # (size, address) of the free chunks
        self._free: dict[int, _Chunk] = {}  # by address
        self._used: dict[int, _Chunk] = {}
        self._regions: dict[int, tuple[int, _Chunk]] = {}  # number -> (size, a chunk in it)
        # Each region lies below the one before, as the operating system gives them out: of chunks of equal size the
        # one with the lowest address is taken (seen in recordings, which this order repeats address by address).
        self._base = 2 * limit_bytes if regions is None else sum(regions) + ALIGNMENT * (len(regions) - 1)
        self._growth = _FIRST_GROWTH
        self._grows = regions is None
        for size in regions or ():
            self._add_region(size)

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """(address, charged bytes) of a chunk for ``nbytes``. Raises OutOfMemoryError."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        chunk = self._find(size)
        if chunk is None and self._grows and self._extend(size):
            chunk = self._find(size)
        if chunk is None and self._grows and self._give_back_free_regions(size) and self._extend(size):
            chunk = self._find(size)
        if chunk is None:
            raise OutOfMemoryError
        self.in_use_bytes += chunk.size
        if chunk.region == len(self._regions) - 1:
            self.reach_bytes = max(self.reach_bytes, chunk.address + chunk.size - self._start)
        return chunk.address, chunk.size

    def release(self, address: int) -> None:
        """Give a chunk back; it joins free neighbours at once."""
        chunk = self._used.pop(address)
        self.in_use_bytes -= chunk.size
        after, before = chunk.next, chunk.previous
        if after is not None and after.free:
            self._forget(after)
            self._join(chunk, after)
        if before is not None and before.free:
            self._forget(before)
            self._join(before, chunk)
            chunk = before
        self._remember(chunk)

    @property
    def free_bytes(self) -> int:
        """What nobody holds, regions that may still grow included."""
        regions = sum(size for size, _ in self._regions.values())
        return max(regions, self.limit_bytes) - self.in_use_bytes

    def free_chunks(self) -> list[tuple[int, int]]:
        """(bytes, address) of every free chunk, in the order of size."""
        return list(self._order)

    def _find(self, size: int) -> _Chunk | None:
        at = bisect_left(self._order, (size, -1))
        if at == len(self._order):
            return None
        chunk = self._free.pop(self._order.pop(at)[1])
        chunk.free = False
        if chunk.size >= 2 * size or chunk.size - size >= LARGEST_PADDING:
            self._remember(self._split(chunk, size))
        self._used[chunk.address] = chunk
        return chunk

    def _split(self, chunk: _Chunk, size: int) -> _Chunk:
        """Cut ``chunk`` down to ``size``; returns the rest."""
        rest = _Chunk(chunk.address + size, chunk.size - size, chunk.region)
        rest.previous, rest.next = chunk, chunk.next
        if chunk.next is not None:
            chunk.next.previous = rest
        chunk.next, chunk.size = rest, size
        return rest

    @staticmethod
    def _join(first: _Chunk, second: _Chunk) -> None:
        first.size += second.size
        first.next = second.next
        if second.next is not None:
            second.next.previous = first

    def _remember(self, chunk: _Chunk) -> None:
        chunk.free = True
        self._free[chunk.address] = chunk
        insort(self._order, (chunk.size, chunk.address))

    def _forget(self, chunk: _Chunk) -> None:
        chunk.free = False
        del self._free[chunk.address]
        del self._order[bisect_left(self._order, (chunk.size, chunk.address))]

    def _add_region(self, size: int) -> None:
        number = len(self._regions)
        chunk = _Chunk(self._base - size, size, number)
        self._regions[number] = (size, chunk)
        self._start = chunk.address
        self._base -= size + ALIGNMENT  # regions never touch
        self._remember(chunk)

    def _extend(self, size: int) -> bool:
        taken = sum(region for region, _ in self._regions.values())
        available = (self.limit_bytes - taken) // ALIGNMENT * ALIGNMENT
        if size > available:
            return False
        larger = self._growth < size
        while self._growth < size:
            self._growth *= 2
        self._add_region(min(self._growth, available))
        if not larger:
            self._growth *= 2
        return True

    def _give_back_free_regions(self, size: int) -> bool:
        free = {c.region: c for c in self._free.values() if c.previous is None and c.next is None}
        if not free:
            return False
        for number, chunk in free.items():
            self._forget(chunk)
            self._regions[number] = (0, chunk)
        return True
