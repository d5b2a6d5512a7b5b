//! Loans as memoryviews.
//!
//! The memory of a loan is a ring's, or a buffer of the socket's; Python must not see it once the loan is over, however
//! many views the program has made of the one that it got. Of these Python itself keeps count: each holds what the first
//! one was made of, an array of ctypes at the loan's place. While that lives, there are views, and the loan cannot be ended
//! (BufferError, as of a mapping that is closed). It holds the loan, and that the socket, whoever forgets them.
//!
//! The buffer protocol would be a class of our own, but is none of abi3 before Python 3.11.

use crate::own;
use fordway::{MESSAGE_BYTES_MAX, Peeked, Reserved};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMemoryView, PySlice, PyWeakrefMethods, PyWeakrefReference};
use std::sync::Mutex;

/// What is lent.
pub enum Lent {
    /// Room to write what is to be sent.
    Room(Reserved<'static>),
    /// What is to be received.
    Shown(Peeked<'static>),
}

/// A loan, until it is ended.
#[pyclass(frozen)]
struct Loan(Mutex<Option<Lent>>);

/// A loan that a socket has out.
pub struct Out {
    loan: Py<Loan>,
    /// What its views hold.
    array: Py<PyWeakrefReference>,
}

/// A view of it, which the socket notes.
pub fn lend<'py>(
    py: Python<'py>,
    noted: &Mutex<Option<Out>>,
    mut lent: Lent,
    bytes: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, may_write) = match &mut lent {
        Lent::Room(room) => (room.as_mut_ptr() as usize, true),
        Lent::Shown(shown) => (shown.as_ptr() as usize, false),
    };
    let loan = Py::new(py, Loan(Mutex::new(Some(lent))))?;
    let array = kind(py)?.call_method1("from_address", (place,))?;
    array.setattr("loan", &loan)?;
    let whole = PyMemoryView::from(&array)?.call_method1("cast", ("B",))?;
    let view = whole.get_item(PySlice::new(py, 0, bytes as isize, 1))?;
    let array = PyWeakrefReference::new(&array)?.unbind();
    *own(noted) = Some(Out { loan, array });
    match may_write {
        true => Ok(view),
        false => view.call_method0("toreadonly"),
    }
}

/// An array as long as the longest loan: one of each length would be a class of Python's each.
pub fn kind(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static KIND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let kind = KIND.get_or_try_init(py, || {
        let byte = py.import("ctypes")?.getattr("c_ubyte")?;
        byte.mul(MESSAGE_BYTES_MAX).map(Bound::unbind)
    })?;
    Ok(kind.bind(py))
}

/// The loan that the socket has out, if no view of it is left.
pub fn end(py: Python<'_>, noted: &Mutex<Option<Out>>) -> PyResult<Option<Lent>> {
    let mut noted = own(noted);
    if let Some(out) = &*noted
        && out.array.bind(py).upgrade().is_some()
    {
        let what = "release the views of the loan first";
        return Err(PyBufferError::new_err(what));
    }
    Ok(noted.take().and_then(|out| own(&out.loan.get().0).take()))
}
