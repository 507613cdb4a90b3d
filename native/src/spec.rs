//! What the events are: the categories, and the arguments of each. Python describes them, from the structs that it
//! decodes into itself, so that there is one description.
//!
//! In: lines of fields that are separated by tabs. Out: `Spec`.

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Type {
    Integer,
    Float,
    Flag,
    Text,
    /// A text or an integer, which is kept as text.
    TextOrInteger,
    /// Any JSON, as written.
    Json,
}

/// The arguments of events of one kind.
#[derive(Default)]
pub struct Kind {
    pub fields: Vec<(Vec<u8>, Type)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arguments {
    /// Ranges (phase X) with the arguments of a kind.
    Kind(usize),
    /// Arrows (phases s, t, f), whose arguments are not needed.
    Skipped,
    /// Ranges and instants (phases X, i, I) whose arguments stay text.
    Json,
}

pub struct Category {
    pub name: Vec<u8>,
    pub arguments: Arguments,
}

#[derive(Default)]
pub struct Spec {
    pub kinds: Vec<Kind>,
    pub categories: Vec<Category>,
    /// Instants of this name have arguments of this kind.
    pub memory: (Vec<u8>, usize),
}

impl Spec {
    /// Lines: `kind`; `field TYPE NAME` of the last kind; `category NAME ARGUMENTS`; `memory NAME KIND`.
    pub fn parse(text: &str) -> Option<Spec> {
        let mut spec = Spec::default();
        for line in text.lines() {
            let parts: Vec<&str> = line.split('\t').collect();
            match parts.as_slice() {
                ["kind"] => spec.kinds.push(Kind::default()),
                ["field", kind, name] => {
                    let found = match *kind {
                        "integer" => Type::Integer,
                        "float" => Type::Float,
                        "flag" => Type::Flag,
                        "text" => Type::Text,
                        "text_or_integer" => Type::TextOrInteger,
                        "json" => Type::Json,
                        _ => return None,
                    };
                    spec.kinds.last_mut()?.fields.push((name.as_bytes().to_vec(), found));
                }
                ["category", name, arguments] => {
                    let arguments = match *arguments {
                        "skipped" => Arguments::Skipped,
                        "json" => Arguments::Json,
                        kind => Arguments::Kind(kind.parse().ok()?),
                    };
                    spec.categories.push(Category { name: name.as_bytes().to_vec(), arguments });
                }
                ["memory", name, kind] => spec.memory = (name.as_bytes().to_vec(), kind.parse().ok()?),
                _ => return None,
            }
        }
        let known = |arguments: Arguments| !matches!(arguments, Arguments::Kind(kind) if kind >= spec.kinds.len());
        let complete = spec.memory.1 < spec.kinds.len() && spec.categories.iter().all(|each| known(each.arguments));
        if complete {
            Some(spec)
        } else {
            None
        }
    }

    /// The arguments of a category's events; of those without one, whose number is the number of categories, JSON.
    pub fn arguments(&self, category: usize) -> Arguments {
        self.categories.get(category).map_or(Arguments::Json, |known| known.arguments)
    }
}
