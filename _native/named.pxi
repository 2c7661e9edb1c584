"""Named tuples without their constructor, which is a Python function, and without ``tuple.__new__`` in its place."""

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_SIZE, PyTuple_SET_ITEM

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)


cdef inline object new(type kind, tuple fields):
    """A named tuple of that kind with these fields, which are as many as it has."""
    cdef Py_ssize_t n, items = PyTuple_GET_SIZE(fields)
    cdef object made = PyType_GenericAlloc(<PyTypeObject *>kind, items)
    for n in range(items):
        Py_INCREF(<object>fields[n])
        PyTuple_SET_ITEM(made, n, <object>fields[n])
    return made
