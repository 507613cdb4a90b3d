//! Reads one piece from standard input through the C functions, for AFL++, which finds inputs that reach new branches.
//!
//! `native/fuzz.sh` builds it so that AFL++ sees the branches, and runs it.

use std::io::Read;
use std::mem::MaybeUninit;

use rankscope_reader::abi::{rankscope_free, rankscope_read, rankscope_reader, Buffers};

extern "C" {
    fn __afl_persistent_loop(most: u32) -> i32;
    fn __afl_manual_init();
}

// AFL++ looks for these texts in the program.
#[used]
static PERSISTENT: [u8; 23] = *b"##SIG_AFL_PERSISTENT##\0";
#[used]
static DEFERRED: [u8; 26] = *b"##SIG_AFL_DEFER_FORKSRV##\0";

fn main() {
    let description = std::fs::read(std::env::args().nth(1).expect("the description")).expect("the description");
    let reader = unsafe { rankscope_reader(description.as_ptr(), description.len()) };
    assert!(!reader.is_null());
    let mut input = Vec::new();
    unsafe { __afl_manual_init() };
    while unsafe { __afl_persistent_loop(10_000) } != 0 {
        input.clear();
        std::io::stdin().read_to_end(&mut input).expect("the input");
        for only_memory in [0, 1] {
            // Of exactly this size, so that a read beyond its end is seen.
            let text = input.clone().into_boxed_slice();
            let mut buffers = MaybeUninit::<Buffers>::uninit();
            let found = unsafe { rankscope_read(reader, text.as_ptr(), text.len(), only_memory, buffers.as_mut_ptr()) };
            if !found.is_null() {
                let sizes = *unsafe { buffers.assume_init() }.sizes();
                assert!(sizes.iter().sum::<usize>() < 64 * text.len() + 4096, "{sizes:?} of {}", text.len());
                unsafe { rankscope_free(found) };
            }
        }
    }
}
