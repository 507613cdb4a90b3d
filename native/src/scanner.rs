//! Reads JSON values from a text, and declines (`None`) whatever is not valid or not plain.
//!
//! In: bytes that are valid UTF-8. Out: integers, times in nanoseconds, and the extents of strings and other values.

/// Arrays and objects nested deeper than this are declined.
const MAX_DEPTH: u32 = 48;
/// Times from here on, in whole µs, are beyond what int64 nanoseconds may hold with a margin for sums.
const MAX_US: i64 = 4_611_686_018_427_000;
/// Durations from here on, in whole µs, are damage or close to it.
const MAX_DURATION_US: i64 = 4_000_000_000_000;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Part of a text: where it starts and ends, and whether it has escapes.
#[derive(Clone, Copy, Default)]
pub struct Span {
    pub start: usize,
    pub end: usize,
    pub escaped: bool,
}

pub struct Scanner<'a> {
    pub text: &'a [u8],
    pub at: usize,
}

/// Eight bytes as an integer whose lowest byte is the first.
fn word(text: &[u8], at: usize) -> Option<u64> {
    let bytes = text.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The high bits of the bytes of `w` that are `byte`; exact up to the first of them.
fn equal(w: u64, byte: u8) -> u64 {
    let difference = w ^ (ONES * u64::from(byte));
    difference.wrapping_sub(ONES) & !difference & HIGHS
}

/// The high bits of the bytes of `w` below 0x20; exact up to the first of them.
fn control(w: u64) -> u64 {
    w.wrapping_sub(ONES * 0x20) & !w & HIGHS
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Scanner { text, at: 0 }
    }

    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Skip white space; the byte after it.
    #[inline]
    pub fn next_token(&mut self) -> Option<u8> {
        loop {
            match self.peek()? {
                b' ' | b'\n' | b'\t' | b'\r' => self.at += 1,
                other => return Some(other),
            }
            while word(self.text, self.at) == Some(ONES * 0x20) {
                self.at += 8;
            }
        }
    }

    /// Skip white space and one given byte.
    #[inline]
    pub fn expect(&mut self, wanted: u8) -> Option<()> {
        if self.next_token()? != wanted {
            return None;
        }
        self.at += 1;
        Some(())
    }

    /// After a value in an array or object: true if another follows, false if `close` ends it.
    #[inline]
    pub fn more(&mut self, close: u8) -> Option<bool> {
        let found = self.next_token()?;
        self.at += 1;
        match found {
            b',' => Some(true),
            other if other == close => Some(false),
            _ => None,
        }
    }

    /// Whether the value here is `null`, which is then skipped.
    #[inline]
    pub fn null(&mut self) -> Option<bool> {
        if self.next_token()? != b'n' {
            return Some(false);
        }
        self.word(b"null")?;
        Some(true)
    }

    /// Skip a part of the text that is here once more. False if something else is here.
    #[inline]
    pub fn again(&mut self, part: Span) -> bool {
        let size = part.end - part.start;
        let (Some(here), Some(known)) = (self.text.get(self.at..self.at + size), self.text.get(part.start..part.end))
        else {
            return false;
        };
        if here != known {
            return false;
        }
        self.at += size;
        true
    }

    pub fn word(&mut self, wanted: &[u8]) -> Option<()> {
        if !self.text.get(self.at..)?.starts_with(wanted) {
            return None;
        }
        self.at += wanted.len();
        Some(())
    }

    /// A key without escapes, and the colon after it.
    #[inline]
    pub fn key(&mut self) -> Option<Span> {
        let key = self.string()?;
        if key.escaped {
            return None;
        }
        self.expect(b':')?;
        Some(key)
    }

    /// A string: its extent without the quotes.
    #[inline]
    pub fn string(&mut self) -> Option<Span> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            if let Some(w) = word(self.text, self.at) {
                let special = equal(w, b'"') | equal(w, b'\\') | control(w);
                if special == 0 {
                    self.at += 8;
                    continue;
                }
                self.at += (special.trailing_zeros() / 8) as usize;
            }
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(Span { start, end: self.at - 1, escaped });
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                byte if byte < 0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    /// An escape, decoded. Lone surrogates and NUL are declined.
    pub fn escape(&mut self) -> Option<char> {
        let kind = *self.text.get(self.at + 1)?;
        self.at += 2;
        Some(match kind {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                let code = if (0xd800..0xdc00).contains(&first) {
                    self.word(b"\\u")?;
                    let second = self.hex()?;
                    if !(0xdc00..0xe000).contains(&second) {
                        return None;
                    }
                    0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                } else {
                    first
                };
                if code == 0 {
                    return None;
                }
                char::from_u32(code)?
            }
            _ => return None,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let mut value = 0;
        for &digit in digits {
            value = value * 16 + char::from(digit).to_digit(16)?;
        }
        Some(value)
    }

    /// Digits without leading zeros: their value and number. More than 18 are declined.
    #[inline]
    fn digits(&mut self) -> Option<i64> {
        let start = self.at;
        let mut value: i64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            if self.at - start >= 18 {
                return None;
            }
            value = value * 10 + i64::from(digit - b'0');
            self.at += 1;
        }
        let size = self.at - start;
        if size == 0 || (size > 1 && self.text[start] == b'0') {
            return None;
        }
        Some(value)
    }

    /// An integer of up to 18 digits, written without point and exponent.
    #[inline]
    pub fn integer(&mut self) -> Option<i64> {
        let negative = self.next_token()? == b'-';
        if negative {
            self.at += 1;
        }
        let value = self.digits()?;
        if matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        Some(if negative { -value } else { value })
    }

    /// A number of microseconds with up to three decimals, in nanoseconds.
    #[inline]
    fn nanoseconds(&mut self, limit_us: i64) -> Option<i64> {
        let whole = self.digits()?;
        if whole >= limit_us {
            return None;
        }
        let mut value = whole * 1000;
        if self.peek() == Some(b'.') {
            self.at += 1;
            let mut unit = 100;
            let start = self.at;
            while let Some(digit @ b'0'..=b'9') = self.peek() {
                if unit == 0 {
                    return None;
                }
                value += i64::from(digit - b'0') * unit;
                unit /= 10;
                self.at += 1;
            }
            if self.at == start {
                return None;
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            return None;
        }
        Some(value)
    }

    /// An instant, ns.
    #[inline]
    pub fn instant(&mut self) -> Option<i64> {
        self.next_token()?;
        self.nanoseconds(MAX_US)
    }

    /// A duration, ns; −1 if it is negative.
    #[inline]
    pub fn duration(&mut self) -> Option<i64> {
        if self.next_token()? != b'-' {
            return self.nanoseconds(MAX_DURATION_US);
        }
        self.at += 1;
        if self.nanoseconds(MAX_DURATION_US)? == 0 {
            None
        } else {
            Some(-1)
        }
    }

    /// Any number as its nearest float.
    pub fn float(&mut self) -> Option<f64> {
        self.next_token()?;
        let start = self.at;
        self.number()?;
        let text = std::str::from_utf8(&self.text[start..self.at]).ok()?;
        if text.len() > 40 {
            return None;
        }
        let value: f64 = text.parse().ok()?;
        if value.is_finite() {
            Some(value)
        } else {
            None
        }
    }

    /// Skip a number.
    fn number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        let start = self.at;
        self.skip_digits()?;
        if self.at - start > 1 && self.text[start] == b'0' {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        Some(())
    }

    fn skip_digits(&mut self) -> Option<()> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at > start {
            Some(())
        } else {
            None
        }
    }

    /// Any value: its extent.
    #[inline]
    pub fn value(&mut self) -> Option<Span> {
        self.next_token()?;
        let start = self.at;
        self.skip(0)?;
        Some(Span { start, end: self.at, escaped: false })
    }

    /// Skip a value, which is checked completely.
    pub fn skip(&mut self, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.next_token()? {
            b'"' => {
                self.string()?;
            }
            b'[' => {
                self.at += 1;
                if self.next_token()? == b']' {
                    self.at += 1;
                    return Some(());
                }
                loop {
                    self.skip(depth + 1)?;
                    if !self.more(b']')? {
                        break;
                    }
                }
            }
            b'{' => {
                self.at += 1;
                if self.next_token()? == b'}' {
                    self.at += 1;
                    return Some(());
                }
                loop {
                    self.string()?;
                    self.expect(b':')?;
                    self.skip(depth + 1)?;
                    if !self.more(b'}')? {
                        break;
                    }
                }
            }
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            b'n' => self.word(b"null")?,
            b'-' | b'0'..=b'9' => self.number()?,
            _ => return None,
        }
        Some(())
    }
}

/// The text of a string that has escapes.
pub fn unescaped(text: &[u8], into: &mut Vec<u8>) -> Option<()> {
    let mut scanner = Scanner::new(text);
    let mut utf8 = [0; 4];
    while let Some(byte) = scanner.peek() {
        if byte == b'\\' {
            let found = scanner.escape()?;
            into.extend_from_slice(found.encode_utf8(&mut utf8).as_bytes());
        } else {
            into.push(byte);
            scanner.at += 1;
        }
    }
    Some(())
}
