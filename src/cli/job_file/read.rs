//! From TOML to the words of a command line, with the line of each.

use clap::Command;
use clap::error::ErrorKind;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fields::{Field, Fields};
use super::problem::{Problem, said};

/// A field that a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// The name of its argument.
    pub(super) id: String,
    /// The line of the file.
    pub(super) line: usize,
    /// Its values; none: a switch.
    values: Vec<String>,
    /// A switch that is off.
    off: bool,
    /// Variables of the environment in its value.
    pub(super) variables: Vec<String>,
    /// Those of them that the environment does not have: a flag may say the whole.
    lacking: Vec<String>,
}

impl Given {
    fn flag(&self) -> String {
        format!("--{}", self.id.replace('_', "-"))
    }

    /// The same on a command line.
    pub(super) fn words(&self) -> impl Iterator<Item = String> {
        let values = self.values.iter();
        let words: Vec<String> = match (self.off, self.values.is_empty()) {
            (true, _) => Vec::new(),
            (_, true) => vec![self.flag()],
            _ => values
                .map(|value| format!("{}={value}", self.flag()))
                .collect(),
        };
        words.into_iter()
    }

    /// What the environment lacks for its value.
    pub(super) fn lack(&self) -> Option<Problem> {
        let (id, name) = (&self.id, self.lacking.first()?);
        let lack = format!("{id}: the environment has no {name}, which `${{{name}}}` asks for");
        Some(Problem::at(self.line, lack))
    }

    /// Why the argument refuses a value, if it does by itself.
    pub(super) fn refusal(&self, command: &Command) -> Option<Problem> {
        if !self.lacking.is_empty() {
            return None;
        }
        let error = command.clone().try_get_matches_from(self.words()).err()?;
        // What it wants of others is told with the whole.
        let alone = matches!(
            error.kind(),
            ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::TooManyValues
        );
        alone.then(|| Problem::at(self.line, self.without_flag(&said(&error))))
    }

    /// `invalid value '5' for '--quorum <SHARE>': give...` as a file's reader knows it.
    fn without_flag(&self, said: &str) -> String {
        let Some((before, rest)) = said.split_once(" for '--") else {
            return said.to_owned();
        };
        let after = rest.split_once('\'').map_or("", |(_, after)| after);
        let before = before.strip_prefix("invalid value ").unwrap_or(before);
        format!("{} = {before}{after}", self.id)
    }
}

/// The fields of `text`, and what is wrong with it.
pub(super) fn fields(
    text: &str,
    known: &Fields,
    environment: &dyn Fn(&str) -> Option<String>,
) -> (Vec<Given>, Vec<Problem>) {
    let mut reader = Reader {
        text,
        known,
        environment,
        given: Vec::new(),
        problems: Vec::new(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        let problem = Problem::at(reader.line(at), error.message());
        reader.problems.push(problem);
    }
    for (key, value) in table.get_ref() {
        match value.get_ref() {
            DeValue::Table(inner) => reader.table(key, inner),
            _ => reader.field("", key, value),
        }
    }
    reader.given.sort_by_key(|given| given.line);
    (reader.given, reader.problems)
}

struct Reader<'a> {
    text: &'a str,
    known: &'a Fields,
    environment: &'a dyn Fn(&str) -> Option<String>,
    given: Vec<Given>,
    problems: Vec<Problem>,
}

type Key<'i> = Spanned<std::borrow::Cow<'i, str>>;

impl Reader<'_> {
    /// The line, from 1, of a place in the text.
    fn line(&self, at: usize) -> usize {
        1 + self.text[..at.min(self.text.len())].matches('\n').count()
    }

    fn table(&mut self, key: &Key<'_>, table: &DeTable<'_>) {
        if let Err(wrong) = self.known.find_table(key.get_ref()) {
            let line = self.line(key.span().start);
            return self.problems.push(Problem::at(line, wrong));
        }
        for (inner, value) in table {
            self.field(key.get_ref(), inner, value);
        }
    }

    fn field(&mut self, table: &str, key: &Key<'_>, value: &Spanned<DeValue<'_>>) {
        let line = self.line(key.span().start);
        let found = self.known.find(table, key.get_ref());
        let given = found.and_then(|field| self.value(field, line, value.get_ref()));
        match given {
            Ok(given) => self.given.push(given),
            Err(wrong) => self.problems.push(Problem::at(line, wrong)),
        }
    }

    fn value(&self, field: &Field, line: usize, value: &DeValue<'_>) -> Result<Given, String> {
        let mut given = Given {
            id: field.id.clone(),
            line,
            values: Vec::new(),
            off: false,
            variables: Vec::new(),
            lacking: Vec::new(),
        };
        let id = &field.id;
        match value {
            DeValue::Boolean(on) if field.switch => given.off = !on,
            _ if field.switch => return Err(format!("{id} is true or false")),
            DeValue::Array(several) => {
                for one in several.iter() {
                    let one = self.scalar(id, one.get_ref(), &mut given)?;
                    given.values.push(one);
                }
                if !field.repeats {
                    given.values = vec![given.values.join(",")];
                }
                given.off = given.values.is_empty();
            }
            one => given.values = vec![self.scalar(id, one, &mut given)?],
        }
        Ok(given)
    }

    fn scalar(&self, id: &str, value: &DeValue<'_>, of: &mut Given) -> Result<String, String> {
        match value {
            DeValue::String(text) => self.expand(id, text, of),
            DeValue::Integer(number) => Ok(number.to_string()),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            other => Err(format!(
                "{id} is a {}: give text, a number or a list of them",
                other.type_str()
            )),
        }
    }

    /// `text` with the environment's value for each `${NAME}` in it.
    fn expand(&self, id: &str, text: &str, of: &mut Given) -> Result<String, String> {
        let mut parts = text.split("${");
        let mut whole = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part
                .split_once('}')
                .ok_or_else(|| format!("{id}: `${{` without `}}`"))?;
            match (self.environment)(name) {
                Some(value) => whole += &(value + rest),
                None => of.lacking.push(name.to_owned()),
            }
            of.variables.push(name.to_owned());
        }
        Ok(whole)
    }
}
