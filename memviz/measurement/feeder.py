"""Real data for a trial: what `model.fit` takes, as numpy batches that another process or thread than training makes.

The trainer takes one batch per step from a pipe, so that no pipeline counts as the device's memory. A function is
called in a child process, ``python -m memviz.measurement.feeder``; an object that is here already is read here.
"""

from __future__ import annotations

import base64
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
import optree

from memviz.child.process import Channel, ChildEndedError, ChildProcess, inherited
from memviz.models.network import in_a_line
from memviz.setup import BACKEND
from memviz.units import dtype_bytes

WAYS = (
    "a tf.data.Dataset, a keras.utils.PyDataset, a generator, a tuple (features, labels) of arrays, or a function that "
    "returns one of these"
)


class Feeder:
    """The parent's hold on what feeds a trial. receiving: the end of the pipe that the trainer inherits.

    Raises TypeError for what cannot be data, ValueError for a function that cannot be taken to another process.
    """

    def __init__(self, data: Any, batch_size: int) -> None:
        if isinstance(data, type) or not (callable(data) or _is_tuple_of_arrays(data) or _epochs_of(data, 1)):
            raise TypeError(f"data={_named(data)} is not possible; it is {WAYS}.")
        self._data, self._batch_size = packed(data) if callable(data) else data, batch_size
        self._in_a_process = callable(data)
        self.child: ChildProcess | None = None  # once it is started
        self.receiving, self._sending = Pipe(duplex=False)

    def start(self, folder: str) -> None:
        """Begin to feed. folder: for the temporary files of a function; the parent removes it."""
        self.receiving.close()  # the trainer has its own
        if not self._in_a_process:
            arguments = self._sending, self._data, self._batch_size
            threading.Thread(target=serve, args=arguments, name="memviz-feeder", daemon=True).start()
            return
        environment = BACKEND | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": folder}
        with self._sending:
            self.child = ChildProcess("memviz.measurement.feeder", environment, self._sending)
        with suppress(ChildEndedError):  # the trainer will notice
            self.child.send({"data": self._data, "batch_size": self._batch_size, "folder": folder})

    def close(self) -> None:
        """End the process, if there is one; a thread ends when it next has a batch to send."""
        self.receiving.close()
        if self.child is not None:
            self.child.kill()
        elif self._in_a_process:
            self._sending.close()


def serve(connection: Connection, data: Any, batch_size: int) -> None:
    """Send batch after batch until there are none or nobody takes them; what the data raises is sent, too.

    A finite dataset begins again when it ends, as `fit` does with every epoch; a generator cannot.
    """
    with connection:
        try:
            for batch in _batches(data, batch_size):
                connection.send(("batch", _as_arrays(batch)))
            connection.send(("ended", ""))
        except BrokenPipeError:
            pass  # the trainer has all it wanted, or is gone
        except Exception as error:
            connection.send(
                ("failed", str(error) if isinstance(error, _UnsuitableError) else f"raised {_line(error)}.")
            )


def packed(data: Callable[..., Any]) -> str:
    """A function as text for the child. Raises ValueError where it holds what cannot be taken there."""
    import cloudpickle

    try:
        return base64.b64encode(cloudpickle.dumps(data)).decode("ascii")
    except Exception as error:
        raise ValueError(
            f"The function {getattr(data, '__name__', 'data')} cannot be taken to another process ({_line(error)}); "
            "let it make what it needs itself, or give what it returns."
        ) from error


class _UnsuitableError(ValueError):
    """The data is nothing to train on, in our own words."""


def _batches(data: Any, batch_size: int) -> Iterator[Any]:
    if callable(data) and _epochs_of(data, batch_size) is None:
        name = getattr(data, "__name__", "data")
        wants_size = "batch_size" in inspect.signature(data).parameters
        data = data(batch_size=batch_size) if wants_size else data()
        if not _is_tuple_of_arrays(data) and _epochs_of(data, batch_size) is None:
            raise _UnsuitableError(f"function {name} returned {_named(data)}; it returns {WAYS}.")
    epochs = _epochs_of(data, batch_size)
    assert epochs is not None
    for epoch in epochs:
        empty = True
        for batch in epoch:
            empty = False
            yield batch
        if empty:
            raise _UnsuitableError("is empty: there is not a single batch in it.")


def _epochs_of(data: Any, batch_size: int) -> Iterator[Iterable[Any]] | None:
    """The data once, and again, and again; a generator only once. None where it is no data."""
    if _is_tuple_of_arrays(data):
        return _again(lambda: _slices(data, batch_size))
    if _is_a(data, "tensorflow", "data.Dataset"):
        return _again(lambda: data)
    if _is_a(data, "keras", "utils.PyDataset"):
        return _again(lambda: _of_py_dataset(data))
    if isinstance(data, Iterator):
        return iter([data])
    return None


def _again(epoch: Callable[[], Iterable[Any]]) -> Iterator[Iterable[Any]]:
    while True:
        yield epoch()


def _is_a(data: Any, library: str, name: str) -> bool:
    """Whether it is of a library's class; what the library is not loaded for cannot be."""
    found = sys.modules.get(library)
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, type) and isinstance(data, found)


def _is_tuple_of_arrays(data: Any) -> bool:
    leaves: Any = isinstance(data, tuple) and 2 <= len(data) <= 3 and optree.tree_leaves(data)  # type: ignore[arg-type]
    return bool(leaves) and all(hasattr(leaf, "shape") for leaf in leaves)


def _of_py_dataset(data: Any) -> Iterator[Any]:
    count = data.num_batches
    number = 0
    while count is None or number < count:
        yield data[number]
        number += 1
    data.on_epoch_end()


def _slices(arrays: Any, batch_size: int) -> Iterator[Any]:
    """(features, labels) of one batch after the other, in order; the last one may be smaller."""
    arrays = optree.tree_map(np.asarray, arrays)
    counts = {len(array) if array.ndim else 0 for array in optree.tree_leaves(arrays)}
    if len(counts) > 1:
        raise _UnsuitableError(f"has arrays of {', '.join(map(str, sorted(counts)))} examples; each needs as many.")
    for start in range(0, min(counts), batch_size):
        yield optree.tree_map(lambda array: array[start : start + batch_size], arrays)  # noqa: B023


def _as_arrays(batch: Any) -> Any:
    if not isinstance(batch, list | tuple) or not 2 <= len(batch) <= 3:
        raise _UnsuitableError(
            f"gave a batch that is {_named(batch)}; each one is (features, labels), or with sample weights."
        )
    whole: Any = tuple(batch)
    return optree.tree_map(_array, whole)


def _array(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    try:
        dtype_bytes(array.dtype.name)
    except ValueError as error:
        raise _UnsuitableError(
            f"holds values that no dense tensor of numbers holds ({_named(leaf)}); encode or pad them in the pipeline."
        ) from error
    return array


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {in_a_line(error)}"


def _named(value: Any) -> str:
    """A short word for a value, which may be large."""
    if hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) < 80 else type(value).__name__


def main() -> None:
    """Serve the data that the parent names, in a process that sees no GPU and has the pipeline to itself."""
    import cloudpickle
    import tensorflow as tf

    channel = Channel()
    tf.get_logger().setLevel("ERROR")
    request = channel.receive()
    channel.leaves_behind = request["folder"]
    connection = inherited(2)
    try:
        data = cloudpickle.loads(base64.b64decode(request["data"]))
    except Exception as error:
        connection.send(("failed", f"cannot be read in a process of its own: {_line(error)}."))
        return
    serve(connection, data, request["batch_size"])


if __name__ == "__main__":
    main()
