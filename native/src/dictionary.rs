//! Distinct texts, numbered by their first appearance.
//!
//! In: parts of one text. Out: a number for each, from 1 on, and the distinct texts.

use crate::scanner::{unescaped, Span};

pub struct Dictionary {
    /// Numbers by hash, in a power of two of slots; 0 is free.
    slots: Vec<u32>,
    entries: Vec<(Span, u64)>,
    seed: u64,
}

fn mixed(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

fn hash(bytes: &[u8], seed: u64) -> u64 {
    let mut state = seed ^ (bytes.len() as u64);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        state = mixed(state ^ u64::from_le_bytes(eight), 0x9e37_79b9_7f4a_7c15);
    }
    let mut last = [0; 8];
    let rest = chunks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    mixed(state ^ u64::from_le_bytes(last), 0xd6e8_feb8_6659_fd93 ^ seed)
}

impl Dictionary {
    /// The seed differs from process to process: no file can be made to have texts of one hash.
    pub fn new(seed: u64) -> Self {
        Dictionary { slots: vec![0; 1024], entries: Vec::new(), seed }
    }

    #[inline]
    pub fn number(&mut self, text: &[u8], span: Span) -> u32 {
        let bytes = &text[span.start..span.end];
        let hash = hash(bytes, self.seed);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let number = self.slots[slot];
            if number == 0 {
                break;
            }
            let (known, known_hash) = self.entries[number as usize - 1];
            if known_hash == hash && &text[known.start..known.end] == bytes {
                return number;
            }
            slot = (slot + 1) & mask;
        }
        self.entries.push((span, hash));
        let number = self.entries.len() as u32;
        self.slots[slot] = number;
        if self.entries.len() * 2 > self.slots.len() {
            self.grow();
        }
        number
    }

    /// Where the text of a number is.
    #[inline]
    pub fn span(&self, number: u32) -> Option<Span> {
        Some(self.entries.get((number as usize).checked_sub(1)?)?.0)
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 4 - 1;
        self.slots = vec![0; mask + 1];
        for (index, (_, hash)) in self.entries.iter().enumerate() {
            let mut slot = *hash as usize & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = index as u32 + 1;
        }
    }

    pub fn size(&self) -> usize {
        self.entries.len()
    }

    /// The distinct texts with a NUL after each, and the length of the longest.
    pub fn texts(&self, text: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut joined = self.buffer();
        let mut longest = 0;
        for (span, _) in &self.entries {
            let (bytes, before) = (&text[span.start..span.end], joined.len());
            if span.escaped {
                unescaped(bytes, &mut joined)?;
            } else {
                joined.extend_from_slice(bytes);
            }
            longest = longest.max(joined.len() - before);
            joined.push(0);
        }
        Some((joined, longest))
    }

    /// The distinct JSON values with a NUL after each: without white space, and a text as its content. Those that
    /// Python might write in another way (numbers with fractions, escapes, objects) are as they are, after `AS_WRITTEN`.
    pub fn values(&self, text: &[u8]) -> Vec<u8> {
        let mut joined = self.buffer();
        for (span, _) in &self.entries {
            let (bytes, before) = (&text[span.start..span.end], joined.len());
            if !compact(bytes, &mut joined) {
                joined.truncate(before);
                joined.push(AS_WRITTEN);
                joined.extend_from_slice(bytes);
            }
            joined.push(0);
        }
        joined
    }

    fn buffer(&self) -> Vec<u8> {
        Vec::with_capacity(self.entries.iter().map(|(span, _)| span.end - span.start + 2).sum())
    }
}

/// No JSON begins with it, and no text has it without an escape.
const AS_WRITTEN: u8 = 1;
/// Integers of so many characters fit any type.
const SHORT_INTEGER: usize = 18;

/// Append a valid JSON value without white space, a text as its content. False if there is more to be done than that.
fn compact(value: &[u8], into: &mut Vec<u8>) -> bool {
    if let Some(content) = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        into.extend_from_slice(content);
        return !content.contains(&b'\\');
    }
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        let end = match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {
                at += 1;
                continue;
            }
            b'"' => {
                let rest = &value[at + 1..];
                let Some(size) = rest.iter().position(|&each| each == b'"') else {
                    return false;
                };
                if rest[..size].contains(&b'\\') {
                    return false;
                }
                at + size + 2
            }
            b'-' | b'0'..=b'9' => {
                let rest = &value[at + 1..];
                let size = 1 + rest.iter().position(|each| !each.is_ascii_digit()).unwrap_or(rest.len());
                let written = &value[at..at + size];
                let goes_on = matches!(value.get(at + size), Some(b'.' | b'e' | b'E'));
                if goes_on || size > SHORT_INTEGER || written == b"-0" {
                    return false;
                }
                at + size
            }
            b'{' => return false,
            _ => at + 1,
        };
        into.extend_from_slice(&value[at..end]);
        at = end;
    }
    true
}
