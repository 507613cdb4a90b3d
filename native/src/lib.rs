//! The compiled reader of rankscope: a JSON array of events becomes columns, without an object per event.
//!
//! The C functions here are the only unsafe code. `rankscope.ingest.native` calls them through ctypes.

#![deny(unsafe_code)]

pub mod columns;
pub mod dictionary;
pub mod reader;
pub mod scanner;
pub mod spec;

#[allow(unsafe_code)]
pub mod abi {
    use std::collections::hash_map::RandomState;
    use std::hash::{BuildHasher, Hasher};
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::ptr::{null, null_mut};

    use crate::columns::Output;
    use crate::spec::Spec;

    /// Python refuses a library that has another number than it was written for.
    const VERSION: u32 = 3;

    pub struct Reader {
        spec: Spec,
        seed: u64,
    }

    /// Where the buffers are, and how many elements each has.
    #[repr(C)]
    pub struct Buffers {
        index: *const i64,
        integers: *const i64,
        floats: *const f64,
        codes: *const u32,
        bytes: *const u8,
        texts: *const u8,
        values: *const u8,
        sizes: [usize; 7],
    }

    impl Buffers {
        /// Those of a result that is not freed yet, for tests.
        pub fn index(&self) -> &[i64] {
            unsafe { std::slice::from_raw_parts(self.index, self.sizes[0]) }
        }

        pub fn codes(&self) -> &[u32] {
            unsafe { std::slice::from_raw_parts(self.codes, self.sizes[3]) }
        }

        pub fn sizes(&self) -> &[usize; 7] {
            &self.sizes
        }
    }

    #[no_mangle]
    pub extern "C" fn rankscope_version() -> u32 {
        VERSION
    }

    /// A reader for a description of events (`spec.rs`); null if that is wrong. It is never freed: there is one.
    ///
    /// # Safety
    /// `text` has `size` bytes.
    #[no_mangle]
    pub unsafe extern "C" fn rankscope_reader(text: *const u8, size: usize) -> *const Reader {
        let bytes = unsafe { std::slice::from_raw_parts(text, size) };
        let Some(spec) = std::str::from_utf8(bytes).ok().and_then(Spec::parse) else {
            return null();
        };
        Box::into_raw(Box::new(Reader { spec, seed: RandomState::new().build_hasher().finish() | 1 }))
    }

    /// Read an array of events (`reader::read` says of what kind). Null if it is declined; else give the result to `rankscope_free` after use.
    ///
    /// # Safety
    /// `reader` is of `rankscope_reader`, `text` has `size` bytes, and `into` can be written.
    #[no_mangle]
    pub unsafe extern "C" fn rankscope_read(
        reader: *const Reader,
        text: *const u8,
        size: usize,
        only_memory: u32,
        into: *mut Buffers,
    ) -> *mut Output {
        let (reader, text) = unsafe { (&*reader, std::slice::from_raw_parts(text, size)) };
        let found =
            catch_unwind(AssertUnwindSafe(|| crate::reader::read(&reader.spec, reader.seed, text, only_memory != 0)));
        let Ok(Some(output)) = found else {
            return null_mut();
        };
        let output = Box::new(output);
        let buffers = Buffers {
            index: output.index.as_ptr(),
            integers: output.integers.as_ptr(),
            floats: output.floats.as_ptr(),
            codes: output.codes.as_ptr(),
            bytes: output.bytes.as_ptr(),
            texts: output.texts.as_ptr(),
            values: output.values.as_ptr(),
            sizes: [
                output.index.len(),
                output.integers.len(),
                output.floats.len(),
                output.codes.len(),
                output.bytes.len(),
                output.texts.len(),
                output.values.len(),
            ],
        };
        unsafe { into.write(buffers) };
        Box::into_raw(output)
    }

    /// # Safety
    /// `output` is of `rankscope_read`, and is not used afterwards.
    #[no_mangle]
    pub unsafe extern "C" fn rankscope_free(output: *mut Output) {
        drop(unsafe { Box::from_raw(output) });
    }
}
