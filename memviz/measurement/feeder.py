"""Real data for a trial: what `model.fit` takes, as numpy batches that another process or thread than training makes.

The trainer takes one batch per step from a pipe, so that no pipeline counts as the device's memory. A function is
called in a child process, ``python -m memviz.measurement.feeder``; an object that is here already is read here.
"""

from __future__ import annotations

import base64
import inspect
import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from memviz.child.process import Channel, ChildEndedError, ChildProcess, inherited
from memviz.models.network import in_a_line
from memviz.setup import BACKEND
from memviz.units import dtype_bytes

WAYS = (
    "a tf.data.Dataset, a keras.utils.PyDataset, a generator, a tuple (features, labels) of arrays, or a function that "
    "returns one of these"
)


class Feeder:
    """The parent's hold on what feeds a trial with ``count`` batches. receiving: the trainer's end of the pipe.

    Raises TypeError for what cannot be data, ValueError for a function that cannot be taken to another process.
    """

    def __init__(self, data: Any, batch_size: int, count: int) -> None:
        if isinstance(data, type) or not (callable(data) or _is_tuple_of_arrays(data) or _epochs_of(data, 1)):
            raise TypeError(f"data={_named(data)} is not possible; it is {WAYS}.")
        self._data = packed(data) if callable(data) else data
        self._batch_size, self._count = batch_size, count
        self._in_a_process = callable(data)
        self.child: ChildProcess | None = None  # once it is started
        self.receiving, self._sending = Pipe(duplex=False)

    def start(self, folder: str) -> None:
        """Begin to feed. folder: for the temporary files of a function; the parent removes it."""
        self.receiving.close()  # the trainer has its own
        if not self._in_a_process:
            arguments = self._sending, self._data, self._batch_size, self._count
            threading.Thread(target=serve, args=arguments, name="memviz-feeder", daemon=True).start()
            return
        environment = BACKEND | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": folder}
        with self._sending:
            self.child = ChildProcess("memviz.measurement.feeder", environment, self._sending)
        with suppress(ChildEndedError):  # the trainer will notice
            asked = {"data": self._data, "batch_size": self._batch_size, "count": self._count}
            self.child.send(asked | {"folder": folder})

    def close(self) -> None:
        """End the process, if there is one; a thread ends when it next has a batch to send."""
        self.receiving.close()
        if self.child is not None:
            self.child.kill()


def serve(connection: Connection, data: Any, batch_size: int, count: int) -> None:
    """Send ``count`` batches, or as many as there are, as long as somebody takes them, and what the data raises.

    A finite dataset begins again when it ends, as `fit` does with every epoch; a generator cannot.
    """
    with connection, suppress(BrokenPipeError):  # the trainer is gone
        for message in _messages(data, batch_size, count):
            connection.send(message)


def _messages(data: Any, batch_size: int, count: int) -> Iterator[tuple[str, Any]]:
    """(kind, told): "batch" and the batch, "note" or "failed" and a sentence that begins with "The data", "ended"."""
    try:
        data = _called(data, batch_size)
        arrays = [leaf for leaf in _leaves(data) if isinstance(leaf, np.ndarray)] if _is_tuple_of_arrays(data) else []
        if others := {array.dtype.name for array in arrays if _is_floating(array)} - {_floatx()}:
            kinds = ", ".join(sorted(others))
            yield "note", f"holds arrays of {kinds}; as fit does, they are cast to {_floatx()} on the host."
        for batch in itertools.islice(_batches(data, batch_size), count):
            yield "batch", _as_arrays(batch)
        yield "ended", ""
    except GeneratorExit:
        raise
    except _UnsuitableError as error:
        yield "failed", str(error)
    except BaseException as error:  # sys.exit too
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
        yield "failed", f"raised {_line(error)} (line {frames[-1].lineno} of {frames[-1].filename})."


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


def _called(data: Any, batch_size: int) -> Any:
    """What a function returns; other data as it is."""
    if _epochs_of(data, batch_size) is not None or not callable(data):
        return data
    given = "batch_size" in inspect.signature(data).parameters and "batch_size" not in getattr(data, "keywords", {})
    found = data(batch_size=batch_size) if given else data()
    if _epochs_of(found, batch_size) is None:
        name = getattr(data, "__name__", "data")
        raise _UnsuitableError(f"function {name} returned {_named(found)}; it returns {WAYS}.")
    return found


def _batches(data: Any, batch_size: int) -> Iterator[Any]:
    for epoch in _epochs_of(data, batch_size) or ():
        batches = iter(epoch)
        if (first := next(batches, None)) is None:
            raise _UnsuitableError("is empty: there is not a single batch in it, or it is a generator that was read.")
        yield from itertools.chain([first], batches)  # directly, it would close the user's own generator


def _epochs_of(data: Any, batch_size: int) -> Iterator[Iterable[Any]] | None:
    """The data once, and again, and again; a generator only once. None where it is no data."""
    if _is_tuple_of_arrays(data):
        return (_slices(data, batch_size) for _ in itertools.count())
    if hasattr(data, "element_spec"):  # a tf.data.Dataset
        return itertools.repeat(data)
    if hasattr(data, "num_batches"):  # a keras.utils.PyDataset
        return (_of_py_dataset(data) for _ in itertools.count())
    return iter([data]) if isinstance(data, Iterator) else None


def _is_tuple_of_arrays(data: Any) -> bool:
    leaves = _leaves(data) if isinstance(data, tuple) and 2 <= len(data) <= 3 else []
    return bool(leaves) and all(hasattr(leaf, "shape") for leaf in leaves)


def _of_py_dataset(data: Any) -> Iterator[Any]:
    yield from (data[n] for n in (itertools.count() if data.num_batches is None else range(data.num_batches)))
    data.on_epoch_end()


def _slices(arrays: Any, batch_size: int) -> Iterator[Any]:
    """(features, labels) of one batch after the other, in order; the last one may be smaller. Floating values are cast
    to Keras' floatx, as its `ArrayDataAdapter` does; those of datasets and generators are not.
    """
    arrays = _mapped(np.asarray, arrays)
    counts = {len(array) if array.ndim else 0 for array in _leaves(arrays)}
    if len(counts) > 1:
        raise _UnsuitableError(f"has arrays of {', '.join(map(str, sorted(counts)))} examples; each needs as many.")
    for start in range(0, min(counts), batch_size):
        here = slice(start, start + batch_size)
        yield _mapped(lambda a: a[here].astype(_floatx()) if _is_floating(a) else a[here], arrays)  # noqa: B023


def _is_floating(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating)


def _floatx() -> str:
    keras = sys.modules.get("keras")
    return "float32" if keras is None else keras.config.floatx()


def _mapped(act: Callable[[Any], Any], nested: Any) -> Any:
    """The structure as plain dictionaries, lists and tuples, with what ``act`` makes of each leaf; None stays."""
    if isinstance(nested, Mapping):
        return {name: _mapped(act, value) for name, value in nested.items()}
    if isinstance(nested, list | tuple):
        return (list if isinstance(nested, list) else tuple)(_mapped(act, value) for value in nested)
    return None if nested is None else act(nested)


def _leaves(nested: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(found.append, nested)
    return found


def _as_arrays(batch: Any) -> Any:
    if isinstance(batch, list | tuple):
        batch = tuple(batch[:-1] if len(batch) == 3 and batch[2] is None else batch)
    if not isinstance(batch, tuple) or not 2 <= len(batch) <= 3 or any(part is None for part in batch):
        raise _UnsuitableError(
            f"gave a batch that is {_named(batch)}; each one is (features, labels), or with sample weights."
        )
    return _mapped(_array, batch)


def _array(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    try:
        dtype_bytes(array.dtype.name)
    except ValueError as error:
        raise _UnsuitableError(
            f"holds values that no dense tensor of numbers holds ({_named(leaf)}); encode or pad them in the pipeline."
        ) from error
    return array


def _line(error: BaseException) -> str:
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
    serve(connection, data, request["batch_size"], request["count"])


if __name__ == "__main__":
    main()
