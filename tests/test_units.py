import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.units import GIB, dtype_bytes, format_bytes, parse_bytes, tensor_bytes, unit_for

SIZES = st.integers(1, 2**60)
SYSTEMS = st.sampled_from(["binary", "decimal"])


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("9513 MiB", 9513 * 1024**2),
        ("11 GB", 11 * 10**9),
        ("9.29 GiB", 9975061545),
        (" 1.5gib ", 3 * 2**29),
        ("17,700 MiB", 17700 * 2**20),
        ("1_000 kB", 10**6),
        ("9007199254740993 B", 9007199254740993),  # not a float's value
        (42, 42),
    ],
)
def test_parse(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["9 GBB", "9513", "", "GB", "-1 GB", "9,29 GiB", "1e3 MB", "9 G", "1 2 MB"])
def test_what_is_not_a_size_is_refused_with_the_units(text):
    with pytest.raises(ValueError, match=r"is not a size: write a number and a unit \(B, KiB.*'9513 MiB'") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("nothing", [0, -5, "0 MB", "0.4 B"])
def test_no_bytes_are_refused(nothing):
    with pytest.raises(ValueError, match="at least 1 byte"):
        parse_bytes(nothing)


@pytest.mark.parametrize("other", [1.5, None, True, b"1 GB"])
def test_other_types_are_refused(other):
    with pytest.raises(TypeError, match="whole number of bytes or text"):
        parse_bytes(other)


@pytest.mark.parametrize(
    ("nbytes", "binary", "decimal"),
    [
        (0, "0 B", "0 B"),
        (1023, "1,023 B", "1.02 kB"),
        (1024, "1.00 KiB", "1.02 kB"),
        (2**20 - 1, "1.00 MiB", "1.05 MB"),
        (3_081_931_460, "2.87 GiB", "3.08 GB"),
        (-3_081_931_460, "-2.87 GiB", "-3.08 GB"),
        (-5, "-5 B", "-5 B"),
        (-0.2, "0 B", "0 B"),
        (5000 * 2**40, "5,000.00 TiB", "5,497.56 TB"),
    ],
)
def test_format(nbytes, binary, decimal):
    assert format_bytes(nbytes) == binary
    assert format_bytes(nbytes, "decimal") == decimal


@given(SIZES, SYSTEMS, st.integers(0, 6))
def test_text_and_back_is_within_half_of_the_last_digit(nbytes, system, digits):
    text = format_bytes(nbytes, system, digits)
    factor, label = unit_for(parse_bytes(text), system)
    assert text.endswith(f" {label}")
    # Half a unit of the last digit, a byte for parsing to whole bytes, and what a float cannot hold of 2^60.
    assert abs(parse_bytes(text) - nbytes) <= factor / 10**digits / 2 + 1 + nbytes * 2**-51


@given(SIZES, SIZES, SYSTEMS)
def test_a_larger_size_never_reads_smaller(one, other, system):
    small, large = sorted([one, other])
    assert parse_bytes(format_bytes(small, system)) <= parse_bytes(format_bytes(large, system))


@given(SIZES, SYSTEMS)
def test_the_unit_is_the_largest_that_is_not_larger(nbytes, system):
    factor, label = unit_for(nbytes, system)
    base = {"binary": 1024, "decimal": 1000}[system]
    assert parse_bytes(f"1 {label}") == factor <= nbytes
    assert nbytes < factor * base or label in ("TiB", "TB")


def test_tensors():
    assert tensor_bytes((6_019_376, 128), "float32") == 3_081_920_512
    assert tensor_bytes((), "int64") == 8
    assert tensor_bytes((3, 0), "bfloat16") == 0
    assert parse_bytes("1 GiB") == GIB
    with pytest.raises(ValueError, match="dtype 'string' has no known size; known are bool"):
        dtype_bytes("string")


def test_dtype_sizes_are_tensorflow_s():
    import tensorflow as tf

    from memviz import units

    for name, nbytes in units._DTYPE_BYTES.items():
        assert tf.dtypes.as_dtype(name).size == nbytes, name
