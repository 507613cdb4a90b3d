//! The columns of the events of one table, filled event by event; and their common buffers.
//!
//! In: values by row and column. Out: `Output`.

use crate::spec::Type;

/// Columns that events have besides their arguments, which follow from `ARGUMENTS` on.
pub const START: usize = 0;
pub const DURATION: usize = 1;
pub const NAME: usize = 2;
pub const PID: usize = 3;
pub const PID_TEXT: usize = 4;
pub const TID: usize = 5;
pub const TID_TEXT: usize = 6;
pub const ID: usize = 7;
pub const ID_TEXT: usize = 8;
pub const CATEGORY: usize = 9;
pub const PHASE: usize = 10;
pub const RAW_ARGUMENTS: usize = 11;
pub const ARGUMENTS: usize = 12;

/// A column as far as it is filled: rows at its end may be missing, which are null.
pub enum Column {
    Integers {
        values: Vec<i64>,
        valid: Vec<u8>,
    },
    Floats {
        values: Vec<f64>,
        valid: Vec<u8>,
    },
    /// Numbers of distinct texts; 0 is null.
    Codes(Vec<u32>),
    /// 0 is null, 1 false, 2 true.
    Flags(Vec<u8>),
}

/// Fill a column's missing rows with nulls. `None` if it has the row already: a key appears twice.
#[inline]
fn reach<T: Clone>(values: &mut Vec<T>, row: usize, null: T) -> Option<()> {
    if values.len() > row {
        return None;
    }
    values.resize(row, null);
    Some(())
}

/// Set a number, whose validity is kept from the first null on.
#[inline]
fn set_number<T: Clone + Default>(values: &mut Vec<T>, valid: &mut Vec<u8>, row: usize, value: T) -> Option<()> {
    let gap = values.len() < row;
    if gap && valid.is_empty() {
        valid.resize(values.len(), 1);
    }
    reach(values, row, T::default())?;
    values.push(value);
    if gap || !valid.is_empty() {
        valid.resize(row, 0);
        valid.push(1);
    }
    Some(())
}

fn set_null_number<T: Clone + Default>(values: &mut Vec<T>, valid: &mut Vec<u8>, row: usize) -> Option<()> {
    set_number(values, valid, row, T::default())?;
    valid.resize(row, 1);
    valid.push(0);
    Some(())
}

impl Column {
    pub fn new(kind: Type) -> Self {
        match kind {
            Type::Integer => Column::Integers { values: Vec::new(), valid: Vec::new() },
            Type::Float => Column::Floats { values: Vec::new(), valid: Vec::new() },
            Type::Flag => Column::Flags(Vec::new()),
            Type::Text | Type::TextOrInteger | Type::Json => Column::Codes(Vec::new()),
        }
    }

    #[inline]
    pub fn set_integer(&mut self, row: usize, value: i64) -> Option<()> {
        if let Column::Integers { values, valid } = self {
            set_number(values, valid, row, value)?;
        }
        Some(())
    }

    pub fn set_float(&mut self, row: usize, value: f64) -> Option<()> {
        if let Column::Floats { values, valid } = self {
            set_number(values, valid, row, value)?;
        }
        Some(())
    }

    /// Set a null that the text has.
    pub fn set_null(&mut self, row: usize) -> Option<()> {
        match self {
            Column::Integers { values, valid } => set_null_number(values, valid, row),
            Column::Floats { values, valid } => set_null_number(values, valid, row),
            Column::Codes(_) => self.set_code(row, 0),
            Column::Flags(values) => {
                reach(values, row, 0)?;
                values.push(0);
                Some(())
            }
        }
    }

    #[inline]
    pub fn set_code(&mut self, row: usize, value: u32) -> Option<()> {
        if let Column::Codes(values) = self {
            reach(values, row, 0)?;
            values.push(value);
        }
        Some(())
    }

    pub fn set_flag(&mut self, row: usize, value: bool) -> Option<()> {
        if let Column::Flags(values) = self {
            reach(values, row, 0)?;
            values.push(1 + u8::from(value));
        }
        Some(())
    }
}

/// The columns of all tables, one after another in a buffer for each type.
#[derive(Default)]
pub struct Output {
    /// Counts, and where each column is: `Reader::finish` says in which order.
    pub index: Vec<i64>,
    pub integers: Vec<i64>,
    pub floats: Vec<f64>,
    pub codes: Vec<u32>,
    pub bytes: Vec<u8>,
    /// Distinct texts with a NUL after each.
    pub texts: Vec<u8>,
    /// Distinct JSON values with a NUL after each, as `Dictionary::values` gives them.
    pub values: Vec<u8>,
}

impl Output {
    /// Append a column with all its rows; none that has no value.
    ///
    /// To the index: its number; 0 integers, 1 floats, 2 codes, 3 flags; where it begins in that buffer; where its
    /// validity begins among the bytes, −1 if no row is null.
    pub fn add(&mut self, number: usize, column: &Column, rows: usize) -> bool {
        let (kind, begins, validity) = match column {
            Column::Integers { values, valid } if !values.is_empty() => {
                let begins = self.integers.len();
                self.integers.extend_from_slice(values);
                self.integers.resize(begins + rows, 0);
                (0, begins, self.validity(valid, values.len(), rows))
            }
            Column::Floats { values, valid } if !values.is_empty() => {
                let begins = self.floats.len();
                self.floats.extend_from_slice(values);
                self.floats.resize(begins + rows, 0.0);
                (1, begins, self.validity(valid, values.len(), rows))
            }
            Column::Codes(values) if !values.is_empty() => {
                let begins = self.codes.len();
                self.codes.extend_from_slice(values);
                self.codes.resize(begins + rows, 0);
                (2, begins, -1)
            }
            Column::Flags(values) if !values.is_empty() => {
                let begins = self.bytes.len();
                self.bytes.extend_from_slice(values);
                self.bytes.resize(begins + rows, 0);
                (3, begins, -1)
            }
            _ => return false,
        };
        self.index.extend_from_slice(&[number as i64, kind, begins as i64, validity]);
        true
    }

    fn validity(&mut self, valid: &[u8], filled: usize, rows: usize) -> i64 {
        if valid.is_empty() && filled == rows {
            return -1;
        }
        let begins = self.bytes.len();
        self.bytes.extend_from_slice(valid);
        self.bytes.resize(begins + filled, 1);
        self.bytes.resize(begins + rows, 0);
        begins as i64
    }
}
