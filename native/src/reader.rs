//! Reads a JSON array of events into columns by table, or declines it (`None`).
//!
//! It takes events of the categories that Python describes (`event_types.CATEGORIES`), and not all of them: whatever is
//! unusual is declined, and Python decides what it means. So what it takes has one meaning.
//!
//! In: the text of an array. Out: `Output`.

use crate::columns::*;
use crate::dictionary::Dictionary;
use crate::scanner::{Scanner, Span};
use crate::spec::{Arguments, Kind, Spec, Type};

/// The phases that are taken; Python has the same list.
const PHASES: [u8; 6] = *b"XstfiI";
const RANGE: usize = 0;
const INSTANT: usize = 4;
/// Longer texts are declined, so that positions and numbers fit 32 bits.
const MAX_BYTES: usize = 1 << 30;
/// So many keys of an event's arguments are guessed from the event before.
const GUESSED_KEYS: usize = 64;
/// Of so many names the last arguments are known; more of them share a place.
const RECENT_NAMES: usize = 1024;

/// The events of one table: ranges and instants by category, arrows and others together.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Range = 0,
    Arrow = 1,
    Other = 2,
    Instant = 3,
    Memory = 4,
}

struct Table<'s> {
    class: Class,
    category: usize,
    rows: usize,
    kind: Option<&'s Kind>,
    columns: Vec<Column>,
    /// What is before each argument's value, and the argument's column, as of the last event: mostly the next has the same.
    guesses: Vec<(Span, Option<usize>)>,
    /// For each name, the numbers of the last texts and JSON values of its events' arguments.
    recent: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Id {
    Absent,
    Integer(i64),
    Text(u32),
}

struct Event {
    phase: Option<usize>,
    category: Option<usize>,
    name: Option<(u32, bool)>,
    start: Option<i64>,
    duration: Option<i64>,
    pid: Id,
    tid: Id,
    id: Id,
    /// Where its arguments are, if what they are was not known yet.
    later: Option<usize>,
    table: Option<usize>,
    seen: u32,
}

struct Group {
    category: usize,
    phase: usize,
    count: usize,
    first: usize,
}

pub struct Reader<'a, 's> {
    scanner: Scanner<'a>,
    spec: &'s Spec,
    texts: Dictionary,
    values: Dictionary,
    tables: Vec<Table<'s>>,
    groups: Vec<Group>,
    events: usize,
    last_category: usize,
    /// What is before each value of an event, and its key, as of the last event of the same phase.
    guesses: [Vec<(Span, Key)>; PHASES.len() + 1],
    only_memory: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Key {
    Phase,
    Category,
    Name,
    Pid,
    Tid,
    Start,
    Duration,
    Id,
    Arguments,
    Unknown,
}

impl Key {
    fn of(name: &[u8]) -> Self {
        match name {
            b"ph" => Key::Phase,
            b"cat" => Key::Category,
            b"name" => Key::Name,
            b"pid" => Key::Pid,
            b"tid" => Key::Tid,
            b"ts" => Key::Start,
            b"dur" => Key::Duration,
            b"id" => Key::Id,
            b"args" => Key::Arguments,
            _ => Key::Unknown,
        }
    }
}

/// Read an array of events.
///
/// `only_memory`: they are instants of memory events without a category, as 2021's files have them, and nothing else;
/// else each has a known category.
pub fn read(spec: &Spec, seed: u64, text: &[u8], only_memory: bool) -> Option<Output> {
    if text.len() > MAX_BYTES || std::str::from_utf8(text).is_err() {
        return None;
    }
    let mut reader = Reader {
        scanner: Scanner::new(text),
        spec,
        texts: Dictionary::new(seed),
        values: Dictionary::new(seed),
        tables: Vec::new(),
        groups: Vec::new(),
        events: 0,
        last_category: 0,
        guesses: Default::default(),
        only_memory,
    };
    reader.scanner.expect(b'[')?;
    loop {
        reader.event()?;
        if !reader.scanner.more(b']')? {
            break;
        }
    }
    if reader.scanner.next_token().is_some() {
        return None;
    }
    reader.finish()
}

impl<'a, 's> Reader<'a, 's> {
    fn bytes(&self, span: Span) -> &'a [u8] {
        &self.scanner.text[span.start..span.end]
    }

    fn event(&mut self) -> Option<()> {
        self.scanner.expect(b'{')?;
        let mut event = Event {
            phase: None,
            category: self.only_memory.then_some(self.spec.categories.len()),
            name: None,
            start: None,
            duration: None,
            pid: Id::Absent,
            tid: Id::Absent,
            id: Id::Absent,
            later: None,
            table: None,
            seen: 0,
        };
        let mut position = 0;
        while let Some(key) = self.next_key(event.phase, position)? {
            position += 1;
            match key {
                Key::Phase => event.phase = Some(self.phase()?),
                Key::Category if self.only_memory => return None,
                Key::Category => event.category = Some(self.category()?),
                Key::Name => {
                    let name = self.scanner.string()?;
                    let is_memory = !name.escaped && self.bytes(name) == self.spec.memory.0;
                    if name.escaped && self.spells_memory(name) {
                        return None;
                    }
                    event.name = Some((self.texts.number(self.scanner.text, name), is_memory));
                }
                Key::Pid => event.pid = self.id()?,
                Key::Tid => event.tid = self.id()?,
                Key::Start => event.start = Some(self.scanner.instant()?),
                Key::Duration => {
                    if !self.scanner.null()? {
                        event.duration = Some(self.scanner.duration()?);
                    }
                }
                Key::Id => event.id = self.id()?,
                Key::Arguments => {
                    event.later = Some(self.scanner.at);
                    event.table = self.table(&event)?;
                    if event.table.is_some() {
                        self.arguments(&event)?;
                    } else {
                        self.scanner.skip(0)?;
                    }
                }
                Key::Unknown => {
                    self.scanner.skip(0)?;
                    continue;
                }
            }
            let bit = 1 << key as u32;
            if event.seen & bit != 0 {
                return None;
            }
            event.seen |= bit;
        }
        self.add(event)
    }

    /// The key of an event's next value, which then follows; `Some(None)` after the last.
    #[inline]
    fn next_key(&mut self, phase: Option<usize>, position: usize) -> Option<Option<Key>> {
        let guesses = &mut self.guesses[phase.map_or(PHASES.len(), |phase| phase)];
        let scanner = &mut self.scanner;
        if let Some((before, key)) = guesses.get(position) {
            if before.end > 0 && scanner.again(*before) {
                return Some(Some(*key));
            }
        }
        let start = scanner.at;
        if position > 0 && !scanner.more(b'}')? {
            return Some(None);
        }
        let name = scanner.key()?;
        scanner.next_token()?;
        let key = Key::of(&scanner.text[name.start..name.end]);
        if position < GUESSED_KEYS {
            // Keys before the phase are guessed apart, so that the first here may be empty.
            guesses.resize(guesses.len().max(position + 1), (Span::default(), Key::Unknown));
            guesses[position] = (Span { start, end: scanner.at, escaped: false }, key);
        }
        Some(Some(key))
    }

    /// Whether a name with escapes is that of memory events: too rare to be taken.
    fn spells_memory(&self, name: Span) -> bool {
        let mut plain = Vec::new();
        crate::scanner::unescaped(self.bytes(name), &mut plain).is_none() || plain == self.spec.memory.0
    }

    fn phase(&mut self) -> Option<usize> {
        let phase = self.scanner.string()?;
        match self.bytes(phase) {
            [byte] => PHASES.iter().position(|known| known == byte),
            _ => None,
        }
    }

    fn category(&mut self) -> Option<usize> {
        let span = self.scanner.string()?;
        let name = self.bytes(span);
        if self.spec.categories.get(self.last_category)?.name != name {
            self.last_category = self.spec.categories.iter().position(|each| each.name == name)?;
        }
        Some(self.last_category)
    }

    fn id(&mut self) -> Option<Id> {
        match self.scanner.next_token()? {
            b'"' => {
                let text = self.scanner.string()?;
                Some(Id::Text(self.texts.number(self.scanner.text, text)))
            }
            b'n' => {
                self.scanner.word(b"null")?;
                Some(Id::Absent)
            }
            _ => self.scanner.integer().map(Id::Integer),
        }
    }

    /// The table of an event. `Some(None)` if that is not known yet.
    fn table(&mut self, event: &Event) -> Option<Option<usize>> {
        let (Some(phase), Some(category), Some((_, is_memory))) = (event.phase, event.category, event.name) else {
            return Some(None);
        };
        let spec = self.spec;
        let (class, kind) = match spec.arguments(category) {
            Arguments::Json if self.only_memory && !(phase >= INSTANT && is_memory) => return None,
            Arguments::Kind(kind) if phase == RANGE => (Class::Range, Some(&spec.kinds[kind])),
            Arguments::Skipped if (RANGE + 1..INSTANT).contains(&phase) => (Class::Arrow, None),
            Arguments::Json if phase == RANGE => (Class::Other, None),
            Arguments::Json if phase >= INSTANT && is_memory => (Class::Memory, Some(&spec.kinds[spec.memory.1])),
            Arguments::Json if phase >= INSTANT => (Class::Instant, None),
            _ => return None,
        };
        let by_category = !matches!(class, Class::Arrow | Class::Other);
        let same = |table: &Table| table.class == class && (!by_category || table.category == category);
        if let Some(found) = self.tables.iter().position(same) {
            return Some(Some(found));
        }
        let mut types = vec![Type::Integer; ARGUMENTS];
        for column in [NAME, PID_TEXT, TID_TEXT, ID_TEXT, CATEGORY, PHASE, RAW_ARGUMENTS] {
            types[column] = Type::Text;
        }
        types.extend(kind.iter().flat_map(|kind| kind.fields.iter().map(|(_, each)| *each)));
        let columns = types.into_iter().map(Column::new).collect();
        self.tables.push(Table { class, category, rows: 0, kind, columns, guesses: Vec::new(), recent: Vec::new() });
        Some(Some(self.tables.len() - 1))
    }

    /// Read the arguments at `event.later` into its table's columns.
    fn arguments(&mut self, event: &Event) -> Option<()> {
        let table = &mut self.tables[event.table?];
        let row = table.rows;
        let Some(kind) = table.kind else {
            if table.class == Class::Arrow {
                return self.scanner.skip(0);
            }
            let value = self.scanner.value()?;
            let code = self.values.number(self.scanner.text, value);
            return table.columns[RAW_ARGUMENTS].set_code(row, code);
        };
        let recent = event.name?.0 as usize % RECENT_NAMES * kind.fields.len();
        if table.recent.len() < recent + kind.fields.len() {
            table.recent.resize(recent + kind.fields.len(), 0);
        }
        let scanner = &mut self.scanner;
        scanner.expect(b'{')?;
        if scanner.next_token()? == b'}' {
            scanner.at += 1;
            return Some(());
        }
        let mut position = 0;
        loop {
            let start = scanner.at;
            let field = match table.guesses.get(position) {
                Some((before, field)) if scanner.again(*before) => *field,
                _ => {
                    if position > 0 && !scanner.more(b'}')? {
                        return Some(());
                    }
                    let key = scanner.key()?;
                    scanner.next_token()?;
                    let name = &scanner.text[key.start..key.end];
                    let found = kind.fields.iter().position(|(known, _)| known == name);
                    let guess = (Span { start, end: scanner.at, escaped: false }, found);
                    if position < table.guesses.len() {
                        table.guesses[position] = guess;
                    } else if position < GUESSED_KEYS {
                        table.guesses.push(guess);
                    }
                    found
                }
            };
            position += 1;
            let Some(index) = field else {
                scanner.skip(0)?;
                continue;
            };
            let (column, last) = (&mut table.columns[ARGUMENTS + index], &mut table.recent[recent + index]);
            match kind.fields[index].1 {
                Type::Json => {
                    // Arrays, objects and texts end by themselves: if they begin as a known one does, they are that.
                    let same = self.values.span(*last).filter(|known| {
                        matches!(scanner.text[known.start], b'[' | b'{' | b'"') && scanner.again(*known)
                    });
                    if same.is_none() {
                        let value = scanner.value()?;
                        *last = self.values.number(scanner.text, value);
                    }
                    column.set_code(row, *last)?;
                }
                Type::Text if scanner.peek()? == b'"' => {
                    let quoted = |known: Span| Span { start: known.start - 1, end: known.end + 1, ..known };
                    let same = self.texts.span(*last).filter(|known| scanner.again(quoted(*known)));
                    if same.is_none() {
                        let text = scanner.string()?;
                        *last = self.texts.number(scanner.text, text);
                    }
                    column.set_code(row, *last)?;
                }
                kind => argument(scanner, &mut self.texts, column, kind, row)?,
            }
        }
    }

    /// Add an event, whose arguments may be in its table already.
    fn add(&mut self, mut event: Event) -> Option<()> {
        let (phase, category) = (event.phase?, event.category?);
        let (name, _) = event.name?;
        if event.table.is_none() {
            event.table = Some(self.table(&event)??);
            if let Some(at) = event.later {
                let end = std::mem::replace(&mut self.scanner.at, at);
                self.arguments(&event)?;
                self.scanner.at = end;
            }
        }
        let table = &mut self.tables[event.table?];
        let row = table.rows;
        table.rows += 1;
        let columns = &mut table.columns;
        columns[START].set_integer(row, event.start?)?;
        columns[DURATION].set_integer(row, event.duration.unwrap_or(-1))?;
        columns[NAME].set_code(row, name)?;
        for (id, column) in [(event.pid, PID), (event.tid, TID), (event.id, ID)] {
            match id {
                Id::Absent => {}
                Id::Integer(value) => columns[column].set_integer(row, value)?,
                Id::Text(code) => columns[column + 1].set_code(row, code)?,
            }
        }
        if table.class != Class::Range {
            columns[CATEGORY].set_code(row, category as u32 + 1)?;
            columns[PHASE].set_code(row, phase as u32 + 1)?;
        }
        let first = self.events;
        self.events += 1;
        match self.groups.iter_mut().find(|group| group.category == category && group.phase == phase) {
            Some(group) => group.count += 1,
            None => self.groups.push(Group { category, phase, count: 1, first }),
        }
        Some(())
    }

    /// Whether a table has events of a group.
    fn has(&self, table: &Table, group: &Group) -> bool {
        match table.class {
            Class::Range => group.phase == RANGE && group.category == table.category,
            Class::Arrow => (RANGE + 1..INSTANT).contains(&group.phase),
            Class::Other => group.phase == RANGE && self.spec.arguments(group.category) == Arguments::Json,
            Class::Instant | Class::Memory => group.phase >= INSTANT && group.category == table.category,
        }
    }

    /// The buffers, and their index: the numbers of distinct texts and values, and the longest text; the number of
    /// groups, and for each its category, phase and number of events; the number of tables, and for each its class,
    /// category, first group, rows and number of columns, and what `Output::add` says of each column.
    fn finish(mut self) -> Option<Output> {
        let mut out = Output::default();
        let longest;
        (out.texts, longest) = self.texts.texts(self.scanner.text)?;
        out.values = self.values.values(self.scanner.text);
        out.index = vec![self.texts.size() as i64, self.values.size() as i64, longest as i64];
        // As Python orders them: by the first appearance of the category, then by that of the phase.
        let (mut by_category, mut by_phase) = (vec![usize::MAX; self.spec.categories.len() + 1], [usize::MAX; 6]);
        for group in &self.groups {
            by_category[group.category] = by_category[group.category].min(group.first);
            by_phase[group.phase] = by_phase[group.phase].min(group.first);
        }
        self.groups.sort_by_key(|group| (by_category[group.category], by_phase[group.phase]));
        out.index.push(self.groups.len() as i64);
        for group in &self.groups {
            out.index.extend_from_slice(&[group.category as i64, group.phase as i64, group.count as i64]);
        }
        out.index.push(self.tables.len() as i64);
        for table in &self.tables {
            let first = self.groups.iter().position(|group| self.has(table, group))?;
            out.index.extend_from_slice(&[
                table.class as i64,
                table.category as i64,
                first as i64,
                table.rows as i64,
                0,
            ]);
            let counted = out.index.len() - 1;
            for (number, column) in table.columns.iter().enumerate() {
                out.index[counted] += i64::from(out.add(number, column, table.rows));
            }
        }
        Some(out)
    }
}

/// Read an argument that is a number, a flag, or null into its column; or what is a text or an integer.
#[inline]
fn argument(scanner: &mut Scanner, texts: &mut Dictionary, column: &mut Column, kind: Type, row: usize) -> Option<()> {
    let first = scanner.next_token()?;
    if first == b'n' {
        scanner.word(b"null")?;
        return column.set_null(row);
    }
    match kind {
        Type::Integer if first == b'"' => {
            let text = scanner.string()?;
            let mut inside = Scanner::new(&scanner.text[text.start..text.end]);
            inside.peek().filter(|byte| byte.is_ascii_digit() || *byte == b'-')?;
            let value = inside.integer()?;
            if inside.peek().is_some() {
                return None;
            }
            column.set_integer(row, value)
        }
        Type::Integer => column.set_integer(row, scanner.integer()?),
        Type::Float => column.set_float(row, scanner.float()?),
        Type::Flag if first == b't' => {
            scanner.word(b"true")?;
            column.set_flag(row, true)
        }
        Type::Flag => {
            scanner.word(b"false")?;
            column.set_flag(row, false)
        }
        Type::TextOrInteger if first != b'"' => {
            let start = scanner.at;
            if scanner.integer()? == 0 && first == b'-' {
                return None;
            }
            let span = Span { start, end: scanner.at, escaped: false };
            column.set_code(row, texts.number(scanner.text, span))
        }
        _ => {
            let text = scanner.string()?;
            column.set_code(row, texts.number(scanner.text, text))
        }
    }
}
