"""LoDTensors to and from Arrow, awkward arrays and pandas."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from covering import examples
from stepnet import LoDTensor
from stepnet.data import from_arrow, from_awkward, from_pandas, to_arrow, to_awkward, to_pandas
from stepnet.errors import LoDError, MissingExtraError
from strategies import lod_tensors, nested_rows

X = LoDTensor.from_lengths(torch.arange(18.0).view(9, 2), [[2, 0, 1], [3, 2, 4]])


def same(a, b):
    assert a.recursive_sequence_lengths() == b.recursive_sequence_lengths()
    assert a.values.dtype == b.values.dtype
    torch.testing.assert_close(a.values, b.values, rtol=0, atol=0)


@pytest.mark.parametrize("library", ["pyarrow", "awkward", "pandas"])
def test_ways_into_a_lodtensor_and_out_of_it(library):
    pytest.importorskip(library)
    if library == "pandas":
        back, keys = LoDTensor.from_pandas(X.to_pandas(["a", "b"], ["x", "y"]), ["x", "y"], ["a", "b"])
        assert back.lengths().tolist() == [3, 2, 4]
        assert len(keys) == 3
        torch.testing.assert_close(back.values, X.values)
    else:
        name = library.removeprefix("py")
        same(getattr(LoDTensor, f"from_{name}")(getattr(X, f"to_{name}")()), X)


@pytest.mark.covering(1)
@pytest.mark.parametrize("library", ["pyarrow", "awkward"])
@pytest.mark.parametrize("features", [(), (3,), (2, 3)], ids=str)
def test_there_and_back(library, features):
    pytest.importorskip(library)
    there, back = (to_arrow, from_arrow) if library == "pyarrow" else (to_awkward, from_awkward)

    @settings(max_examples=examples(30))
    @given(lod_tensors(features=features))
    def law(x):
        table = there(x)
        same(back(table), x)
        assert len(table) == len(x)
        if not features:
            lists = table.to_pylist() if library == "pyarrow" else table.to_list()
            assert lists == nested_rows(x.values, x.recursive_sequence_lengths())

    law()


DTYPES = [torch.float32, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("library", ["pyarrow", "awkward"])
def test_types(library, dtype):
    pytest.importorskip(library)
    there, back = (to_arrow, from_arrow) if library == "pyarrow" else (to_awkward, from_awkward)
    x = LoDTensor.from_lengths(torch.tensor([0, 1, 2, 0]).to(dtype), [[1, 3]])
    same(back(there(x)), x)


def test_memory_is_shared():
    arrow = pytest.importorskip("pyarrow")
    column = arrow.array([[1.0, 2.0], [], [3.0]])
    assert from_arrow(column).values.data_ptr() == column.values.buffers()[1].address
    one = arrow.chunked_array([column])
    assert from_arrow(one).values.data_ptr() == column.values.buffers()[1].address
    assert to_arrow(X).values.flatten().flatten().buffers()[1].address == X.values.data_ptr()
    ak = pytest.importorskip("awkward")
    array = ak.Array([[1.0, 2.0], [], [3.0]])
    data = array.layout.content.data
    assert (
        from_awkward(array).values.data_ptr() == data.__array_interface__["data"][0]
        or not data.flags.writeable
    )


def test_an_array_of_arrow_among_lists_is_sent_to_from_arrow():
    arrow = pytest.importorskip("pyarrow")
    for arrays in (arrow.array([[1.0, 2.0], [3.0]]), [arrow.array([1, 2])]):
        with pytest.raises(LoDError, match="from_arrow"):
            LoDTensor.from_sequences(arrays)


def test_slices_and_chunks_of_arrow():
    arrow = pytest.importorskip("pyarrow")
    column = arrow.chunked_array([[[1, 2], [3]], [[], [4, 5, 6]]])
    same(from_arrow(column), LoDTensor.from_sequences([[1, 2], [3], [], [4, 5, 6]]))
    same(from_arrow(column[1:]), LoDTensor.from_sequences([[3], [], [4, 5, 6]]))
    same(from_arrow(column.combine_chunks()[2:]), LoDTensor.from_sequences([[], [4, 5, 6]]))
    assert len(from_arrow(arrow.chunked_array([], arrow.list_(arrow.int64())))) == 0
    nested = arrow.array([[[1], [2, 3]], [], [[4]]])[1:]
    same(from_arrow(nested), LoDTensor(torch.tensor([4]), [[0, 0, 1], [0, 1]]))


def test_other_lists_of_arrow():
    arrow = pytest.importorskip("pyarrow")
    pairs = arrow.array([[[1], [2, 3]], [[], [4]]], arrow.list_(arrow.list_(arrow.int64()), 2))
    same(from_arrow(pairs[1:]), LoDTensor(torch.tensor([4]), [[0, 2], [0, 0, 1]]))
    lists = arrow.array([[5, 6], [], [7]])
    same(
        from_arrow(arrow.DictionaryArray.from_arrays(arrow.array([2, 0, 2]), lists)),
        LoDTensor.from_sequences([[7], [5, 6], [7]]),
    )
    encoded = arrow.ListArray.from_arrays([0, 2, 3], arrow.array([8, 9, 8]).dictionary_encode())
    same(from_arrow(encoded), LoDTensor.from_sequences([[8, 9], [8]]))
    none = LoDTensor(torch.empty(0), [[0, 0, 0]])
    same(from_arrow(arrow.array([[], []])), none)
    with pytest.raises(LoDError, match=r"column\.cast\(pyarrow\.list_"):
        from_arrow(arrow.array([[1, 2]], arrow.list_(arrow.int64(), 2)))


def test_columns_that_are_offered_to_arrow():
    """By the PyCapsule interface, as those of polars."""
    arrow = pytest.importorskip("pyarrow")
    lists = arrow.array([[1, 2], [], [3]])

    class Offers:
        def __arrow_c_stream__(self, requested_schema=None):
            return arrow.chunked_array([lists[:1], lists[1:]]).__arrow_c_stream__(requested_schema)

    class OffersOne:
        def __arrow_c_array__(self, requested_schema=None):
            return lists.__arrow_c_array__(requested_schema)

    class Fails(Offers):
        def __arrow_c_stream__(self, requested_schema=None):
            raise TypeError("of words")

    for column in (Offers(), OffersOne()):
        same(from_arrow(column), LoDTensor.from_sequences([[1, 2], [], [3]]))
    with pytest.raises(LoDError, match=r"cannot be had as Arrow's\n.*of words"):
        from_arrow(Fails())


def test_types_around_lists_of_arrow():
    """As Hugging Face's datasets has `Array2D`; and tensors of one shape in lists."""
    arrow = pytest.importorskip("pyarrow")

    class Named(arrow.ExtensionType):
        def __init__(self):
            super().__init__(arrow.list_(arrow.list_(arrow.float32(), 2)), "stepnet.test")

        def __arrow_ext_serialize__(self):
            return b""

    kind = Named()
    rows = [[[1, 2]], [], [[3, 4], [5, 6]]]
    column = arrow.ExtensionArray.from_storage(kind, arrow.array(rows, kind.storage_type))
    same(from_arrow(column[1:]), LoDTensor(torch.tensor([[3.0, 4], [5, 6]]), [[0, 0, 2]]))
    grids = arrow.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2))
    x = from_arrow(arrow.ListArray.from_arrays([0, 1, 3], grids)[1:])
    assert x.values.tolist() == np.arange(4.0, 12).reshape(2, 2, 2).tolist()
    assert x.values.data_ptr() == grids.storage.flatten().buffers()[1].address + 32
    turned = arrow.fixed_shape_tensor(arrow.int64(), [1, 2], permutation=[1, 0])
    tensors = arrow.ExtensionArray.from_storage(turned, arrow.array([[1, 2]], turned.storage_type))
    with pytest.raises(LoDError, match="takes lists of numbers"):
        from_arrow(arrow.ListArray.from_arrays([0, 1], tensors))


@pytest.mark.parametrize("large", [False, True])
def test_views_of_arrow(large):
    arrow = pytest.importorskip("pyarrow", minversion="16")
    view, number = (arrow.large_list_view, arrow.int64()) if large else (arrow.list_view, arrow.int32())
    column = arrow.array([[1, 2], [], [3, 4, 5], [6]], view(arrow.int64()))
    for part in (column, column[1:], column[1:3], column[:0], arrow.chunked_array([column, column[2:]])):
        x = from_arrow(part)
        assert [each.tolist() for each in x] == part.to_pylist()
    assert from_arrow(column).values.data_ptr() == column.values.buffers()[1].address
    nested = arrow.array([[[1], [2, 3]], [], [[], [4]]], view(view(arrow.int64())))
    same(from_arrow(nested[1:]), LoDTensor(torch.tensor([4]), [[0, 0, 2], [0, 0, 1]]))
    kind = arrow.LargeListViewArray if large else arrow.ListViewArray
    places = arrow.array([2, 0, 9, 1], number), arrow.array([2, 1, 0, 3], number)
    anyhow = kind.from_arrays(*places, arrow.array([5, 6, 7, 8]))
    assert [each.tolist() for each in from_arrow(anyhow)] == [[7, 8], [5], [], [6, 7, 8]]


def test_numbers_of_another_byte_order():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"of": [1, 0, 1], "p": np.array([1.0, 2.0, 3.0], dtype=">f8")})
    assert from_pandas(frame, "of", "p")[0].values.tolist() == [1.0, 3.0, 2.0]


def test_awkward_arrays_as_they_come():
    ak = pytest.importorskip("awkward")
    array = ak.Array([[[1, 2], []], [], [[3], [4, 5, 6]]])
    same(from_awkward(array[::-1]), LoDTensor.from_sequences([[[3], [4, 5, 6]], [], [[1, 2], []]]))
    assert from_awkward(ak.Array([[1, 2], [], [3]])[1:]).recursive_sequence_lengths() == [[0, 1]]
    pairs = ak.from_regular(ak.Array(np.arange(6).reshape(2, 3)), axis=1)
    assert from_awkward(pairs).recursive_sequence_lengths() == [[3, 3]]
    picked = ak.contents.IndexedArray(ak.index.Index64(np.array([2, 0])), ak.to_layout(array[:, :1]))
    same(from_awkward(ak.Array(picked)), LoDTensor.from_sequences([[[3]], [[1, 2]]]))
    same(from_awkward(ak.mask(ak.Array([[1], [2]]), [True, True])), LoDTensor.from_sequences([[1], [2]]))
    same(from_awkward(ak.Array([[], []])), LoDTensor(torch.empty(0), [[0, 0, 0]]))


def test_groups_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"user": ["b", "a", "b", None, "a", "b"], "day": [2, 1, 1, 1, 1, 2], "p": range(6), "q": 0.5}
    )
    x, keys = from_pandas(frame, "user", ["p", "q"])
    assert x.recursive_sequence_lengths() == [[3, 2, 1]]
    assert x.values.tolist() == [[0, 0.5], [2, 0.5], [5, 0.5], [1, 0.5], [4, 0.5], [3, 0.5]]
    assert keys["user"].tolist()[:2] == ["b", "a"]
    y, keys = from_pandas(frame, ["user", "day"], "p")
    assert y.recursive_sequence_lengths() == [[2, 1, 1], [2, 1, 2, 1]]
    assert y.values.tolist() == [0, 5, 2, 1, 4, 3]
    assert keys["day"].tolist() == [2, 1, 1, 1]
    frame["flag"], frame["count"] = True, pandas.array(range(6), dtype="Int64")
    mixed, _ = from_pandas(frame, "user", ["count", "q", "flag"])
    assert mixed.values.tolist()[:2] == [[0, 0.5, 1], [2, 0.5, 1]]
    none, keys = from_pandas(frame[:0], ["user", "day"], "q")
    assert none.recursive_sequence_lengths() == [[], []]
    assert len(keys) == 0


@pytest.mark.parametrize("kind", ["Int64", "int64[pyarrow]"])
def test_large_numbers_beside_a_missing_one_tell_groups_apart(kind):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    user = pandas.array([2**53, None, 2**53 + 1, None], dtype=kind)
    x, _ = from_pandas(pandas.DataFrame({"user": user, "p": range(4)}), "user", "p")
    assert [each.tolist() for each in x] == [[0], [1, 3], [2]]


def test_to_pandas():
    pytest.importorskip("pandas")
    frame = to_pandas(X, ["p", "q"], by=["document", "sentence"])
    assert list(frame.columns) == ["document", "sentence", "p", "q"]
    assert frame["document"].tolist() == [0] * 5 + [2] * 4
    assert frame["sentence"].tolist() == [0] * 3 + [1] * 2 + [2] * 4
    back, _ = from_pandas(frame, ["document", "sentence"], ["p", "q"])
    assert back.recursive_sequence_lengths() == [[2, 1], [3, 2, 4]]  # who has no rows is in no table
    assert torch.equal(back.values, X.values)
    assert to_pandas(LoDTensor(torch.zeros(2), [[0, 2]]), "p").shape == (2, 2)
    for names in (["p"], ["sentence", "p"]):
        with pytest.raises(LoDError, match="a name for each feature"):
            to_pandas(X, names, by=["document", "sentence"])
    for names in ([[1], [2]], np.zeros(2), {}):
        with pytest.raises(LoDError, match="names of columns"):
            to_pandas(X, names)


def test_what_others_cannot_hold():
    pytest.importorskip("pyarrow")
    pytest.importorskip("awkward")
    for write in (to_arrow, to_awkward):
        with pytest.raises(LoDError, match="numpy has no such numbers"):
            write(LoDTensor(torch.ones(2, dtype=torch.bfloat16), [[0, 2]]))
    x = LoDTensor(torch.tensor([1 + 2j, 3j]), [[0, 1, 2]])
    assert torch.equal(from_awkward(to_awkward(x)).values, x.values)
    for values in (x.values, torch.ones(2, 0)):
        with pytest.raises(LoDError, match="no complex numbers, and no rows without numbers"):
            to_arrow(x.with_values(values))


def test_rows_without_numbers():
    arrow, ak = pytest.importorskip("pyarrow"), pytest.importorskip("awkward")
    rows = [[[], []], [], [[]]]
    column = arrow.array(rows, arrow.list_(arrow.list_(arrow.float32(), 0)))
    for x in (from_arrow(column), from_awkward(ak.to_regular(ak.Array(rows), axis=2))):
        assert x.values.shape == (3, 0)
        assert x.lengths().tolist() == [2, 0, 1]


def test_names_of_any_kind():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({0: [1, 2, 1], ("a", "b"): [1.0, 2.0, 3.0]})
    for names in ([("a", "b")], frame.columns[1:]):
        assert from_pandas(frame, 0, names)[0].values.tolist() == [[1.0], [3.0], [2.0]]
    frame = pandas.DataFrame([[1, 1, 2.0]], columns=["k", "k", "x"])
    with pytest.raises(LoDError, match="or several of one name"):
        from_pandas(frame, "k", "x")


def test_what_no_lod_tensor_can_hold():
    arrow = pytest.importorskip("pyarrow")
    for column, text in (
        (arrow.array([[1, None]]), "the rows hold nulls"),
        (arrow.array([[1], None]), "the lists of level 0 hold nulls"),
        (arrow.array([["a"]]), "takes lists of numbers"),
        (arrow.array([1, 2]), "no lists of any length"),
        (arrow.array([[0]], arrow.list_(arrow.date32())), "takes numbers"),
        ([[1]], "takes an Array or a ChunkedArray"),
    ):
        with pytest.raises(LoDError, match=text):
            from_arrow(column)


def test_what_no_lod_tensor_can_hold_of_others():
    ak, pandas = pytest.importorskip("awkward"), pytest.importorskip("pandas")
    for array, text in (
        (ak.Array([[1, None]]), "takes lists of numbers"),
        (ak.Array([["a"]]), "takes lists of numbers"),
        (ak.Array([1, 2]), "no lists of any length"),
        (ak.Record({"a": 1}), "takes an awkward array"),
        ({}, "takes an awkward array"),
        (None, "takes an awkward array"),
        (object(), "takes an awkward array"),
        (ak.to_backend(ak.Array([[1]]), "typetracer"), "in the memory of the CPU"),
    ):
        with pytest.raises(LoDError, match=text):
            from_awkward(array)
    frame = pandas.DataFrame({"a": [1], "b": ["x"]})
    with pytest.raises(LoDError, match="no such column"):
        from_pandas(frame, "a", "c")
    with pytest.raises(LoDError, match="torch has no such numbers"):
        from_pandas(frame.astype({"a": np.longdouble}), "b", "a")
    with pytest.raises(LoDError, match="reset_index"):
        from_pandas(frame.set_index("b"), "b", "a")
    with pytest.raises(LoDError, match="takes columns of numbers"):
        from_pandas(frame, "a", "b")
    with pytest.raises(LoDError, match="'a' tell no sequences apart"):
        from_pandas(pandas.DataFrame({"a": [[1]], "b": [1]}), "a", "b")
    with pytest.raises(LoDError, match="takes a DataFrame"):
        from_pandas(frame.groupby("a"), "a", "b")


@pytest.mark.parametrize("name", ["pyarrow", "awkward", "pandas"])
def test_a_library_that_is_missing(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    call = {
        "pyarrow": lambda: to_arrow(X),
        "awkward": lambda: to_awkward(X),
        "pandas": lambda: to_pandas(X, ["p", "q"]),
    }[name]
    with pytest.raises(MissingExtraError, match=r"pip install 'stepnet\[tables\]'"):
        call()
