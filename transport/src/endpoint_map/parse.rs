//! The line parser of the endpoint map: text in, map and diagnostics out. No I/O; at most one diagnostic per line.

use std::collections::hash_map::{Entry, HashMap};

use super::diagnostic::{Diagnostic, Problem, ProblemAt};
use super::{ENTRIES_MAX, EndpointMap, TaskName, TransportAddress};

/// What some editors put before the first line of a UTF-8 file.
const BYTE_ORDER_MARK: char = '\u{feff}';

pub(super) struct Outcome {
    /// The lines that could be read; complete only if no diagnostic is an error.
    pub(super) map: EndpointMap,
    /// In line order.
    pub(super) diagnostics: Vec<Diagnostic>,
}

pub(super) fn parse(text: &str) -> Outcome {
    let mut map = EndpointMap::default();
    let mut diagnostics = Vec::new();
    let mut first_lines: HashMap<TaskName, usize> = HashMap::new();
    // The first spelling of every address, and its line.
    let mut spellings: HashMap<TransportAddress, (TransportAddress, usize)> = HashMap::new();
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    for (index, text) in text.split('\n').enumerate() {
        let line = Line { number: index + 1, text };
        let (task, address) = match line.pair() {
            None => continue,
            Some(Ok(pair)) => pair,
            Some(Err(diagnostic)) => {
                diagnostics.push(diagnostic);
                continue;
            }
        };
        match first_lines.entry(task) {
            Entry::Occupied(first) => diagnostics.push(line.again(&map, first.key(), *first.get(), address)),
            Entry::Vacant(_) if map.len() == ENTRIES_MAX => {
                diagnostics.push(line.diagnostic(line.start(), Problem::TooManyEntries));
                break;
            }
            Entry::Vacant(free) => {
                let known = spellings.entry(address.canonical()).or_insert_with(|| (address.clone(), line.number));
                if known.0 != address {
                    diagnostics.push(line.other_spelling(known, &address));
                }
                map.insert(free.key().clone(), address);
                free.insert(line.number);
            }
        }
    }
    map.sort();
    if map.is_empty() && diagnostics.is_empty() {
        diagnostics.push(Diagnostic { line: 1, column: 1, problem: Problem::NoTask });
    }
    Outcome { map, diagnostics }
}

/// The diagnostic for bytes after `valid` that are not text; `valid` is what precedes them in the file.
pub(super) fn not_utf8(valid: &[u8]) -> Diagnostic {
    let text = String::from_utf8_lossy(valid);
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    let (number, last) = text.split('\n').enumerate().last().unwrap_or((0, ""));
    let line = Line { number: number + 1, text: last };
    line.diagnostic(last.len(), Problem::NotUtf8)
}

struct Line<'a> {
    number: usize,
    text: &'a str,
}

impl Line<'_> {
    /// The pair on this line; `None` if it is blank or only a comment.
    fn pair(&self) -> Option<Result<(TaskName, TransportAddress), Diagnostic>> {
        // Neither side may contain a `#`, so the first one starts a comment.
        let content = self.text.split('#').next().unwrap_or_default();
        if trim(content).is_empty() {
            return None;
        }
        Some(self.parse_pair(content))
    }

    fn parse_pair(&self, content: &str) -> Result<(TaskName, TransportAddress), Diagnostic> {
        let Some((left, right)) = content.split_once('=') else {
            let end = self.start() + trim(content).len();
            return Err(self.diagnostic(end, Problem::NoEquals));
        };
        if let Some(second) = right.find('=') {
            return Err(self.diagnostic(left.len() + 1 + second, Problem::SecondEquals));
        }
        let task = self.side(0, left, TaskName::parse_at)?;
        let address = self.side(left.len() + 1, right, TransportAddress::parse_at)?;
        Ok((task, address))
    }

    /// Parses one side of the `=`, which starts at byte `offset` of the line.
    fn side<T>(
        &self,
        offset: usize,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, ProblemAt>,
    ) -> Result<T, Diagnostic> {
        let start = offset + leading(text);
        parse(trim(text)).map_err(|at| self.diagnostic(start + at.offset, Problem::Address(at.problem)))
    }

    /// The diagnostic for a task that line `first_line` has already named.
    fn again(&self, map: &EndpointMap, task: &TaskName, first_line: usize, second: TransportAddress) -> Diagnostic {
        let task = task.clone();
        let problem = match map.resolve(task.as_str()) {
            Some(first) if *first != second => Problem::Conflict { task, first: first.clone(), first_line, second },
            _ => Problem::Repeated { task, first_line },
        };
        self.diagnostic(self.start(), problem)
    }

    /// The diagnostic for a transport address that an earlier line spells in another way.
    fn other_spelling(&self, (first, first_line): &(TransportAddress, usize), second: &TransportAddress) -> Diagnostic {
        let right = self.text.find('=').map_or(0, |equals| equals + 1);
        let (first, second) = (first.clone(), second.clone());
        let problem = Problem::OtherSpelling { first, first_line: *first_line, second };
        self.diagnostic(right + leading(&self.text[right..]), problem)
    }

    /// Byte offset of the first character that is not a space.
    fn start(&self) -> usize {
        leading(self.text)
    }

    fn diagnostic(&self, offset: usize, problem: Problem) -> Diagnostic {
        Diagnostic { line: self.number, column: self.text[..offset].chars().count() + 1, problem }
    }
}

/// Only these may surround an address: a space that merely looks like one (such as a no-break space from a web page) is
/// reported, because other readers of the same file would fail on it.
const SPACES: [char; 3] = [' ', '\t', '\r'];

fn trim(text: &str) -> &str {
    text.trim_matches(SPACES)
}

fn leading(text: &str) -> usize {
    let rest = text.trim_start_matches(SPACES);
    // A side with only spaces is reported at its end, next to what it should contain.
    text.len() - rest.len()
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let diagnostics = parse(text).diagnostics;
        diagnostics.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reads_comments_blanks_spaces_crlf_and_bom() {
        let plain = parse("a:1=h:7\nb:2=[::1]:7");
        let dressed = parse("\u{feff}# head = 1\r\n\r\n  \t\r\n\ta:1 = h:7 # tail = é\r\n b:2\t=\t[::1]:7\r\n#\r\n");
        assert_eq!(dressed.diagnostics, []);
        assert_eq!(dressed.map, plain.map);
        assert_eq!(plain.map.len(), 2);
    }

    #[test]
    fn every_problem_has_line_column_and_fix() {
        for (text, expected) in [
            ("", "1:1: there is no task; write "),
            ("\n# a:1=h:7\n", "1:1: there is no task; write "),
            ("\n a:1 # b", "2:5: there is no `=`"),
            ("a:1=h:7=", "1:8: there is a second `=`"),
            ("=h:7", "1:1: there is no address"),
            ("a:1= ", "1:6: there is no address"),
            ("a:1 =", "1:6: there is no address"),
            ("\u{feff}a:0=h:7", "1:3: the port is 0"),
            ("a:1 =  h:x", "1:10: \"x\" is not a port"),
            ("é:1=h:7", "1:1: `'é'` is not allowed"),
            ("aé:1=h:7", "1:2: `'é'` is not allowed"),
            ("a:1=h:7 é", "1:8: `' '` is not allowed"),
            ("a:1=h:7\rb:1=h:7", "1:12: there is a second `=`"),
            ("a:1\r=h:7 b", "1:9: `' '` is not allowed"),
            ("a:1=0.0.0.0:7", "1:5: 0.0.0.0 is not the address of one host"),
            ("a:1=fd00::7:2222", "1:5: \"fd00::7:2222\" has more than one `:`"),
        ] {
            let said = said(text);
            assert_eq!(said.len(), 1, "{text:?}: {said:?}");
            assert!(said[0].starts_with(expected), "{text:?}: {said:?}");
            assert!(said[0].contains("; "), "{text:?}: {said:?}");
        }
    }

    #[test]
    fn a_second_line_for_a_task_is_an_error_or_a_warning() {
        let outcome = parse("a:1=h:7\n\n a:1=h:8\na:1=H:7");
        assert_eq!(
            said("a:1=h:7\n\n a:1=h:8\na:1=H:7"),
            [
                "3:2: task a:1 is given at h:8 here and at h:7 in line 1; \
                 delete one of the two lines",
                "4:1: task a:1 is given the same way in line 1; delete one of the two lines",
            ]
        );
        let severities: Vec<_> = outcome.diagnostics.iter().map(Diagnostic::severity).collect();
        assert_eq!(severities, [Severity::Error, Severity::Warning]);
        assert!(EndpointMap::parse("a:1=h:7\na:1=h:7", "map").is_ok());
    }

    #[test]
    fn spellings_of_one_address_are_an_error() {
        let text = "a:1=localhost:7\nb:1=127.0.0.1:8\nc:1= 127.0.0.1:7\nd:1=h.:7\ne:1=H:7\n";
        assert_eq!(
            said(text),
            [
                "3:6: 127.0.0.1:7 is the same address as localhost:7 in line 1; write it the same way in both lines",
                "5:5: h:7 is the same address as h.:7 in line 4; write it the same way in both lines",
            ]
        );
        assert!(EndpointMap::parse(text, "map").is_err());
    }

    #[test]
    fn stops_at_the_limit_of_entries() {
        let text: String = (0..ENTRIES_MAX + 5).map(|index| format!("t{index}:1=h:7\n")).collect();
        let outcome = parse(&text);
        assert_eq!(outcome.map.len(), ENTRIES_MAX);
        assert_eq!(outcome.diagnostics.len(), 1);
        assert_eq!(outcome.diagnostics[0].line, ENTRIES_MAX + 1);
        assert_eq!(outcome.diagnostics[0].problem, Problem::TooManyEntries);
    }

    #[test]
    fn bytes_that_are_no_text_are_placed() {
        let diagnostic = not_utf8("\u{feff}a:1=h:7\né:".as_bytes());
        assert_eq!((diagnostic.line, diagnostic.column), (2, 3));
        assert_eq!(not_utf8(b"").to_string(), "1:1: this is not UTF-8 text; save the file as UTF-8 or plain ASCII");
    }
}
