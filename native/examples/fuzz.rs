//! Reads mutated pieces for a while, through the C functions: for a build with a sanitizer or with checks.
//!
//! `cargo run --example fuzz -- DESCRIPTION FOLDER SEED SECONDS`: the description that Python gives to
//! `rankscope_reader`, and a folder of pieces (JSON arrays of events). Mutants that are taken are mutated further.
//! `python -m tests.ingest.native_cases pieces FOLDER` writes both.

use std::time::{Duration, Instant};

use rankscope_reader::abi::{rankscope_free, rankscope_read, rankscope_reader, Buffers, Reader};

const MOST_KEPT: usize = 4000;
const TOKENS: [&[u8]; 40] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud83d\\ude00",
    b"\\ud800",
    b"null",
    b"true",
    b"false",
    b"-",
    b"0",
    b"9",
    b".",
    b"e",
    b"E+",
    b"1e400",
    b"999999999999999999",
    b"9223372036854775807",
    b"0.123",
    b" ",
    b"\n",
    b"        ",
    b"\"ph\":\"X\",",
    b"\"cat\":\"kernel\",",
    b"\"name\":\"[memory]\",",
    b"\"args\":{},",
    b"\"args\":{\"stream\":7},",
    b"\"ts\":1.5,",
    b"\"pid\":\"a\",",
    b"\xff",
    b"\xc3\xa9",
    b"\0",
    b"\"External id\":null,",
    b"[[[[[[[[[[[[[[[[",
    b"\"id\":1,",
];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }
}

fn mutate(random: &mut Random, text: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..[1, 1, 1, 2, 4, 16][random.below(6)] {
        let at = random.below(text.len() + 1);
        let size = [1, 2, 8, 40, 300][random.below(5)];
        match random.below(8) {
            0 if at < text.len() => text[at] ^= 1 << random.below(8),
            1 => {
                text.drain(at..(at + size).min(text.len()));
            }
            2 => {
                let from = random.below(other.len());
                let part = other[from..(from + size).min(other.len())].to_vec();
                text.splice(at..at, part);
            }
            3 | 4 => {
                let token = TOKENS[random.below(TOKENS.len())];
                text.splice(at..at, token.iter().copied());
            }
            5 => {
                let token = TOKENS[random.below(TOKENS.len())];
                let end = (at + token.len()).min(text.len());
                text.splice(at..end, token.iter().copied());
            }
            6 => {
                let part = text[at..(at + size).min(text.len())].to_vec();
                text.splice(at..at, part);
            }
            _ => text.truncate(at.max(1)),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let description = std::fs::read(&arguments[1]).expect("the description");
    let mut corpus: Vec<Vec<u8>> = std::fs::read_dir(&arguments[2])
        .expect("the folder")
        .map(|each| std::fs::read(each.expect("an entry").path()).expect("a piece"))
        .collect();
    let mut random = Random(arguments[3].parse().expect("a seed"));
    let end = Instant::now() + Duration::from_secs(arguments[4].parse().expect("seconds"));
    let originals = corpus.len();
    let reader = unsafe { rankscope_reader(description.as_ptr(), description.len()) };
    assert!(!reader.is_null());
    let (mut runs, mut taken) = (0u64, 0u64);
    while Instant::now() < end {
        for _ in 0..256 {
            let (one, other) = (random.below(corpus.len()), random.below(corpus.len()));
            let mut text = corpus[one].clone();
            if runs as usize >= originals {
                mutate(&mut random, &mut text, &corpus[other]);
            }
            // Of exactly this size, so that a read beyond its end is seen.
            let text = text.into_boxed_slice();
            let mut buffers = std::mem::MaybeUninit::<Buffers>::uninit();
            let found = unsafe {
                rankscope_read(reader, text.as_ptr(), text.len(), u32::from(runs % 4 == 3), buffers.as_mut_ptr())
            };
            runs += 1;
            if found.is_null() {
                continue;
            }
            taken += 1;
            let buffers = unsafe { buffers.assume_init() };
            check(&buffers, text.len());
            unsafe { rankscope_free(found) };
            if corpus.len() < MOST_KEPT {
                corpus.push(text.into_vec());
            } else {
                let at = originals + random.below(MOST_KEPT - originals);
                corpus[at] = text.into_vec();
            }
        }
    }
    // So that a sanitizer finds no leak but those of results.
    drop(unsafe { Box::from_raw(reader as *mut Reader) });
    println!("{runs} pieces, {taken} taken");
}

/// Every column lies in its buffer, every code has a text, and memory is bounded by the size of the text.
fn check(buffers: &Buffers, size: usize) {
    let (index, codes) = (buffers.index(), buffers.codes());
    let sizes = buffers.sizes();
    let (texts, values, groups) = (index[0], index[1], index[3] as usize);
    assert!(sizes.iter().sum::<usize>() < 64 * size + 4096, "{sizes:?} of {size}");
    let events: i64 = (0..groups).map(|group| index[4 + 3 * group + 2]).sum();
    let mut at = 4 + 3 * groups;
    let tables = index[at];
    at += 1;
    let mut rows_in_all = 0;
    for _ in 0..tables {
        let (rows, columns) = (index[at + 3] as usize, index[at + 4] as usize);
        rows_in_all += rows as i64;
        at += 5;
        for _ in 0..columns {
            let (kind, begins, validity) = (index[at + 1] as usize, index[at + 2] as usize, index[at + 3]);
            at += 4;
            assert!(begins + rows <= sizes[kind + 1]);
            assert!(validity < 0 || validity as usize + rows <= sizes[4]);
            if kind == 2 {
                let most = texts.max(values).max(64);
                assert!(codes[begins..begins + rows].iter().all(|&code| i64::from(code) <= most));
            }
        }
    }
    assert_eq!(at, index.len());
    assert_eq!(events, rows_in_all);
}
